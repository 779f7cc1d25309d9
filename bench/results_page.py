"""Which figures does docs/results.md show, and from which runs?  None is typed: they are rendered.

    python -m bench.results_page [build/bench/NAME.json...]     # keep these records, and render

``demo.json`` is the demo (readme_results.py keeps it); every other file is what a bench wrote with ``--out``
(record.py).  ``make results`` renders; a test fails where the page and the files differ.
"""

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.demo_runs_page import rendered as rendered_runs
from bench.kvm_page import rendered as rendered_kvm
from bench.policy_page import rendered as rendered_policies
from bench.policy_page import rendered_whole
from bench.readme_results import rendered_run
from bench.record import write_atomically
from bench.rivals_page import rendered as rendered_rivals
from bench.scenario_runs_page import rendered as rendered_scenarios

CHECKOUT = Path(__file__).parents[1]
RESULTS = CHECKOUT / "bench/results"
PAGE = CHECKOUT / "docs/results.md"
Record = Mapping[str, Any]
HEAD = """<!-- Rendered by make results from bench/results/*.json; change nothing here. -->

# Results

Every figure on this page is rendered from a file in `bench/results/`, which a `make` target or a
bench wrote: with machine, date and commit, and with control, runs and spread where it has them. A
figure is of the commit that is named with it, not of this checkout. Where its record says so, a
section ends with what changed. Figures of things that are gone are in the
[design notes](design/index.md), as history.

* *counted*: by the emulator's meter, exactly. *modelled*: by a model of the memory system.
  *measured*: by a clock of the machine named.
* A spread is the least and the largest of the runs.

## What was not measured

* Nothing was measured on a real host with several sockets. The lab's hosts are emulated.
* Guest run times are modelled. They say which placement is better, not how fast a real guest is.
* No Intel host, and no AMD host with IBS, was at hand: both are emulated.
* Power, network and storage were not looked at.
"""
BENCHES = {
    "decision": ("What a plan costs", "measured, CPU seconds unless a name says otherwise", "bench_decision"),
    "many": ("What 200 guests cost", "measured, CPU seconds unless a name says otherwise", "bench_many 200"),
    "control": ("How long `status` takes with 200 guests", "measured", "bench_control 200"),
    "pages": ("What page statistics cost", "measured", "bench_pages"),
    "places": ("What looking up places of pages costs", "measured, CPU ms for each GiB", "bench_places 4"),
    "sampling": ("What sampling costs", "measured", "bench_sampling 16"),
    "hook": ("How long libvirt waits for the hook", "measured", "bench_hook 1000"),
    "migration": ("Live migrations", "counted by libvirt and the meter in the lab", "bench_migration"),
    "arrivals": ("Arrivals of live migrations", "counted by the meter in the lab", "bench_migration"),
    "kvm": ("The patched KVM beside stock mechanisms", "counted and measured in the lab", "bench_kvm"),
    "ibs": ("Samples of IBS beside exact counts", "counted in the lab", "bench_ibs"),
    "sources": ("Share of the oracle's gain, by source", "modelled", "bench_sources"),
    "hostile": ("Programs that mislead on purpose", "modelled", "bench_hostile"),
}
OTHERS = {
    "demo": ("The demo", "make demo"),
    "demo_runs": ("Further runs of the demo", "make demo-log"),
    "policy": ("All policies on recorded traces", "make bench-policy"),
    "policy_whole": ("The agent on whole traces", "python -m bench.bench_policy --windows 0 --alone"),
    "rivals": ("The demo with all rivals", "make demo-full"),
    "scenario_runs": ("The lab's scenarios", "make scenario-log"),
}
"""What writes files of another shape, and how it is run."""
NOTES = {
    "demo_runs": "demo-claims.md",
    "hostile": "joint-plan.md",
    "ibs": "ibs-samples.md",
    "kvm": "kvm-costs.md",
    "policy": "policy-bench.md",
    "rivals": "demo-claims.md",
    "sources": "source-value.md",
}
"""Design notes with measurements of earlier trees."""
NOT_KEPT = """## What no kept run shows

There are benches for these, but no file of a run, so this page has no figure of them. Figures of
earlier trees, with their commits, are history and stand in the notes.

| what | kind | run it | earlier trees |
|---|---|---|---|"""


OF_RUNS = {"median", "least", "largest", "all"}
CHANGED_SINCE: dict[tuple[str, str], str] = {
    (
        "decision",
        "e98f16eb22ea",
    ): "an Intel Xeon with two CPUs took 1.3 to 1.9 times as long (1 December 2026): 0.27 s of"
    " many guests, 1.1 s of sampled ones",
    (
        "many",
        "fbfb41d4a4c2",
    ): "figures of plans were of policies that are gone, and were taken out; the plan of today's policy has"
    " none yet",
    (
        "policy",
        "b29355f1a801",
    ): "rows of vmplace's plan show three things not yet. A guest's loss counts only against what all guests"
    " would have had together (1f774ce6). vCPUs that float give way to tied ones (16011731). A protected"
    " guest's bound holds from the start. The agent knows latencies, waits and shared links, as a"
    " calibration finds them by the simulator's model; before 30 November 2026 it knew bandwidths alone",
    (
        "rivals",
        "10ca9e9a2e27",
    ): "kernel balancing gets as long as vmplace; here it got 20.8 s beside 35.9 in restart, and 26.2 beside"
    " 40.9 in consolidated. Since 59a32c0d the meter counts traffic by each CPU's emulated time; before,"
    " queues came out too short on a slow machine",
    (
        "status",
        "c3071efec431",
    ): "`why` prints what was expected of a decision, other ways and what came of it; it no longer says that"
    " a guest which stays rests well",
}
"""What a reader of old figures must know, by file and commit: the next run that is kept ends it."""


def page(results: Path = RESULTS) -> str:
    """Return the page, for the files that are kept."""
    parts = [HEAD, *_not_kept(results)]
    for path in sorted(results.glob("*.json"), key=lambda one: (not one.stem.startswith("demo"), one.stem)):
        kept = json.loads(path.read_text())
        parts.append("\n".join(SECTIONS.get(path.stem, _bench)(path.stem, kept)))
    return "\n".join(parts).rstrip("\n") + "\n"


def _not_kept(results: Path) -> Iterator[str]:
    """Yield one section about the benches whose file is missing, if one is."""
    benches = {name: (title, kind, f"python -m bench.{run}") for name, (title, kind, run) in BENCHES.items()}
    others = {name: (title, "modelled", run) for name, (title, run) in OTHERS.items()}
    rows = [
        f"| {title} | {kind} | `{run}` | {f'[note](design/{NOTES[name]})' if name in NOTES else '-'} |"
        for name, (title, kind, run) in sorted((benches | others).items())
        if not (results / f"{name}.json").exists()
    ]
    if rows:
        yield "\n".join((NOT_KEPT, *rows)) + "\n"


def _demo(name: str, kept: Record) -> Iterator[str]:
    yield "## The demo\n"
    yield (
        "Scenario `restart` in the emulated host ([what is claimed](scenarios.md#the-demo)). LAR is of\n"
        "guests that fit on one node, and of a table that all nodes only read; MC imbalance is of memory\n"
        "that all nodes write; cost is what guests lose to the manager; moved and copied are MiB.\n"
    )
    yield rendered_run(kept) + "\n"
    yield "Pages of guests found wrong in the full check: " + ", ".join(
        f"{name} {sum(guest['bad_pages'] for guest in manager['guests'].values())}"
        for name, manager in kept["demo"]["managers"].items()
    ) + ".\n"  # fmt: skip
    yield from _provenance(name, kept["record"])


def _runs(_name: str, kept: Record) -> Iterator[str]:
    yield from rendered_runs(kept)
    yield f"Machine: {_machine(kept['record'])}.\n"


def _scenarios(_name: str, kept: Record) -> Iterator[str]:
    yield from rendered_scenarios(kept)
    yield f"Machine: {_machine(kept['record'])}.\n"


def _bench(name: str, kept: Record) -> Iterator[str]:
    title, kind, _ = BENCHES.get(name, (name, "measured", ""))
    yield f"## {title}\n"
    yield f"*{kind}*, by\n`python -m bench.{_arguments(kept['record'])}`.\nIt asks:\n"
    yield from _explained(BENCHES[name][2].split()[0])
    for part, reported in kept.get("parts", {}).items():
        runs = "one run" if reported["runs"] == 1 else f"median of {reported['runs']} runs"
        yield f"### {part.replace('_', ' ')}\n\n{runs[0].upper()}{runs[1:]}.\n"
        yield "| figure | value | spread |\n|---|---|---|"
        spread = dict(_leaves(reported.get("spread", {})))
        for key, value in _leaves(reported["figures"]):
            if isinstance(value, Mapping):
                middle = value["median"]
                low_high = (value["least"], value["largest"]) if len(value["all"]) > 1 else None
            else:
                middle, low_high = value, spread.get(key)
            shown_spread = f"{_number(low_high[0])} to {_number(low_high[1])}" if low_high else "-"
            yield f"| {key} | {_number(middle)} | {shown_spread} |"
        yield ""
    yield from _provenance(name, kept["record"])


def _arguments(record: Record) -> str:
    """Return the bench that was run, with its arguments, as it is called."""
    bench, *arguments = record["command"]
    if "--out" in arguments:
        arguments = arguments[: arguments.index("--out")]
    return " ".join((Path(bench).stem, *arguments))


def _explained(bench: str) -> Iterator[str]:
    """Yield what a bench asks, as a quote, and what its figures are, from its docstring; no code."""
    source = CHECKOUT / "bench" / f"{bench}.py"
    reported = ast.get_docstring(ast.parse(source.read_text())) if source.exists() else None
    question, *rest = (reported or bench).split("\n\n")
    yield textwrap.fill(question, 98, initial_indent="> ", subsequent_indent="> ") + "\n"
    for paragraph in rest:
        if not paragraph.startswith(" "):
            # Figures have the names that the tables give them.
            plain = re.sub(r"``(.+?)``", lambda match: f"*{match[1].replace('_', ' ')}*", paragraph)
            yield textwrap.fill(" ".join(plain.split()), 98, break_on_hyphens=False) + "\n"


def _leaves(figures: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each figure with the names on the way to it; a list of two is a spread, OF_RUNS one figure."""
    if isinstance(figures, Mapping) and not figures.keys() >= OF_RUNS:
        for name, below in figures.items():
            yield from _leaves(below, f"{above}, {name}" if above else str(name).replace("_", " "))
    elif (
        isinstance(figures, Mapping)
        or not isinstance(figures, list)
        or all(isinstance(one, int | float) for one in figures)
    ):
        yield above.replace("_", " "), figures


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _provenance(name: str, record: Record) -> Iterator[str]:
    commit = (record["commit"] or "unknown")[:12]
    load = f" Load: {record['load'][0]:.1f}." if record.get("load") else ""
    yield f"Machine: {_machine(record)}."
    yield f"Date: {record['date'][:10]}. Commit: {commit}.{load}"
    if changed := CHANGED_SINCE.get((name, commit)):
        yield textwrap.fill(f"Changed since: {changed}.", 98, break_on_hyphens=False)
    yield ""


def _machine(record: Record) -> str:
    machine = record["machine"]
    return f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['memory']}, Python {machine['python']}"


def _status(name: str, kept: Record) -> Iterator[str]:
    """Yield what commands printed, as they did."""
    yield "## What `vmplace status` prints\n"
    yield "By `make demo-status`: of the demo's guests, in the emulated host, while the agent was at work.\n"
    for words, text in kept["printed"].items():
        yield f"    $ vmplace {words}"
        yield textwrap.indent(text, "    ", lambda line: True).rstrip(" ")
    yield from _provenance(name, kept["record"])


def _policies(name: str, kept: Record) -> Iterator[str]:
    yield from rendered_policies(kept)
    yield from _provenance(name, kept["record"])


def _whole(name: str, kept: Record) -> Iterator[str]:
    yield from rendered_whole(kept)
    yield from _provenance(name, kept["record"])


def _kvm(name: str, kept: Record) -> Iterator[str]:
    yield from rendered_kvm(kept)
    yield from _provenance(name, kept["record"])


def _rivals(name: str, kept: Record) -> Iterator[str]:
    yield from rendered_rivals(kept)
    yield from _provenance(name, kept["record"])


SECTIONS = {
    "demo": _demo,
    "demo_runs": _runs,
    "kvm": _kvm,
    "policy": _policies,
    "policy_whole": _whole,
    "rivals": _rivals,
    "scenario_runs": _scenarios,
    "status": _status,
}


def keep(record: Path, results: Path = RESULTS) -> None:
    """Keep what a bench wrote.  Raises ValueError where a part failed, or files were changed."""
    reported = json.loads(record.read_text())
    if (
        reported["failed"]
        or not reported["record"]["commit"]
        or reported["record"]["commit"].endswith("-dirty")
    ):
        raise ValueError(f"{record}: a part failed, or the tree was not a commit: run it again")
    # The bench and its arguments: where this machine has its files is nobody's concern.
    arguments = [Path(one).name if "/" in one else one for one in reported["record"]["command"]]
    reported["record"]["command"] = (
        arguments[: arguments.index("--out")] if "--out" in arguments else arguments
    )
    write_atomically(results / record.name, reported)


def main() -> None:
    """Keep the records that are named, and write the page anew."""
    for record in sys.argv[1:]:
        keep(Path(record))
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
