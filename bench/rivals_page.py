"""How did all rivals do in one run of each scenario?  Keeps what ``make demo-full`` wrote, and shows it.

    python -m bench.rivals_page build/demo-full     # keep it as bench/results/rivals.json

A claim that did not hold is kept and shown like one that did.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.record import write_atomically

KEPT = Path(__file__).parent / "results/rivals.json"
STORIES = {
    "restart": "Guests whose memory lies on other nodes than the ones they run on",
    "consolidated": "Guests of several owners that queue for the memory of one node",
    "busy": "Two guests that numad looks at, far from their memory",
}
NAMES = {
    "none": "nobody",
    "kernel": "kernel balancing",
    "interleave": "interleaving",
    "numad": "numad",
    "numad-advice": "advice of `numad -w`",
    "vmplace-stock": "vmplace, stock kernel",
    "vmplace": "**vmplace**",
}
MIB = 1 << 20
Result = Mapping[str, Any]


def rendered(kept: Result) -> Iterator[str]:
    """Yield the section's lines."""
    yield "## The demo with all rivals\n"
    yield "*counted* by the emulator's meter; times *modelled*, costs *measured* in the emulated host.\n"
    yield "One run, by `make demo-full`.\n"
    for name, result in kept["scenarios"].items():
        yield f"### Scenario {name}\n\n{STORIES[name]}.\n"
        yield from _table(result)
        yield from _verdict(result)
        yield f"The claims are in `lab/scenarios/{name}.toml`.\n"


def _table(result: Result) -> Iterator[str]:
    guests = list(next(iter(result["managers"].values()))["guests"])
    columns = [
        "who",
        "time, s",
        "host's imbalance",
        *(f"LAR {one}" for one in guests),
        "moved, copied",
        "cost",
    ]
    yield f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    for name, manager in result["managers"].items():
        lars = [f"{manager['guests'][one]['lar_after']:.2f}" for one in guests]
        sizes = ", ".join(f"{manager[key] / MIB:.0f}" for key in ("moved_bytes", "replica_bytes"))
        cost = "-" if manager["cost_share"] is None else f"{manager['cost_share']:.0%}"
        time_s = manager["emulated_run_time_s"]
        seconds, imbalance = (
            "-" if time_s is None else f"{time_s:.1f}",
            f"{manager['mc_imbalance_after']:.2f}",
        )
        cells = [NAMES[name], seconds, imbalance, *lars, sizes, cost]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _verdict(result: Result) -> Iterator[str]:
    for name, manager in result["managers"].items():
        guests = manager["guests"].items()
        if tied := [guest for guest, one in guests if one["vcpu_nids"] != one["vcpu_nids_after"]]:
            yield f"* {NAMES[name]}: vCPUs of {', '.join(tied)} run on other nodes than before."
        yield from (f"* {NAMES[name]}: {note}." for note in manager["notes"])
    yield from (f"* **Does not hold**: {claim}." for claim in result["failed_expectations"])
    yield from (f"* Undecided: {claim}." for claim in result["undecided"])
    if not result["failed_expectations"] and not result["undecided"]:
        yield "* All claims hold."
    yield ""


def keep(folder: Path, kept: Path = KEPT) -> None:
    """Keep a run.

    Raises ValueError where a scenario is missing or came to no verdict, or the tree was not a commit.
    """
    files = {name: folder / ("result.json" if name == "restart" else f"{name}.json") for name in STORIES}
    record = json.loads((folder / "record.json").read_text())
    missing = [name for name, path in files.items() if not path.exists()]
    if missing or not record["commit"] or record["commit"].endswith("-dirty"):
        raise ValueError(f"{folder}: not a whole run of a commit: {', '.join(missing) or record['commit']}")
    scenarios = {name: json.loads(path.read_text()) for name, path in files.items()}
    if slow := [name for name, one in scenarios.items() if one["too_slow"]]:
        raise ValueError(
            f"{folder}: the machine was too slow for {', '.join(slow)}: run make demo-full again"
        )
    write_atomically(kept, {"record": record | {"command": ["make", "demo-full"]}, "scenarios": scenarios})


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
