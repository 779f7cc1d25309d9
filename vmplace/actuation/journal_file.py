"""Put records on disk, so that no failure loses a record that was reported as written.

1. ``append`` writes behind what is sound, syncs, and only then moves the end.  What a failure leaves behind
   the end is cut off, at once or before the next record.
2. ``replace`` writes a new file beside the old one, syncs it and renames it.  From the rename on the new file
   is the journal, whatever comes; nothing is appended to it until the directory is synced, too.
3. The directory stays open: no failure to open it can come between a rename and its sync.
4. What a killed agent wrote or renamed and did not sync is synced by the next, at the latest with its first
   record: a power cut may follow.
5. A file that somebody removed is noticed after each record (``is_lost``).

Every failure is a JournalError.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from vmplace.errors import JournalDeniedError, JournalError, JournalInUseError, only_root_may

LOOK_S = 0.05
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class JournalFile:
    """The file at ``path``; ``end`` is where the next record goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.end = 0
        self._is_torn = False
        # The process that renamed it may have been killed before it synced the directory.
        self._is_unsynced = True
        with self._guarded():
            self._directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with self._guarded():
                self._fd = os.open(path.name, _FLAGS, 0o600, dir_fd=self._directory)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; what was appended stays."""
        for fd in (self._fd, self._directory):
            with contextlib.suppress(OSError):
                if fd >= 0:
                    os.close(fd)
        self._fd = self._directory = -1

    def read(self) -> bytes:
        """Return all that is sound and what may follow it."""
        parts, offset = [], 0
        with self._guarded("read"):
            while part := os.pread(self._fd, 1 << 20, offset):
                parts.append(part)
                offset += len(part)
        return b"".join(parts)

    def begin(self, head: bytes) -> None:
        """Make the file one that holds just ``head``."""
        with self._guarded():
            os.ftruncate(self._fd, 0)
            _write_all(self._fd, head, 0)
            os.fsync(self._fd)
            self._sync_name()
        self.end = len(head)

    def resume(self, end: int) -> None:
        """Go on behind the first ``end`` bytes; what follows them is cut off."""
        self.end, self._is_torn = end, True
        with self._guarded():
            self._cut_back()
        # A failing disk must not keep an undo from reading.  No record is written until this cut succeeded.
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
            self._sync_name()

    def append(self, data: bytes) -> None:
        """Put ``data`` on disk; after a failure the file is as if that had not been tried."""
        with self._guarded():
            if self._is_torn:
                self._cut_back()
            self._sync_name()
            self._is_torn = True
            try:
                _write_all(self._fd, data, self.end)
                os.fdatasync(self._fd)
            except OSError:
                # Tried again before the next record: the disk may be read-only now.
                with contextlib.suppress(OSError):
                    self._cut_back()
                raise
        self._is_torn = False
        self.end += len(data)

    def replace(self, parts: Iterable[bytes]) -> None:
        """Have the file hold ``parts`` in place of all that it held."""
        with self._guarded():
            new = f"{self._path.name}.new"
            fd, end = self._written(new, parts)
            old, self._fd = self._fd, fd
            self.end, self._is_torn, self._is_unsynced = end, False, True
            with contextlib.suppress(OSError):
                os.close(old)
            self._sync_name()

    def is_lost(self) -> bool:
        """Tell whether the file does not have its name any more: nobody would find what is in it."""
        with self._guarded():
            try:
                named = os.stat(self._path.name, dir_fd=self._directory, follow_symlinks=False)
            except FileNotFoundError:
                return True
            return not os.path.samestat(named, os.fstat(self._fd))

    def _written(self, new: str, parts: Iterable[bytes]) -> tuple[int, int]:
        """Write the file that takes the place; return its descriptor and size."""
        fd, end = os.open(new, _FLAGS | os.O_TRUNC, 0o600, dir_fd=self._directory), 0
        try:
            for part in parts:
                _write_all(fd, part, end)
                end += len(part)
            os.fsync(fd)
            os.rename(new, self._path.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=self._directory)
            raise
        return fd, end

    def _cut_back(self) -> None:
        # Without this a later record would follow half of one; readers would skip it, but report damage.
        os.ftruncate(self._fd, self.end)
        self._is_torn = False

    def _sync_name(self) -> None:
        if self._is_unsynced:
            os.fsync(self._directory)
            self._is_unsynced = False

    @contextlib.contextmanager
    def _guarded(self, verb: str = "write") -> Iterator[None]:
        try:
            yield
        except OSError as err:
            raise unusable(self._path, err, verb) from err


def locked(path: Path, patience_s: float = 0.0, *, settles: bool = True) -> int:
    """Return the descriptor of a lock beside the journal; raises JournalError if another keeps it so long.

    Unless it ``settles``, nothing is written: the lock has to be there.
    """
    # A file of its own: compaction replaces the journal's inode.  The kernel drops the lock on kill -9.
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, _FLAGS if settles else os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as err:
        raise unusable(path, err) from err
    try:
        _lock_within(fd, patience_s)
    except BlockingIOError as err:
        os.close(fd)
        raise JournalInUseError(
            f"the journal {path} is in use by another vmplace",
            hint="stop the other agent, or ask it through its control socket",
        ) from err
    except OSError as err:
        os.close(fd)
        raise unusable(path, err) from err
    return fd


def _lock_within(fd: int, seconds: float) -> None:
    """Lock a file; raises BlockingIOError, OSError."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(LOOK_S)
        else:
            return


def unusable(path: Path, err: OSError, verb: str = "write") -> JournalError:
    """Return the error that says why nothing is moved, and the cure."""
    cures = {
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free some space for {path}"),
        **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise LimitNOFILE, or manage fewer guests"),
        errno.EIO: f"check the disk of {path}: see dmesg",
        errno.ENOMEM: "free some memory",
        errno.ELOOP: f"{path} is a symbolic link: put the file itself there",
    }
    reported = f"cannot {verb} the journal {path}, nothing is moved: {err.strerror}"
    if only_root_may(err):
        return JournalDeniedError(reported, hint="run it as root")
    return JournalError(reported, hint=cures.get(err.errno or 0, f"make {path.parent} writable"))


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count
