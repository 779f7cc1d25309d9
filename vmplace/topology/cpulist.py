"""The kernel's list format, ``0-3,8,10-11``, as sysfs, procfs and libvirt write it."""

from vmplace.errors import OutsideError
from vmplace.outside import MOST_ID, whole

LONGEST = 1 << 15
"""Characters: 8192 CPUs, every other one, take 24 KiB."""


def parse_cpulist(text: str, most: int = MOST_ID) -> tuple[int, ...]:
    """Parse a list of ids up to ``most``, ascending; ``^N`` (libvirt) takes N out again.

    Raises OutsideError (a ValueError, too) for text in another format.
    """
    if len(text) > LONGEST:
        raise OutsideError(f"a list of ids has {len(text)} characters")
    wanted: set[int] = set()
    listed = 0
    for part in filter(None, (field.strip() for field in text.split(","))):
        if part.startswith("^"):
            wanted.discard(whole(part[1:], most=most, what="id"))
            continue
        first, dash, last = part.partition("-")
        start = whole(first, most=most, what="id")
        end = whole(last if dash else first, least=start, most=most, what="id") + 1
        listed += end - start
        if listed > 2 * most + 2:
            raise OutsideError("a list of ids repeats the same ids too often")
        wanted.update(range(start, end))
    return tuple(sorted(wanted))
