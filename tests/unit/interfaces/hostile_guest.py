"""A KVM guest of somebody who wishes the agent ill; nothing of vmplace is used.

``hostile_guest.py CHILD private 1 NAMES [arguments of a QEMU that lies]``; HOSTILE_FILE is a path to map and
keep open.
"""

import mmap
import os
import runpy
import sys

path = os.environb.get(b"HOSTILE_FILE")
if path:
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - a name that is no text
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 1 << 20)
    kept = mmap.mmap(fd, 1 << 20)
child = sys.argv.pop(1)
runpy.run_path(child, run_name="__main__")
