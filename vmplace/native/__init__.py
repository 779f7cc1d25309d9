"""The C core: what Python cannot reach or is too slow for (see _native.pyi for each function)."""

from vmplace.native._native import (
    age_heat,
    drain_lru,
    folio_heads,
    idle_collect,
    idle_mark,
    move_pages,
    page_nids,
    read_pagemap,
)

__all__ = [
    "age_heat",
    "drain_lru",
    "folio_heads",
    "idle_collect",
    "idle_mark",
    "move_pages",
    "page_nids",
    "read_pagemap",
]
