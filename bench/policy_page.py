"""How is the table of policies shown in docs/results.md?"""

import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from bench.papers_page import ALONE_ON
from bench.papers_page import rendered as rendered_papers
from bench.policy_gate import HARM, SHIPS, harmed, judged, protected_harmed
from bench.policy_notes import rivals_ahead
from bench.policy_summary import is_huge, mean_share, median_share, share_of_mean_gain
from vmplace.simulate.guest_option import PROTECTED_BOUND

Row = dict[str, Any]
KINDS = {
    "tuning": "traces alone, on which constants were chosen",
    "judging": "traces alone, which judge",
    "mix": "mixes of guests",
    "huge-tuning": "traces with pages of 2 MiB and of 64 KiB, on whose small pages constants were chosen",
    "huge-judging": "traces with pages of 2 MiB and of 64 KiB, which judge",
    "hostile": "programs that mislead on purpose",
}
PLAN = "vmplace"
HEADS = (
    "policy",
    "source",
    "rows",
    "with a share",
    "mean share",
    "median",
    "of the mean gain",
    "mean time",
    "time lost",
    "worst guest",
)
PROGRAMS = "4182197000"
SAME_PROGRAMS = (
    "These made-up programs were drawn on 2026-11-27 and are the same in each table since, so that tables can"
    " be compared. Of those drawn before them, one was worse: program 3635316000, in which a guest lost 7.3 %"
    " with source `idle`, and 7.2 % with kernel balancing alone (commit 843a711c)."
)
SPLIT = tomllib.loads((Path(__file__).parent / "traces.toml").read_text())


def kind_of(row: Mapping[str, Any]) -> str:
    """Return whether a row is of a trace alone (which half, or huge pages), a mix, or a made-up program."""
    if row["mix"].startswith("hostile-"):
        return "hostile"
    if is_huge(row):
        return f"huge-{half_of(row['mix'].partition(' (')[0])}"
    if len(row["guests"]) > 1 or row["host"] != ALONE_ON:
        # A trace alone on another host was put there to crowd one controller, as guests of a mix do.
        return "mix"
    return half_of(row["mix"])


def half_of(trace: str) -> str:
    """Return whether a trace judges, or constants may be chosen on it."""
    return "judging" if trace in SPLIT["judging"] else "tuning"


def _worst(row: Mapping[str, Any]) -> str:
    return f"{row['worst_guest_slowdown']:+.1%}"


def balancing_alone(rows: Sequence[Mapping[str, Any]], bad: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the row of kernel balancing alone: without nodes to see, the agent leaves it on."""
    same = (one for one in rows if one["policy"] == "kernel-balancing-model")
    return next((one for one in same if (one["host"], one["mix"]) == (bad["host"], bad["mix"])), None)


def _beside_balancing(rows: list[Row], bad: Mapping[str, Any]) -> str:
    alone = balancing_alone(rows, bad)
    return f"; kernel balancing alone: {_worst(alone)}" if alone else ""


def rendered(kept: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section's lines."""
    rows: list[Row] = kept["rows"]
    yield "## All policies on recorded traces\n"
    yield "*modelled*, by `make bench-policy` ([how](simulate.md)). A share is of the oracle's gain over"
    yield "doing nothing, where that is 1 % or more (*with a share*: in how many rows), and counts for 1 at"
    yield "most and -1 at least. *Of the mean gain*: of the oracle's mean gain, each row whole; the oracle"
    yield "moves no vCPUs, so policies that do can gain more than it in a row. *Mean time* is beside doing"
    yield "nothing, and *time lost* the mean over all rows of what those that got slower lost. Each row is"
    yield "one seed. Each mix has a trace on which constants were chosen, so mixes judge only in part.\n"
    yield from map(_filled, _sampled(kept))
    yield from _tables(rows)
    yield from rendered_papers(rows)
    yield from _rivals(rows)
    yield from _gate(rows, kept.get("unjudged", ()))


def rendered_whole(kept: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section of the table in which traces run to their end."""
    yield "## The agent on whole traces\n"
    yield "*modelled*, by `python -m bench.bench_policy --windows 0 --alone`, read as the table above. There"
    yield "traces end with their 14th window at the latest, 7 to 80 s of the agent's time after they began;"
    yield "here they run to their end, of 13 to 44 windows. A guest is known for longer, and what it paid for"
    yield "moves comes back for longer. Mixes would take hours.\n"
    yield from map(_filled, _sampled(kept))
    yield from _tables(kept["rows"], "whole traces: ")
    yield from _gate(kept["rows"], kept.get("unjudged", ()))


def _tables(rows: list[Row], begins: str = "") -> Iterator[str]:
    """Yield a table of each kind of rows, under a heading that begins so."""
    for kind, words in KINDS.items():
        if some := [one for one in rows if kind_of(one) == kind]:
            heading = f"{begins}{words}"
            yield f"### {heading[0].upper()}{heading[1:]}\n"
            yield from _table(some)
            yield ""


def _sampled(kept: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was run, by which command, and which rows later."""
    record = kept.get("record", {})
    yield f"{kept['sampled'][0].upper()}{kept['sampled'][1:]}."
    words = record.get("command", ())
    if options := re.findall(r"--(?!cache|traces)\S+(?: [^-]\S*)?", " ".join(words)):
        # Each is one word, which no line divides.
        given = ", ".join(f"`{one.replace(' ', '=')}`" for one in options)
        yield f"The command was `make bench-policy`'s last, with {given}."
    if PROGRAMS in words:
        yield SAME_PROGRAMS
    for one in record.get("anew", ()):
        policies, day, commit = ", ".join(f"`{name}`" for name in one["policies"]), one["date"], one["commit"]
        yield f"{one['rows']} rows of {policies} were run anew on {day[:10]}, commit {commit[:12]}."


def _filled(words: str) -> str:
    return textwrap.fill(words, 98, break_on_hyphens=False) + "\n"


def _gate(rows: list[Row], unjudged: Sequence[str]) -> Iterator[str]:
    """Yield whether what ships is harmless, and each row in which it is not."""
    bad, guarded = list(harmed(rows)), list(protected_harmed(rows))
    ours = judged(rows)
    if not ours:
        yield f"**The gate judged nothing**: `{SHIPS}` was run on no recorded trace.\n"
        return
    for words in unjudged:
        yield textwrap.fill(f"**Not all was judged**: {words}.", 98) + "\n"
    held = "**The gate does not hold**" if bad or guarded or unjudged else "The gate holds"
    yield f"{held}: in {len(bad)} of {len(ours)} rows of `{SHIPS}` a guest is more than {HARM:.0%} slower"
    yield "than with its memory untouched" + ("." if not bad else ":\n")
    for one in bad:
        words = f"{one['host']}, {one['mix']}, `{one['source']}`: {_worst(one)}"
        yield item(f"{words}{_beside_balancing(rows, one)}")
    yield ""
    protected = [one for one in ours if one.get("worst_protected_slowdown") is not None]
    yield f"In {len(guarded)} of {len(protected)} rows with a protected guest such a guest is more than"
    yield f"{PROTECTED_BOUND:.1%} slower" + ("." if not guarded else ":\n")
    for one in guarded:
        yield item(f"{one['host']}, {one['mix']}, `{one['source']}`: {one['worst_protected_slowdown']:+.1%}")
    yield ""


def _rivals(rows: list[Row]) -> Iterator[str]:
    """Yield in which rows a baseline is faster than the simulated plan, or than the agent."""
    yield "### Baselines that are more than 1 % faster\n"
    for policy, source in dict.fromkeys((one["policy"], one["source"]) for one in rows):
        if policy not in (PLAN, SHIPS):
            continue
        ahead = sorted(rivals_ahead(rows, policy, source), key=lambda one: -one["lead"])
        yield f"Than `{policy}`, `{source}`, in {len(ahead)} rows{':' if ahead else '.'}\n"
        for one in ahead:
            yield item(f"{one['host']}, {one['mix']}: {one['policy']} by {one['lead']:.1%}")
        if ahead:
            yield ""


def item(words: str) -> str:
    """Return an item of a list, no line of it longer than the page's other text."""
    return textwrap.fill(words, 98, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)


def _table(rows: list[Row]) -> Iterator[str]:
    yield f"| {' | '.join(HEADS)} |"
    yield "|---" * len(HEADS) + "|"
    for policy, source in dict.fromkeys((one["policy"], one["source"]) for one in rows):
        mine = [one for one in rows if (one["policy"], one["source"]) == (policy, source)]
        yield f"| {' | '.join((policy, source, *_cells(mine)))} |"


def _cells(rows: list[Row]) -> Iterator[str]:
    yield str(len(rows))
    yield str(sum(one["oracle_share"] is not None for one in rows))
    shares = mean_share(rows, "oracle_share"), median_share(rows, "oracle_share"), share_of_mean_gain(rows)
    yield from ("-" if one is None else f"{one:.2f}" for one in shares)
    times = [one["run_time_s"] / one["none_run_time_s"] - 1 for one in rows]
    yield f"{mean(times):+.1%}"
    # Unlike max(), these pass over nothing that is no number.
    yield f"{float(np.maximum(times, 0.0).mean()):.2%}"
    yield f"{float(np.max([one['worst_guest_slowdown'] for one in rows])):+.1%}"
