"""How is the table of policies shown in docs/results.md?"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from bench.policy_gate import HARM, SHIPS, harmed
from bench.policy_summary import mean_share, share_of_mean_gain

Row = dict[str, Any]
KINDS = {"single": "traces alone", "mix": "mixes of guests", "hostile": "programs that mislead on purpose"}


def kind_of(row: Row) -> str:
    """Return whether a row is of a trace alone, of a mix, or of a made-up program."""
    if row["mix"].startswith("hostile-"):
        return "hostile"
    return "mix" if len(row["guests"]) > 1 else "single"


def _worst(row: Mapping[str, Any]) -> str:
    return f"{row['worst_guest_slowdown']:+.1%}"


def _beside_balancing(rows: list[Row], bad: Mapping[str, Any]) -> str:
    """Return what kernel balancing alone does in that row: without nodes to see, the agent leaves it on."""
    for one in rows:
        if one["policy"] == "kernel-balancing-model" and (one["host"], one["mix"]) == (
            bad["host"],
            bad["mix"],
        ):
            return f"; kernel balancing alone: {_worst(one)}"
    return ""


def rendered(kept: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section's lines."""
    rows: list[Row] = kept["rows"]
    yield "## All policies on recorded traces\n"
    yield "*modelled*, by `make bench-policy` ([how](simulate.md)). A share is of the oracle's gain over"
    yield "doing nothing; *of the mean gain*: of the oracle's mean gain. No row counts for more than 1."
    yield (
        textwrap.fill(f"{kept['sampled'][0].upper()}{kept['sampled'][1:]}.", 98, break_on_hyphens=False)
        + "\n"
    )
    for kind, words in KINDS.items():
        some = [one for one in rows if kind_of(one) == kind]
        if some:
            yield f"### {words[0].upper()}{words[1:]}\n"
            yield from _table(some)
            yield ""
    bad = list(harmed(rows))
    ours = [one for one in rows if one["policy"] == SHIPS]
    held = "The gate holds" if not bad else "**The gate does not hold**"
    yield f"{held}: in {len(bad)} of {len(ours)} rows of `{SHIPS}` a guest is more than {HARM:.0%} slower"
    yield "than with its memory untouched" + ("." if not bad else ":\n")
    for one in bad:
        yield f"* {one['host']}, {one['mix']}, `{one['source']}`: {_worst(one)}{_beside_balancing(rows, one)}"
    yield ""


def _table(rows: list[Row]) -> Iterator[str]:
    yield "| policy | source | rows | mean share | of the mean gain | mean time | worst guest |"
    yield "|---|---|---|---|---|---|---|"
    for policy, source in dict.fromkeys((one["policy"], one["source"]) for one in rows):
        mine = [one for one in rows if (one["policy"], one["source"]) == (policy, source)]
        shares = (mean_share(mine, "oracle_share"), share_of_mean_gain(mine))
        shown = " | ".join("-" if one is None else f"{one:.2f}" for one in shares)
        time = sum(one["run_time_s"] / one["none_run_time_s"] - 1 for one in mine) / len(mine)
        worst = max(one["worst_guest_slowdown"] for one in mine)
        yield f"| {policy} | {source} | {len(mine)} | {shown} | {time:+.1%} | {worst:+.1%} |"
