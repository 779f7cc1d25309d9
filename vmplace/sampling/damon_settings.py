"""What is DAMON asked to watch of one process?  The files of a context in sysfs, and what is written there.

Source: Documentation/admin-guide/mm/damon/usage.rst (6.12).
"""

from collections.abc import Mapping, Sequence

from vmplace.topology.damon import OPERATIONS

MOST_REGIONS, LEAST_REGIONS, ALL_REGIONS = 1000, 50, 40_000
"""Of one guest, and of the first guests together: DAMON checks each region in each sample."""
Range = tuple[int, int]


def most_regions(guests: int) -> int:
    """Return into how many regions the last of so many guests is divided."""
    return max(min(ALL_REGIONS // guests, MOST_REGIONS), LEAST_REGIONS)


def settings_of(
    target_pid: int, ranges: Sequence[Range], most: int, sample_us: int, aggregation_us: int
) -> list[tuple[str, object]]:
    """Return the files under a context and what to write, in order; ``most``: so many regions, or fewer."""
    attributes: Mapping[str, object] = {
        "operations": OPERATIONS,
        "monitoring_attrs/intervals/sample_us": sample_us,
        "monitoring_attrs/intervals/aggr_us": aggregation_us,
        # Maximum first: the kernel refuses a minimum above it.
        "monitoring_attrs/nr_regions/max": most,
        "monitoring_attrs/nr_regions/min": most // 5,
        "targets/nr_targets": 1,
        "targets/0/pid_target": target_pid,
        "targets/0/regions/nr_regions": len(ranges),
    }
    settings = list(attributes.items())
    for index, (start, end) in enumerate(sorted(ranges)):
        root = f"targets/0/regions/{index}"
        settings += [(f"{root}/start", start), (f"{root}/end", end)]
    return settings
