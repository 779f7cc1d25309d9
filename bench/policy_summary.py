"""What does the table of policies come to?  For a person: means, worst cases, and who beats vmplace where."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bench.policy_notes import beaten

Row = dict[str, Any]
"""One of the table's rows; the shares are None where there is nothing to share."""


def is_huge(row: Mapping[str, Any]) -> bool:
    """Tell whether a row is of a trace with pages beyond 4 KiB, which have means of their own."""
    return str(row["mix"]).endswith(" pages)")


def mean_share(rows: list[Row], key: str) -> float | None:
    """Return the mean of a share over the rows that have one."""
    shares = _shares(rows, key)
    return float(np.mean(shares)) if shares else None


def median_share(rows: list[Row], key: str) -> float | None:
    """Return the median of a share over the rows that have one."""
    shares = _shares(rows, key)
    return float(np.median(shares)) if shares else None


def _shares(rows: list[Row], key: str) -> list[float]:
    # The oracle moves no vCPUs: who does may gain more, but makes up for no other row with it.  Nor does one
    # row in which there was little to gain, and much was lost, stand for all others.
    return [min(max(one[key], -1.0), 1.0) for one in rows if one[key] is not None]


def share_of_mean_gain(rows: list[Row]) -> float | None:
    """Return the mean gain over ``none`` as a share of the oracle's mean gain.

    As kMAF (PACT'14, section 5.1) states its own: 13.8 of 15.3 %.  Each row counts whole, gain or loss.
    """
    untouched, mine, best = (
        np.array([one[key] for one in rows]) for key in ("none_run_time_s", "run_time_s", "oracle_run_time_s")
    )
    if not len(rows) or (best >= untouched).all():
        return None
    return float((1 - mine / untouched).sum() / (1 - best / untouched).sum())


def summary(rows: list[Row], runs: Iterable[tuple[str, str]], left_out: Row | None) -> str:
    """Return the tables for a person: per policy, and each row of vmplace that a baseline beats.

    Traces with huge pages are in no line of a policy: they are traces that are in it already.
    """
    columns = ("mean share", "of mean gain", "of online", "of static", "worst guest", "protected")
    heads = "".join(f"{one:>13}" for one in columns)
    lines = [f"{'policy':24}{'source':10}{heads}{'rows':>6}"]
    usual = [one for one in rows if not is_huge(one)]
    lines += [_policy_line(usual, policy, source) for policy, source in runs]
    dearer = [v for one in usual if (v := one.get("oracle_break_even_share")) is not None]
    if dearer:
        lines += [f"{'oracle, each price twice':34}{np.mean(dearer):>13.3f}"]
    lines += ["", "rows where a baseline is more than 1 % faster than vmplace with full information:"]
    lines += [
        f"  {one['host']} {one['mix']}: {one['policy']} by {one['lead']:.1%}: {one['reason']}"
        for one in beaten(rows)
    ] or ["none"]
    return "\n".join(lines + (_left_out_lines(left_out["rows"]) if left_out else []))


def _policy_line(rows: list[Row], policy: str, source: str) -> str:
    mine = [one for one in rows if (one["policy"], one["source"]) == (policy, source)]
    share, *others = (mean_share(mine, key) for key in ("oracle_share", "online_share", "static_share"))
    means = (share, share_of_mean_gain(mine), *others)
    reported = "".join(f"{'-' if one is None else f'{one:.3f}':>13}" for one in means)
    guarded = [v for one in mine if (v := one["worst_protected_slowdown"]) is not None]
    slower = [one["worst_guest_slowdown"] for one in mine], guarded
    worst, shown = (f"{np.max(some):+.2%}" if some else "-" for some in slower)
    return f"{policy:24}{source:10}{reported}{worst:>13}{shown:>13}{len(mine):>6}"


def _left_out_lines(rows: list[Row]) -> list[str]:
    heads = ["", f"{'left out':20}{'chosen ms':>10}{'gain':>8}{'own best':>10}"]
    return heads + [
        f"{one['left_out']:20}{one['half_life_ms']:>10.0f}"
        f"{one['gain_with_choice_of_others']:>8.1%}{one['gain_with_own_best']:>10.1%}"
        for one in rows
    ]
