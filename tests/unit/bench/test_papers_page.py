"""The papers' figures stand beside those of the table, or a dash."""

from typing import Any

import pytest

from bench.papers_page import CLAIMS, reached, rendered


def row(
    policy: str, run_time_s: float, mix: str = "streamcluster", host: str = "carrefour-a"
) -> dict[str, Any]:
    times = {"run_time_s": run_time_s, "none_run_time_s": 2.0, "oracle_run_time_s": 1.0}
    return {"host": host, "mix": mix, "policy": policy, "guests": {"g0": {}}, **times}


def test_a_reduction_is_of_the_time_under_nobody_or_under_whom_the_claim_names() -> None:
    rows = [row("none", 2.0), row("interleave-workers", 1.6), row("bwap", 1.2)]
    claim = {"mix": "streamcluster", "policy": "bwap"}
    assert reached(rows, claim) == pytest.approx(0.4)
    assert reached(rows, {**claim, "beside": "interleave-workers"}) == pytest.approx(0.25)
    assert reached(rows, {**claim, "host": "two-node"}) is None


def test_a_share_is_of_the_oracles_mean_reduction_over_traces_alone() -> None:
    rows = [row("kmaf", 1.5), row("kmaf", 1.7, "lulesh"), row("kmaf", 2.0, "lulesh", "two-node")]
    assert reached(rows, {"policy": "kmaf"}) == pytest.approx(0.4)


def test_a_share_of_nothing_is_not_called_unrun() -> None:
    still = row("kmaf", 2.0) | {"oracle_run_time_s": 2.0}
    (line,) = [one for one in rendered([still]) if "kMAF, section 5.1" in one]
    assert "| nothing to gain |" in line


def test_each_claim_is_a_line_whatever_was_run() -> None:
    page = "\n".join(rendered([]))
    assert all(f"| {claim['source']} | {claim['what']} |" in page for claim in CLAIMS)
    assert page.count("| not run |") == len(CLAIMS)
