"""What a sweep finds: one row for each recording, host and policy."""

import msgspec


class GuestRow(msgspec.Struct, frozen=True):
    """One guest of a recording; what its kind does not tell is None."""

    name: str
    moved_bytes: int
    run_time_s: float | None = None
    lar_before: float | None = None
    lar: float | None = None


class SweepRow(msgspec.Struct, frozen=True):
    """What came of one policy on one host with one recording.

    ``kind``: "trace" is simulated and has run times (modelled); "recording" is replayed on the host that
    it was made on and has local access ratios (estimated).  ``task`` sums up all that the row depends on,
    ``baseline`` is the task of the same but for policy "none": what gains are against (none in a row of an
    earlier release).  ``error``: why there are no figures.  ``wall_s``: what it took.
    """

    task: str
    recording: str
    kind: str
    host: str
    policy: str
    source: str
    version: str
    windows: int | None = None
    run_time_s: float | None = None
    lar_before: float | None = None
    lar: float | None = None
    mc_imbalance_before: float | None = None
    mc_imbalance: float | None = None
    moved_bytes: int | None = None
    wall_s: float | None = None
    error: str | None = None
    guests: tuple[GuestRow, ...] = ()
    baseline: str = ""


GUEST_TYPE = "STRUCT(name VARCHAR, moved_bytes BIGINT, run_time_s DOUBLE, lar_before DOUBLE, lar DOUBLE)"
SQL_TYPES = {
    **dict.fromkeys(("task", "recording", "kind"), "VARCHAR"),
    **dict.fromkeys(("host", "policy", "source", "version"), "VARCHAR"),
    "windows": "BIGINT",
    **dict.fromkeys(("run_time_s", "lar_before", "lar", "mc_imbalance_before", "mc_imbalance"), "DOUBLE"),
    "moved_bytes": "BIGINT",
    "wall_s": "DOUBLE",
    "error": "VARCHAR",
    "guests": f"{GUEST_TYPE}[]",
    "baseline": "VARCHAR",
}
"""The columns of SweepRow in Parquet, as DuckDB names their types."""
