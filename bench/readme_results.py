"""Which figures does the README tell, and from which run?  None is typed: they are rendered from one file.

    python -m bench.readme_results build/demo     # keep the demo's result and picture, and render

``bench/results/demo.json`` has the run with its record (machine, date, commit); what stands between the two
marks in README.md is made of it, and a test fails where the two differ.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.record import provenance, write_atomically

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
        "| who places | LAR, one node | LAR, read-only | MC imbalance | run time, s | moved, copied | cost |"
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
            f"| {guests['span']['mc_imbalance_after']:.2f} | {manager['emulated_run_time_s']:.1f} "
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
    """Keep a run of the demo: its result and its picture.  Raises ValueError for one that did not hold."""
    demo = json.loads((folder / "result.json").read_text())
    if demo["failed_expectations"] or demo["too_slow"]:
        raise ValueError("that run did not hold: only one that did is told")
    # Where and how busy this machine is now says nothing of the run.
    record = {key: value for key, value in provenance().items() if key not in ("command", "load")}
    write_atomically(KEPT, {"record": record | {"command": ["make", "demo"]}, "demo": demo})
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "before-after.svg", PICTURE)


def main() -> None:
    """Keep the run in the folder that is given, if one is, and render the README."""
    if len(sys.argv) > 1:
        keep(Path(sys.argv[1]))
    README.write_text(with_results(README.read_text(), json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
