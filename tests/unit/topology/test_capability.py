"""What a host lacks is another matter than what this process may not do."""

import errno
import os

import pytest

from vmplace.topology.capability import cure_of

BOOT = "boot a kernel with CONFIG_IDLE_PAGE_TRACKING=y"


@pytest.mark.parametrize(
    ("number", "uid", "cure"),
    [
        (errno.ENOENT, 0, BOOT),
        (errno.ENOENT, 1000, f"{BOOT}, and run as root"),
        (errno.EACCES, 1000, "run as root"),
        # The page is there: no other kernel helps a container.
        (errno.EACCES, 0, "run it with CAP_SYS_ADMIN, outside of a container without it"),
        (errno.EROFS, 0, "run it with CAP_SYS_ADMIN, outside of a container without it"),
    ],
)
def test_who_lacks_rights_is_not_sent_for_another_kernel(
    monkeypatch: pytest.MonkeyPatch, number: int, uid: int, cure: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert cure_of(OSError(number, os.strerror(number)), BOOT) == cure
