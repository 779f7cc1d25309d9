"""Journal and mover while calls to the kernel fail or the process is killed; run with fault_shim.c loaded.

    LD_PRELOAD=fault_shim.so python -m tests.native.journal_faults fail|kill|power FOLDER COUNT [SYNC]

Prints one JSON object: how many calls one run makes, how many faults were set, what was broken, in words.
The kernel's move_pages(2) is a table in shared memory, which outlives who is killed; all else is real.

``power`` cuts the power where ``kill`` kills: of what was not synced, names or bytes are lost, or half of the
bytes.  In every other turn an agent before that one was killed with the power on.  Without the syncs of one
kind (SYNC: 1 fdatasync, 2 of files, 3 of directories) something has to be broken.
"""

import ctypes
import errno
import json
import mmap
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.unit.actuation.child_guest import guest_of, plan_of
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import GuestIdentity, read_identity
from vmplace.actuation.journal import Journal, Pin, read_journal
from vmplace.actuation.mover import Mover
from vmplace.actuation.undo import undo
from vmplace.errors import VmplaceError

PAGE, BASE, NPAGES = 4096, 1 << 32, 512
ERRORS = [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS, errno.ENOMEM]
ONCE, FOR_GOOD, SHORT, KILL_BEFORE, KILL_HALFWAY, KILL_AFTER = range(6)
LOSES_BOTH, LOSES_BYTES, LOSES_NAMES, LOSES_HALF = range(4)
SHIM = ctypes.CDLL(None)
GUEST = guest_of(os.getpid(), BASE, NPAGES)
OTHERS = 1000


class SharedKernel:
    """The node of each page, in memory that a child shares with its parent."""

    def __init__(self) -> None:
        self.nids: npt.NDArray[np.int8] = np.frombuffer(mmap.mmap(-1, NPAGES), np.int8)
        self.acted: npt.NDArray[np.int8] = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int8)
        self.reset()

    def reset(self) -> None:
        """Put all memory back, and forget which pins were carried out."""
        self.nids[:] = np.arange(NPAGES) % 3
        self.acted[:] = 0

    def page_nids(self, pid: int, hvas: npt.NDArray[np.uint64], status: npt.NDArray[np.int32]) -> None:
        """Tell where pages are."""
        status[:] = self.nids[(hvas.astype(np.int64) - BASE) // PAGE]

    def move_pages(
        self,
        pid: int,
        hvas: npt.NDArray[np.uint64],
        nids: npt.NDArray[np.int32],
        status: npt.NDArray[np.int32],
    ) -> int:
        """Move pages."""
        self.nids[(hvas.astype(np.int64) - BASE) // PAGE] = nids
        status[:] = nids
        return 1000 * len(hvas)


def work(
    path: Path, kernel: SharedKernel, me: GuestIdentity, seed: int, *, first_tid: int = 0
) -> tuple[Journal | None, list[str]]:
    """Do what an agent does with its journal; return it, and what was raised that may not be."""
    noise, broken = random.Random(seed), list[str]()  # noqa: S311 - not for secrets

    def tried(step: Callable[[], object]) -> None:
        try:
            step()
        except VmplaceError:
            pass
        except Exception as err:
            broken.append(f"{type(err).__name__}: {err}")

    try:
        journal = Journal(path)
    except VmplaceError:
        return None, broken
    mover = Mover(journal, Budget(None), kernel=kernel)
    for step in range(6):
        first, nid = noise.randrange(NPAGES - 64), noise.randrange(3)
        plan = plan_of(BASE + first * PAGE, 64, nid)
        tried(partial(mover.apply, plan, {GUEST.name: GUEST}))

        def pin(tid: int = first_tid + step) -> None:
            # Two at once, as of a guest with several vCPUs.
            pins = [Pin(one, one, 1, (one,)) for one in (tid, tid + OTHERS)]
            journal.record_affinities(me, pins, by_libvirt=False)
            # Only what the journal acknowledged is acted upon.
            kernel.acted[[pin.tid for pin in pins]] = 1

        tried(pin)
        if step % 2:
            tried(journal.compact)
    return journal, broken


def check(path: Path, kernel: SharedKernel, me: GuestIdentity) -> list[str]:
    """Return what the journal on disk lacks of what was done."""
    origins = read_journal(path).guest(me)
    home = np.arange(NPAGES) % 3
    known = {
        int(frame) - BASE // PAGE: int(nid)
        for runs in origins.pages.iter_runs()
        for frame, nid in zip(*runs.page_frames(), strict=True)
    }
    broken = [
        f"page {page} moved {home[page]}->{kernel.nids[page]}, journal: {known.get(page)}"
        for page in np.flatnonzero(kernel.nids != home).tolist()
        if known.get(page) != home[page]
    ]
    lost = [tid for tid in np.flatnonzero(kernel.acted).tolist() if tid not in origins.affinities]
    broken += [f"pin {tid} is not in the journal" for tid in lost]
    with Journal(path) as journal:
        undo(journal, kernel=kernel, guests={me})
    return broken + (["undo is not exact"] if (kernel.nids != home).any() else [])


def failed(
    folder: Path, kernel: SharedKernel, me: GuestIdentity, at: int, error: int, mode: int, seed: int
) -> list[str]:
    """Run once with one call failing, in this process; it goes on with the same journal after that."""
    path = folder / f"{at}-{error}-{mode}-{seed}/journal"
    path.parent.mkdir()
    SHIM.fault_arm(ctypes.c_long(at), error, mode)
    journal, broken = work(path, kernel, me, seed)
    SHIM.fault_disarm()
    if journal is not None:
        # The disk has room again: the same journal takes records, and none is behind half a one.
        journal.record_affinities(me, [Pin(9, 9, 1, (9,))], by_libvirt=False)
        kernel.acted[9] = 1
        if damage := journal.contents().damage:
            broken.append(f"damage after a failure: {damage}")
        journal.close()
    return broken + check(path, kernel, me)


def killed(folder: Path, kernel: SharedKernel, me: GuestIdentity, at: int, mode: int, seed: int) -> list[str]:
    """Run once in a child that is killed at one call."""
    path = folder / f"{at}-{mode}-{seed}/journal"
    path.parent.mkdir()
    return ended(path, kernel, me, at, mode, seed) or check(path, kernel, me)


def ended(
    path: Path, kernel: SharedKernel, me: GuestIdentity, at: int, mode: int, seed: int, first_tid: int = 0
) -> list[str]:
    """Work in a child until it is killed at one call; return what is wrong with its end."""
    pid = os.fork()
    if not pid:
        SHIM.fault_arm(ctypes.c_long(at), 0, mode)
        _, broken = work(path, kernel, me, seed, first_tid=first_tid)
        os._exit(1 if broken else 0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return []
    return [f"not killed at {at}: {status}"]


def cut_off(
    folder: Path, kernel: SharedKernel, me: GuestIdentity, at: int, turn: int, left_out: int
) -> list[str]:
    """Run once in a child, the power of which is cut at one call."""
    path, shadow = folder / f"{at}-{turn}/state/journal", folder / f"{at}-{turn}/shadow"
    shadow.mkdir(parents=True)
    path.parent.mkdir()
    SHIM.fault_shadow(os.fsencode(shadow), left_out)
    broken = []
    if turn % 2:
        # Whoever goes on with its journal finds what this one did not come to sync.
        first_at = random.Random(at).randrange(1, at + 1)  # noqa: S311 - not for secrets
        broken = ended(path, kernel, me, first_at, KILL_BEFORE + at % 3, turn + 1000, first_tid=16)
    broken += ended(path, kernel, me, at, KILL_BEFORE + turn % 3, turn)
    SHIM.fault_shadow(b"", 0)
    lose_unsynced(path.parent, shadow, (at + turn // 3) % 4)
    return broken + check(path, kernel, me)


def lose_unsynced(folder: Path, shadow: Path, how: int) -> None:
    """Leave in a folder what a power cut leaves, by what was synced."""
    there = {entry.name: (entry.inode(), Path(entry.path).read_bytes()) for entry in os.scandir(folder)}
    names = {name: inode for name, (inode, _) in there.items()}
    if how != LOSES_BYTES:
        listed = shadow / f"d{folder.stat().st_ino}"
        synced = listed.read_text().splitlines() if listed.exists() else []
        names = {name: int(inode) for inode, name in (line.split(" ", 1) for line in synced)}
    written = dict(there.values())
    for path in folder.iterdir():
        path.unlink()
    for name, inode in names.items():
        kept = shadow / f"f{inode}"
        data = kept.read_bytes() if kept.exists() else b""
        if how == LOSES_NAMES:
            data = written.get(inode, data)
        elif how == LOSES_HALF:
            longer = written.get(inode, data)
            data = longer[: (len(data) + len(longer)) // 2] if longer.startswith(data) else data
        (folder / name).write_bytes(data)


def calls_of(folder: Path, kernel: SharedKernel, me: GuestIdentity, seed: int) -> int:
    """Return how many calls a run makes if nothing fails."""
    (folder / f"clean{seed}").mkdir()
    SHIM.fault_arm(ctypes.c_long(1 << 40), 0, ONCE)
    journal, _ = work(folder / f"clean{seed}/journal", kernel, me, seed)
    calls = int(SHIM.fault_disarm())
    if journal is not None:
        journal.close()
    return calls


def main(kind: str, folder: Path, count: int, left_out: int = 0) -> None:
    """Set ``count`` faults: at every call in turn, then again with another kind of fault."""
    kernel, me = SharedKernel(), read_identity(GUEST)
    broken: Counter[str] = Counter()
    done = turn = calls = 0
    # The first run also opens what Python loads late.
    calls_of(folder, kernel, me, -1)
    while done < count:
        kernel.reset()
        calls = calls_of(folder, kernel, me, turn)
        for at in range(1, min(calls, count - done) + 1):
            kernel.reset()
            if kind == "kill":
                mode = KILL_BEFORE + turn % 3
                found = killed(folder, kernel, me, at, mode, turn)
                what = f"kill mode {mode}"
            elif kind == "power":
                found = cut_off(folder, kernel, me, at, turn, left_out)
                what = f"power cut, turn {turn}"
            else:
                error, mode = ERRORS[(turn + at) % 5], turn % 3
                found = failed(folder, kernel, me, at, error, mode, turn)
                what = f"{errno.errorcode[error]} mode {mode}"
            broken.update(f"{what} at {at} of {calls}: {one}" for one in found[:3])
            done += 1
        turn += 1
    print(json.dumps({"calls": calls, "turns": turn, "faults": done, "broken": list(broken)[:50]}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *map(int, sys.argv[4:]))
