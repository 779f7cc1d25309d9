"""Replace a file in one step: whoever reads it meanwhile sees the old content or the new one."""

import os
import tempfile
from pathlib import Path


def replace_file(file: Path, content: bytes, mode: int = 0o644, *, lasting: bool = False) -> None:
    """Replace a file, or leave it as it was and raise OSError.

    ``lasting``: once this returns, no power cut takes the new content away.
    """
    fd, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(content)
            os.fchmod(out.fileno(), mode)
            if lasting:
                # Before the rename: else a power cut could leave the name on an empty file.
                out.flush()
                os.fsync(out.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if lasting:
        _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """Have the new names in a folder survive a power cut; raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
