#!/usr/bin/python3
"""Run the lab from where its package put it, beside the patches that it builds with."""

import sys

sys.path.insert(0, "/usr/share/vmplace-lab")

from lab.commands import main

main()
