"""Why is a baseline faster than vmplace in a row?  What can be said from the figures of the rows alone.

Reasons are given in this order; a row with none of them is ``unexplained``, and ought to be looked into.
"""

from collections.abc import Iterator
from typing import Any

NOISE = 0.01
OURS = ("vmplace", "agent:auto", "agent:interleave", "oracle", "static-oracle")
UNTOUCHED = "none"
NEW_PAGES = ("interleave-all", "interleave-workers")
MOVES_VCPUS = ("kmaf", "numad-model")


def beaten(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, for each row that is faster than vmplace with full information by more than NOISE, by how much
    and why.
    """
    best = {
        (one["host"], one["mix"]): one
        for one in rows
        if (one["policy"], one["source"]) == ("vmplace", "full")
    }
    for one in rows:
        mine = best.get((one["host"], one["mix"]))
        if mine is None or one["policy"] in ("vmplace", "oracle", "static-oracle"):
            continue
        lead = 1 - one["run_time_s"] / mine["run_time_s"]
        if lead > NOISE:
            names = {key: one[key] for key in ("host", "mix", "policy", "source")}
            yield {**names, "lead": lead, "reason": reason(one, mine)}


def rivals_ahead(rows: list[dict[str, Any]], policy: str, source: str) -> Iterator[dict[str, Any]]:
    """Yield, for each baseline that is faster in a row than ``policy`` by more than NOISE, by how much.

    To be slower than doing nothing is no baseline's merit: of that the gate tells.
    """
    mine = {
        (one["host"], one["mix"]): one["run_time_s"]
        for one in rows
        if (one["policy"], one["source"]) == (policy, source)
    }
    for one in rows:
        own = mine.get((one["host"], one["mix"]))
        is_baseline = one["policy"] not in (*OURS, UNTOUCHED)
        if own is not None and is_baseline and one["run_time_s"] < own * (1 - NOISE):
            names = {key: one[key] for key in ("host", "mix", "policy", "source")}
            yield {**names, "lead": 1 - one["run_time_s"] / own}


def reason(row: dict[str, Any], mine: dict[str, Any]) -> str:
    """Return why ``row`` may be faster than vmplace's row ``mine``."""
    if row["policy"] in NEW_PAGES:
        return "places pages when they are first touched, at no price and before anything was seen of them"
    if row["policy"] in MOVES_VCPUS:
        return "moves vCPUs to other nodes than vmplace's plan does"
    if row["run_time_s"] < mine["oracle_run_time_s"] * (1 - NOISE):
        return "is faster than the oracle: the mix's guests met at other moments"
    return "unexplained"
