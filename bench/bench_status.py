"""What do ``vmplace status`` and ``vmplace why`` print of the demo's guests, once all is placed?

Printed in the emulated host, on 80 columns, for docs/results.md.

    python -m bench.bench_status --out build/bench/status.json
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.record import provenance, write_atomically
from lab.errors import LabError
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_ask import ask_all
from lab.scenario_managers import MANAGERS
from lab.scenario_prepare import prepare_stage
from lab.scenario_probe import read_progress
from lab.scenario_speed import declared_rates, measured_speed
from vmplace.model.described_memory import MIB
from vmplace.topology.guest import PAGE_BYTES

SCENARIO, GUEST = "restart", "table"
ASKED = ("status", f"why {GUEST}")
POLL_S = 3.0
QUIET_S = 12.0
"""For so long less than FEW pages move before it is asked; it plans every few seconds on emulated CPUs."""
LONGEST_S = 180.0
FEW = 3 * MIB // PAGE_BYTES
TIMEOUT_S = 60.0


def await_rest(host: LabHost) -> None:
    """Wait until next to nothing moves; raises LabError if that does not come."""
    has_moved, began = False, time.monotonic()
    quiet_since, before = began, read_progress(host)
    while time.monotonic() < began + LONGEST_S:
        time.sleep(POLL_S)
        now = read_progress(host)
        moved, before = sum(abs(a - b) for a, b in zip(now, before, strict=True)), now
        if moved > FEW:
            has_moved, quiet_since = True, time.monotonic()
        elif has_moved and time.monotonic() >= quiet_since + QUIET_S:
            return
    raise LabError(f"the agent had not come to rest after {LONGEST_S:.0f} s")


def printed(progress: Progress) -> dict[str, str]:
    """Return what each command prints, by its words."""
    stage = prepare_stage(read_scenario(SCENARIO), progress)
    with boot_host(
        stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files, artifacts=stage.artifacts
    ) as host:
        scenario = stage.scenario
        speed = measured_speed(
            host, declared_rates(scenario), lambda share: ask_all(host, scenario.guests, f"speed {share:g}")
        )
        manager = MANAGERS["vmplace"](host, scenario, speed)
        manager.start()
        await_rest(host)
        shown = {words: ask(host, words) for words in ASKED}
        manager.stop()
    return shown


def ask(host: LabHost, words: str) -> str:
    """Return what ``vmplace WORDS`` prints on 80 columns."""
    said = host.run(f"COLUMNS=80 vmplace {words}", timeout=TIMEOUT_S)
    return "".join(f"{line.rstrip()}\n" for line in said.stdout.splitlines())


def main() -> int:
    """Ask, and keep what is printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench/status.json"))
    out: Path = parser.parse_args().out
    # Of the commit that runs, whatever is committed meanwhile.
    record: dict[str, Any] = {"bench": "status", "record": provenance(), "failed": {}}
    record["printed"] = printed(Progress())
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, record)
    print(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
