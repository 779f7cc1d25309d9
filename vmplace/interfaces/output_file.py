"""Write results to a file that is opened before the work, and appears whole when the work is done."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from vmplace.errors import VmplaceError, cure_of_writing

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a write, or the close after it, may end with; whatever is read meanwhile says its file's name."""


@contextmanager
def maybe_output(path: Path | None) -> Iterator[IO[bytes] | None]:
    """Give what ``opened_output`` gives, None without a path."""
    if path is None:
        yield None
        return
    with opened_output(path) as file:
        yield file


@contextmanager
def opened_output(path: Path, *, mode: int | None = None, lasting: bool = False) -> Iterator[IO[bytes]]:
    """Give a file that becomes ``path`` if all goes well; raises VmplaceError at once.

    ``mode``: in place of what the umask leaves.  ``lasting``: no crash of the host leaves an empty file.
    """
    if _is_device(path):
        # A device or pipe (/dev/stdout): nothing can take its place, and a pipe's path leads nowhere.
        with _written(path), _opened_now(path) as there:
            yield there
        return
    path = _behind_links(path)
    try:
        file = NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:100]}.", delete=False)  # noqa: SIM115
    except (OSError, ValueError) as err:
        why = getattr(err, "strerror", None) or str(err)
        raise VmplaceError(f"{path} cannot be written: {why}", hint=cure_of_writing(err)) from err
    try:
        with _written(path), file:
            yield file
            os.fchmod(file.fileno(), 0o666 & ~_umask() if mode is None else mode)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        _put(Path(file.name), path)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise


def _is_device(path: Path) -> bool:
    """Tell whether something other than a file is there; opening it tells why one cannot look."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def with_folder(path: Path) -> Path:
    """Return the path of a file once its folder is there; raises VmplaceError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise VmplaceError(f"{path} cannot be written: {err.strerror}", hint=cure_of_writing(err)) from err
    return path


def _behind_links(path: Path) -> Path:
    """Return the file that a link stands for, which is what is replaced."""
    # Path.resolve() ends with an error of no file at links that lead to each other.
    real = Path(os.path.realpath(path))
    # Nor does Path.is_symlink() answer in a folder that is not for this user.
    if os.path.islink(real):  # noqa: PTH114
        why = os.strerror(errno.ELOOP)
        raise VmplaceError(f"{path} cannot be written: {why}", hint="name another file")
    return real


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Say which file it was that could not take what was written."""
    try:
        yield
    except OSError as err:
        if err.errno not in FULL or err.filename is not None:
            raise
        raise VmplaceError(f"{path} cannot be written: {err.strerror}", hint=cure_of_writing(err)) from err


def _opened_now(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as err:
        raise VmplaceError(f"{path} cannot be written: {err.strerror}", hint=cure_of_writing(err)) from err


def _put(file: Path, path: Path) -> None:
    try:
        file.replace(path)
    except OSError as err:
        raise VmplaceError(f"{path} cannot be written: {err.strerror}", hint=cure_of_writing(err)) from err


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
