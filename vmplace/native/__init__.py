"""The C core: what Python cannot reach or is too slow for (see _native.pyi for each function)."""

from pathlib import Path

from vmplace.native import _native
from vmplace.native._native import (
    drain_lru,
    folio_heads,
    idle_collect,
    idle_mark,
    learn_shares,
    measure_streams,
    move_pages,
    page_nids,
    perf_count,
    perf_drain,
    perf_open,
    place_cheapest,
    place_traffic,
    placement_drain,
    placement_harvest,
    placement_hints,
    placement_info,
    placement_move,
    placement_open,
    placement_replicate,
    placement_roots,
    planes_heat,
    read_pagemap,
    rows_alike,
    touch_rate_count,
    touch_rate_step,
)

PATH = Path(_native.__file__)
"""Where the core itself is, for processes that load nothing else."""

__all__ = [
    "PATH",
    "drain_lru",
    "folio_heads",
    "idle_collect",
    "idle_mark",
    "learn_shares",
    "measure_streams",
    "move_pages",
    "page_nids",
    "perf_count",
    "perf_drain",
    "perf_open",
    "place_cheapest",
    "place_traffic",
    "placement_drain",
    "placement_harvest",
    "placement_hints",
    "placement_info",
    "placement_move",
    "placement_open",
    "placement_replicate",
    "placement_roots",
    "planes_heat",
    "read_pagemap",
    "rows_alike",
    "touch_rate_count",
    "touch_rate_step",
]
