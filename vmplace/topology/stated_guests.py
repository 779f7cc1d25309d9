"""Read a file in which an orchestrator describes guests that this host's libvirt does not know.

`vmplace kube agent` writes it for the QEMU processes of KubeVirt's pods (cloud/kubernetes).  Each entry is of
one process, by pid and start time, which no other process has until reboot.  An entry holds until the file
changes, even when its writer is gone.  The file is read again only when it changed.  One that others than
root may write to is refused, as it decides what the agent does.
"""

import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from vmplace.errors import VmplaceError
from vmplace.outside import parse_json
from vmplace.topology.domain_policy import MAX_TEXT, MAX_WORDS, CloudNames, DomainPolicy, Word
from vmplace.topology.guest import Identity

LOG = logging.getLogger(__name__)
NAME = "stated-guests.json"
"""In the directory of the control socket."""
MOST_BYTES = 4 << 20


class StatedGuest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One guest: pid, start time (/proc/PID/stat, field 22), who says it, and annotations as key and text.

    ``migrating_until_s``: it leaves or arrives until then at the latest (seconds of CLOCK_BOOTTIME).
    ``namespace``, ``name``: what Kubernetes calls it.
    """

    pid: int
    start_time: int
    by: str
    annotations: tuple[tuple[str, str], ...] = ()
    migrating_until_s: float = 0.0
    namespace: str = ""
    name: str = ""

    @property
    def identity(self) -> Identity:
        """Return which process it is."""
        return self.pid, self.start_time


class _File(msgspec.Struct, frozen=True):
    guests: tuple[StatedGuest, ...]
    version: int = 1


def encoded(guests: tuple[StatedGuest, ...]) -> bytes:
    """Return what to write for these guests."""
    return msgspec.json.encode(_File(guests)) + b"\n"


def boot_s() -> float:
    """Return the seconds since boot that the file's times are of."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StatedGuests:
    """The file at ``path`` as it is now; a file that is wrong is reported once and says nothing new."""

    def __init__(self, path: Path, owner: int = 0, now_s: Callable[[], float] = boot_s) -> None:
        self._path, self._owner, self._now_s = path, owner, now_s
        self._seen: tuple[int, int, int] | None = None
        self._problem: str | None = None
        self._guests: tuple[StatedGuest, ...] = ()
        self._policies: dict[Identity, DomainPolicy] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what is wrong with the file, for people."""
        return (self._problem,) if self._problem else ()

    def policies(self) -> Mapping[Identity, DomainPolicy]:
        """Return what is said, by process; look whether the file changed."""
        try:
            self._look()
        except FileNotFoundError:
            self._seen = self._problem = None
        except (OSError, VmplaceError) as err:
            hint = f" ({err.hint})" if isinstance(err, VmplaceError) else ""
            self._problem = f"{self._path} is not read: {err}{hint}"
        return self._policies

    def migrating(self) -> frozenset[Identity]:
        """Return the processes of guests that leave or arrive, as last read."""
        now = self._now_s()
        return frozenset(one.identity for one in self._guests if one.migrating_until_s > now)

    def guests(self) -> tuple[StatedGuest, ...]:
        """Return all that the file says; look whether it changed."""
        self.policies()
        return self._guests

    def _look(self) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen == self._seen:
                return
            self._seen, self._problem = seen, None
            self._check(status)
            read = parse_json(file.read(MOST_BYTES + 1), _File)
        if read.version != 1:
            raise VmplaceError(
                f"its version is {read.version}, not 1", hint="run the same release of vmplace as its writer"
            )
        self._guests = read.guests
        self._policies = {one.identity: _policy(one) for one in read.guests}

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise VmplaceError("it is no file", hint="remove it: its writer makes it anew")
        if status.st_uid != self._owner or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise VmplaceError(
                "others than root may write to it", hint=f"chown root {self._path}; chmod go-w {self._path}"
            )
        if status.st_size > MOST_BYTES:
            hint = "remove it: its writer makes it anew"
            raise VmplaceError(f"it is larger than {MOST_BYTES >> 20} MiB", hint=hint)


def _policy(guest: StatedGuest) -> DomainPolicy:
    names = CloudNames(guest.namespace, guest.name)
    if len(guest.annotations) > MAX_WORDS or any(len(text) > MAX_TEXT for _, text in guest.annotations):
        return DomainPolicy(error=f"{guest.by} has more or longer annotations than make sense", names=names)
    return DomainPolicy(annotations=tuple(Word(key, text, 1) for key, text in guest.annotations), names=names)
