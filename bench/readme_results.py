"""Which figures does the README tell, and from which run?  None is typed: they are rendered from one file.

    python -m bench.readme_results build/demo     # keep the demo's result, and render

``bench/results/demo.json`` has the run with its record (machine, date, commit); what stands between the two
marks in README.md and the picture are made of it; a test fails where the text and the file differ.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.record import write_atomically
from lab.scenario_picture import draw_result
from lab.scenario_result import ScenarioResult

CHECKOUT = Path(__file__).parents[1]
KEPT = CHECKOUT / "bench/results/demo.json"
PICTURE = CHECKOUT / "docs/pictures/before-after.svg"
README = CHECKOUT / "README.md"
BEGIN, END = "<!-- demo: rendered by make results -->", "<!-- /demo -->"
NAMES = {"none": "nobody", "kernel": "kernel balancing", "vmplace": "**vmplace**"}
MIB = 1 << 20
Result = Mapping[str, Any]


def rendered(kept: Result) -> str:
    """Return the README's table and the line below it, for one run of the demo."""
    return "\n".join((*_rows(kept["demo"]["managers"]), "", _source(kept["record"], kept["demo"])))


def _rows(managers: Mapping[str, Result]) -> Iterator[str]:
    yield (
        "| who | LAR, one node | LAR, read-only | imbalance: span, host | time, s | moved, copied | cost |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, manager in managers.items():
        guests = manager["guests"]
        home = min(guests[guest]["lar_after"] for guest in ("web", "shop"))
        # What guests at full speed lose to the running manager; the run time leaves that out.
        costs = "-" if manager["cost_share"] is None else f"{manager['cost_share']:.0%}"
        moved, copied = (round(manager[key] / MIB) for key in ("moved_bytes", "replica_bytes"))
        yield (
            f"| {NAMES[name]} | {home:.2f} | {guests['table']['lar_after']:.2f} "
            f"| {guests['span']['mc_imbalance_after']:.2f}, {manager['mc_imbalance_after']:.2f} "
            f"| {manager['emulated_run_time_s']:.1f} "
            f"| {moved}, {copied} | {costs} |"
        )


def _source(record: Result, demo: Result) -> str:
    kernel = demo["managers"]["vmplace"]["versions"]["host_kernel"].split()[0]
    return (
        f"One run, {record['date'][:10]}, commit {record['commit'][:12]}, kernel {kernel}, on a virtual\n"
        "machine of two cores. Counts are the emulator's, run times are modelled."
    )


def with_results(readme: str, kept: Result) -> str:
    """Return the README with its block rendered anew; raises ValueError where it has no block."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{rendered(kept)}\n{END}{after}"


def keep(folder: Path) -> None:
    """Keep a run of the demo.  Raises ValueError for one that did not hold."""
    demo = json.loads((folder / "result.json").read_text())
    if demo["failed_expectations"] or demo["too_slow"]:
        raise ValueError("that run did not hold: only one that did is told")
    if not (folder / "record.json").exists():
        raise ValueError(f"{folder}: of which commit that run was is not known: run make demo again")
    record = json.loads((folder / "record.json").read_text())
    write_atomically(KEPT, {"record": record | {"command": ["make", "demo"]}, "demo": demo})


def draw(kept: Result, picture: Path) -> None:
    """Draw the kept run."""
    with tempfile.TemporaryDirectory() as folder:
        svg, _ = draw_result(msgspec.convert(kept["demo"], ScenarioResult), Path(folder) / picture.stem)
        picture.write_bytes(svg.read_bytes())


def main() -> None:
    """Keep the run in the folder that is given, if one is, and render the README."""
    if len(sys.argv) > 1:
        keep(Path(sys.argv[1]))
    kept = json.loads(KEPT.read_text())
    README.write_text(with_results(README.read_text(), kept))
    draw(kept, PICTURE)


if __name__ == "__main__":
    main()
