"""For how long ahead heat is expected, and of how long ago what was seen is."""

HORIZON_S = 6.0
"""What was seen lately is expected once more: a mean life of 8.7 s of accesses that fade (ln 2: 6 s)."""
SHORTEST_S = 1e-6
"""Windows may be called as short as nothing; rates are to stay numbers."""


def watched_s(lengths_s: tuple[float, ...], windows: int) -> float:
    """Return how long so many windows were; those before the first whose length is known were like it."""
    known = lengths_s[:windows]
    return sum(known) + (windows - len(known)) * known[-1]
