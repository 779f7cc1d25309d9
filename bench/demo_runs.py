"""Does each run of the demo's first story end with the right exit code?  A log, half of it beside busy loops.

    python -m bench.demo_runs --runs 20                # 20 more, in turns
    python -m bench.demo_runs --runs 3 --beside idle   # 3 more on the machine as it is

``bench/results/demo_runs.json`` is written anew after each run, which is added at its end:

    {"record": {machine, command}, "runs": [{"beside": "idle", "busy" or "late", "exit_code": 0,
     "took_s": ..., "speed": ..., "date": ..., "commit": ..., "load": ..., "others": ..., "too_slow": ...,
     "failed": [...], "undecided": [...], "versions": {PROGRAM: VERSION}, "rules": 2,
     "managers": {NAME: {figures, "guests": {NAME: figures}}}}]}

"busy": one process per CPU of this machine that does nothing but use it, at the demo's own priority, from the
start; "late": they begin once the demo has found the machine free, and last to its end.
``load`` is that of the minute before the run began, ``others`` the most that other processes used of the
machine in a step, ``undecided`` the claims that did not come out and got no verdict.  Exit codes are the
demo's: 0 its claims hold, 1 one does not, 5 this machine is too slow to judge, 6 the lab cannot be built;
124 is a demo that hung and was ended.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bench.record import provenance, write_atomically

KEPT = Path(__file__).parent / "results/demo_runs.json"
OUT = Path("build/demo-runs")
LAB = str(Path(sys.executable).with_name("vmplace-lab"))
DEMO = (LAB, "demo", "--story", "restart")
KINDS = ("idle", "busy", "late")
LATE_S = 20.0
"""By then the demo has looked at the machine (lab/machine_share.py), and measures what guests can do."""
LONGEST_S = 3600
HUNG = 124
"""As timeout(1) has it."""
TOO_SLOW = 5
RULES = 3
"""Of the verdict and of times: 2 since lab/ gives all managers that never rest as long as vmplace, and takes
three windows in emulated time; 3 since the meter counts traffic by each CPU's emulated time.  README's
figures are of runs under the present rules.  A run without any was under the first ones."""
CLEANS_UP_S = 30
OF_GUESTS = (
    *("lar_before", "lar_after", "lar_after_spread", "mc_imbalance_before", "mc_imbalance_after"),
    *("emulated_run_time_s", "lines_per_touch", "declared_lines_per_touch", "bad_pages"),
)
OF_MANAGERS = (
    *("mc_imbalance_before", "mc_imbalance_after", "emulated_run_time_s", "cost_share", "retakes"),
    *("worst_guest_cost_share", "speed"),
    *("moved_bytes", "replica_bytes", "active_s", "run_time_s", "notes"),
)


def present(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs by the present rules, of whole commits."""
    return [run for run in runs if run.get("rules") == RULES and "-" not in (run["commit"] or "-")]


def next_kind(runs: list[Mapping[str, Any]]) -> str:
    """Return the kind of which there are fewer so far: half of all runs on the idle machine."""
    count = {kind: sum(run["beside"] == kind for run in runs) for kind in KINDS}
    if count["idle"] <= count["busy"] + count["late"]:
        return "idle"
    return "busy" if count["busy"] <= count["late"] else "late"


def figures_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the log keeps of a demo's result."""
    managers = {
        name: {key: manager.get(key) for key in OF_MANAGERS}
        | {"guests": {one: {key: g[key] for key in OF_GUESTS} for one, g in manager["guests"].items()}}
        for name, manager in result["managers"].items()
    }
    left = [share for manager in result["managers"].values() for share in manager["machine_share"].values()]
    return {
        "speed": result["pace"],
        "others": round(1 - min(left, default=1.0), 3),
        "too_slow": result["too_slow"],
        "failed": result["failed_expectations"],
        "undecided": result.get("undecided", []),
        "versions": result["managers"].get("vmplace", {}).get("versions", {}),
        "managers": managers,
    }


@contextlib.contextmanager
def busy_machine(kind: str) -> Iterator[None]:
    """Keep each CPU of this machine busy for the length of the block, if the kind asks for it."""
    count = 0 if kind == "idle" else len(os.sched_getaffinity(0))
    spin = f"import time; time.sleep({LATE_S if kind == 'late' else 0})\nwhile True: pass"
    loops: list[subprocess.Popen[bytes]] = []
    try:
        with _term_waits():
            loops += [_started([sys.executable, "-c", spin]) for _ in range(count)]
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def ended_as_by_exit() -> Iterator[None]:
    """Within the block, who ends this process ends the demo and the loops beside it, too."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_once(kind: str, out: Path, demo: Sequence[str] = DEMO) -> dict[str, Any]:
    """Run the demo once and return its entry of the log; what it printed is in ``out``."""
    record, began = provenance(), time.monotonic()
    folder = out / record["date"].replace(":", "")
    folder.mkdir(parents=True)
    command = [*demo, "--out", str(folder)]
    with busy_machine(kind), (folder / "log").open("wb") as log:
        code = exit_code(command, log)
    entry = {
        "beside": kind,
        "exit_code": code,
        "took_s": round(time.monotonic() - began, 1),
        "date": record["date"],
        "commit": record["commit"],
        "load": round(record["load"][0], 1),
        "rules": RULES,
    }
    path = folder / "result.json"
    # A machine that was too slow from the first manager on leaves no figures.
    return entry | (figures_of(json.loads(path.read_text())) if path.exists() else {})


def exit_code(command: Sequence[str], log: IO[bytes]) -> int:
    """Run a command of the lab, but no longer than LONGEST_S: then it and its emulators are killed."""
    demo: subprocess.Popen[bytes] | None = None
    try:
        with _term_waits():
            demo = _started(command, stdout=log, stderr=log, start_new_session=True)
        return demo.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        return HUNG
    finally:
        # Whatever ends this: a demo that is left alone would use the machine of the next one.
        if demo is not None and demo.poll() is None:
            _end(demo)


@contextlib.contextmanager
def _term_waits() -> Iterator[None]:
    """Within the block SIGTERM waits: what is started there is known, and so ended, once it comes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _started(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in which SIGTERM does not wait."""

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    return subprocess.Popen(command, preexec_fn=unblock, **options)  # noqa: PLW1509 - no threads here


def _end(demo: subprocess.Popen[bytes]) -> None:
    """End the demo as Ctrl-C does, which cleans up; then whatever is left of its process group."""
    os.killpg(demo.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        demo.wait(CLEANS_UP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(demo.pid, signal.SIGKILL)
    demo.wait()


def worst(entries: Sequence[Mapping[str, Any]]) -> int:
    """Return 1 if a run failed or hung, else 5 if one was undecided with nothing beside it, else 0.

    Beside a busy loop nothing is known: a verdict there is a false one, whatever it is.
    """
    is_left = False
    for entry in entries:
        is_idle, is_slow = entry["beside"] == "idle", entry["exit_code"] == TOO_SLOW
        if not is_slow and not (is_idle and entry["exit_code"] == 0):
            return 1
        is_left |= is_idle and is_slow
    return TOO_SLOW if is_left else 0


def main() -> int:
    """Run the demo as often as asked for; return the worst of these runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--beside", choices=KINDS, help="all of one kind; default: in turns")
    parser.add_argument("--out", type=Path, default=OUT, help="each run's output")
    parser.add_argument("--log", type=Path, default=KEPT)
    options = parser.parse_args()
    log = json.loads(options.log.read_text()) if options.log.exists() else {"runs": []}
    entries = []
    for _ in range(options.runs):
        kind = options.beside or next_kind(log["runs"])
        with ended_as_by_exit():
            entry = run_once(kind, options.out)
        entries.append(entry)
        log["runs"].append(entry)
        log["record"] = {"machine": provenance()["machine"], "command": ["make", "demo-log"]}
        write_atomically(options.log, log)
        print(f"{entry['date']} {kind}: exit code {entry['exit_code']} in {entry['took_s']} s", flush=True)
    return worst(entries)


if __name__ == "__main__":
    sys.exit(main())
