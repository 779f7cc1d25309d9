"""Do the baselines reach here what their papers measured?  The table of docs/results.md, from papers.toml.

Kernel balancing and numad have no paper: nobody published what they should gain.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.policy_summary import share_of_mean_gain

Row = dict[str, Any]
Claim = Mapping[str, str | float]
CLAIMS: list[Claim] = tomllib.loads((Path(__file__).parent / "papers.toml").read_text())["claim"]
ALONE_ON = "carrefour-a"


def rendered(rows: list[Row]) -> Iterator[str]:
    """Yield the section's lines: what was published, what the table has, and why they differ."""
    yield "### The baselines beside their own papers\n"
    yield "Reduction of run time, or what the second column says. Published figures are of real machines.\n"
    yield "| paper | figure | published | here | why |"
    yield "|---|---|---|---|---|"
    for claim in CLAIMS:
        cells = (
            claim["source"],
            claim["what"],
            _shown(claim.get("published")),
            _here(rows, claim),
            claim["why"],
        )
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""


def reached(rows: list[Row], claim: Claim) -> float | None:
    """Return what the table has of a claim, None if it was not run."""
    if "mix" not in claim:
        return share_of_mean_gain(_alone(rows, claim))
    of_mix = {
        one["policy"]: one
        for one in rows
        if (one["host"], one["mix"]) == (claim.get("host", ALONE_ON), claim["mix"])
    }
    mine, beside = (of_mix.get(str(claim.get(key, "none"))) for key in ("policy", "beside"))
    if mine is None or beside is None:
        return None
    return 1 - float(mine["run_time_s"]) / float(beside["run_time_s"])


def _alone(rows: list[Row], claim: Claim) -> list[Row]:
    """Return the rows of a claim's policy on recorded traces alone, with small pages."""
    alone = [one for one in rows if one["host"] == ALONE_ON and len(one["guests"]) == 1]
    alone = [one for one in alone if not one["mix"].endswith(" pages)")]
    return [one for one in alone if one["policy"] == claim["policy"] and "hostile" not in one["mix"]]


def _here(rows: list[Row], claim: Claim) -> str:
    """Return what the table has of a claim, and if it has nothing, whether that is for want of a run."""
    found = reached(rows, claim)
    if found is None:
        return "nothing to gain" if "mix" not in claim and _alone(rows, claim) else "not run"
    return _shown(found)


def _shown(share: float | str | None) -> str:
    return "-" if share is None else f"{share:.0%}"
