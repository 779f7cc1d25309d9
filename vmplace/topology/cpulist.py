"""The kernel's list format, ``0-3,8,10-11``, as sysfs, procfs and libvirt write it."""


def parse_cpulist(text: str) -> tuple[int, ...]:
    """Parse a list of CPUs or nids, ascending; ``^N`` (libvirt) takes N out again.

    Raises ValueError for text in another format.
    """
    wanted: set[int] = set()
    for part in filter(None, (field.strip() for field in text.split(","))):
        if part.startswith("^"):
            wanted.discard(int(part[1:]))
            continue
        first, _, last = part.partition("-")
        wanted.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(wanted))
