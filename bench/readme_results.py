"""Render the figures of README.md from kept runs; none is typed.

    python -m bench.readme_results build/demo     # keep the demo's result, and render

``bench/results/demo_runs.json`` is the log of runs in a row (demo_runs.py).  The table between the two marks
in README.md has the median and the spread of its idle runs that came to a verdict, whichever it was.
``bench/results/demo.json`` has one run whole, with its record: the picture is of that run.
``bench/results/status.json`` has what `vmplace status` printed of the demo's guests (bench_status.py).
``bench/results/policy.json`` is the table of policies: one of README's limits is what guests lost in it.
A test fails if the text and the files differ.
"""

import json
import re
import statistics
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.demo_runs import RULES, present
from bench.policy_gate import HARM, harmed, protected_harmed
from bench.policy_gate import judged as judged_rows
from bench.policy_page import balancing_alone, item, kind_of
from bench.record import write_atomically
from lab.scenario_commands import DEMO, FIRST, file_of
from lab.scenario_picture import draw_result
from lab.scenario_result import ScenarioResult
from vmplace.simulate.guest_option import PROTECTED_BOUND

CHECKOUT = Path(__file__).parents[1]
KEPT = CHECKOUT / "bench/results/demo.json"
LOG = CHECKOUT / "bench/results/demo_runs.json"
STATUS = CHECKOUT / "bench/results/status.json"
POLICIES = CHECKOUT / "bench/results/policy.json"
PICTURE = CHECKOUT / "docs/pictures/before-after.svg"
README = CHECKOUT / "README.md"
BEGIN, END = "<!-- demo: rendered by make results -->", "<!-- /demo -->"
STATUS_BLOCK = re.compile(r"(?<=<!-- kept: status.json -->\n)(?:    .*\n)+")
LOSSES = re.compile(r"^\* A guest can become slower.*\n(?:  .*\n)*", re.M)
NAMES = {"none": "nobody", "kernel": "kernel", "vmplace": "**vmplace**, patched kernel"}
STOCK = "On a stock kernel vmplace [equals kernel balancing](docs/results.md#the-demo-with-all-rivals)."
DEFAULTS = (
    "The agent ran with other settings than the defaults: plans take a whole CPU (a quarter), moves 4096 MB/s"
    " (256), first readings come after 0 ms (6), windows last 500 ms (1000)."
)
SETTINGS = "Not the default settings."
LAB_WORST = "6.8%"
"""Of docs/design/demo-claims.md: the guest that spans nodes in wrong-node; a test compares."""
MIB = 1 << 20
Result = Mapping[str, Any]


def judged(runs: Sequence[Result]) -> list[Result]:
    """Return the runs on the idle machine that came to a verdict, good or bad, by the present rules."""
    return _judged(present(runs))


def _judged(runs: Sequence[Result]) -> list[Result]:
    return [run for run in runs if run["beside"] == "idle" and run["exit_code"] in (0, 1)]


def rendered(log: Result) -> str:
    """Return the README's table and the lines below it, for the log of runs."""
    runs = judged(log["runs"])
    return "\n".join((*_rows(runs), "", *_source(log["runs"], runs)))


def rendered_run(kept: Result) -> str:
    """Return the table for the one run that is kept whole, and the line below it."""
    record = kept["record"]
    what = f"{record['date'][:10]}, commit {record['commit'][:12]}, kernel {_kernel(kept)}"
    source = f"One run in which all claims held, {what}. {_paused([kept['demo']])} {DEFAULTS} {_calls(kept)}"
    return "\n".join((*_rows([kept["demo"]]), "", textwrap.fill(source, 98, break_on_hyphens=False)))


def _calls(kept: Result) -> str:
    """Say why calls that move pages take as long as they do in the emulated host."""
    cpu_ms = kept["demo"]["managers"]["vmplace"]["longest_move_call_cpu_ms"]
    return (
        "The longest call is by the emulated host's clock: its eight CPUs share those of this machine, and"
        f" the caller waits for all of them. The longest CPU time of a call was {cpu_ms:.0f} ms."
    )


def _kernel(kept: Result) -> str:
    return str(kept["demo"]["managers"]["vmplace"]["versions"]["host_kernel"].split()[0])


def _rows(runs: Sequence[Result]) -> Iterator[str]:
    """Yield the table's lines; beside spreads there is no room for what was moved and copied."""
    is_one = len(runs) == 1
    moves = ("moved, copied", "longest call, ms") * is_one
    heads = ("who", "LAR, one node", "LAR, read-only", "imbalance: span, host", "model s", *moves, "cost, %")
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for name, shown in NAMES.items():
        # A run that failed may lack a manager that broke.
        managers = [run["managers"][name] for run in runs if name in run.get("managers", {})]
        if not managers:
            continue
        guests = [manager["guests"] for manager in managers]
        home = [min(of[guest]["lar_after"] for guest in ("web", "shop")) for of in guests]
        table = [of["table"]["lar_after"] for of in guests]
        span = [of["span"]["mc_imbalance_after"] for of in guests]
        host = [manager["mc_imbalance_after"] for manager in managers]
        times = [manager["emulated_run_time_s"] for manager in managers]
        moved, copied = (
            round(statistics.median(manager[key] for manager in managers) / MIB)
            for key in ("moved_bytes", "replica_bytes")
        )
        imbalance = f"{_spread(span, 2)}, {_spread(host, 2)}"
        lars = (_spread(home, 2), _spread(table, 2))
        moves = (f"{moved}, {copied}", _longest_calls(managers)) * is_one
        cells = (shown, *lars, imbalance, _spread(times, 1), *moves, _cost(managers))
        yield f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float], digits: int) -> str:
    """Return the median, with the least and the largest where they differ from it as they are shown."""
    median, low, high = (f"{of(values):.{digits}f}" for of in (statistics.median, min, max))
    return median if low == median == high else f"{median} ({low} to {high})"


def _longest_calls(managers: Sequence[Result]) -> str:
    calls = [one["longest_move_call_ms"] for one in managers if one.get("longest_move_call_ms") is not None]
    return f"{max(calls):,.0f}" if calls else "-"


def _cost(managers: Sequence[Result]) -> str:
    """Return what guests at full speed lose to the running manager; the run time leaves that out."""
    shares = [100 * manager["cost_share"] for manager in managers if manager["cost_share"] is not None]
    return _spread(shares, 0) if shares else "-"


def _source(runs: Sequence[Result], shown: Sequence[Result]) -> Iterator[str]:
    if not shown:
        yield "No run by the present rules came to a verdict yet."
        return
    idle = _codes([run for run in present(runs) if run["beside"] == "idle"])
    busy = _codes([run for run in present(runs) if run["beside"] != "idle"])
    commits = list(dict.fromkeys(run["commit"][:7] for run in shown))
    which_commits = ", ".join(commits) if len(commits) < 3 else f"{commits[0]} to {commits[-1]}"
    which = "one run" if len(shown) == 1 else f"medians (and spread) of {len(shown)} runs"
    until = shown[-1]["date"][:10]
    opening = f"First story, {which} to {until}, {which_commits}, two virtual cores."
    lacking = sum(not set(NAMES) <= set(run.get("managers", {})) for run in shown)
    if lacking:
        opening += f" {lacking} of them lack the figures of some manager."
    codes = f"[Exit codes](docs/results.md#runs-of-the-demo-in-a-row), rules {RULES}"
    counted = (
        f"{opening} {codes}: idle {idle}{'; busy ' * bool(busy)}{busy}. {_paused(shown)} {STOCK} {SETTINGS}"
    )
    yield textwrap.fill(counted, 98, break_long_words=False, break_on_hyphens=False)


def _paused(runs: Sequence[Result]) -> str:
    """Say that run times are without the manager's cost, and what they would be with it."""
    medians = []
    for name in ("kernel", "vmplace"):
        managers = [run["managers"][name] for run in runs if name in run.get("managers", {})]
        known = [one for one in managers if one["cost_share"] is not None]
        if known:
            with_cost = [one["emulated_run_time_s"] / (1 - one["cost_share"]) for one in known]
            medians.append(f"{name} {statistics.median(with_cost):.2f}")
    return f"Model s: manager paused; with its cost {', '.join(medians)}."


def _codes(runs: Sequence[Result]) -> str:
    codes = Counter(run["exit_code"] for run in runs)
    return ", ".join(f"{codes[code]} with {code}" for code in sorted(codes))


def with_results(readme: str, log: Result) -> str:
    """Return the README with its block rendered anew; raises ValueError where it has no block."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{rendered(log)}\n{END}{after}"


def with_status(readme: str, kept: Result) -> str:
    """Return the README with the table of guests that ``vmplace status`` printed in the kept run.

    Raises ValueError where it has no block for that.
    """
    shown, blocks = STATUS_BLOCK.subn(lambda _: textwrap.indent(status_table(kept), "    "), readme)
    if blocks != 1:
        raise ValueError("README.md lacks the mark <!-- kept: status.json --> with a block below it")
    return shown


def with_losses(readme: str, policies: Result) -> str:
    """Return the README with what guests lost rendered anew; raises ValueError where no item is for that."""
    found, items = LOSSES.subn(lambda _: losses(policies["rows"]), readme)
    if items != 1:
        raise ValueError("README.md lacks the item that begins with: * A guest can become slower")
    return found


def losses(rows: Sequence[Result]) -> str:
    """Return what guests lost in the table of policies, as an item of README's limits."""
    ours, bad, guarded = judged_rows(rows), list(harmed(rows)), list(protected_harmed(rows))
    table = "[simulated rows](docs/results.md#all-policies-on-recorded-traces)"
    words = (
        f"A guest can become slower: in {len(bad)} of {len(ours)} {table} of one seed, one lost over "
        f"the aim of {HARM:.0%}"
    )
    if bad:
        usual = [one for one in bad if kind_of(one) != "hostile"]
        sources = " and ".join(sorted({f"`{one['source']}`" for one in usual}))
        alone = [balancing_alone(rows, one) for one in bad]
        as_slow = [one for one in alone if one is not None and one["worst_guest_slowdown"] > HARM]
        words += f", {bad[0]['worst_guest_slowdown']:.1%} at worst (lab: {LAB_WORST})."
        words += f" {len(usual)} of these are of ordinary programs"
        words += (
            f", with source {sources}" * bool(usual)
            + f"; in {len(as_slow)} kernel balancing alone does so, too"
        )
    guards = [one for one in ours if one.get("worst_protected_slowdown") is not None]
    words += (
        f". In {len(guarded)} of {len(guards)} rows a protected guest lost more than {PROTECTED_BOUND:.1%}."
    )
    # No line begins with the sign.
    return item(words.replace("%", "\N{NO-BREAK SPACE}%")).replace("\N{NO-BREAK SPACE}", " ") + "\n"


def status_table(kept: Result) -> str:
    """Return the lines from the heads of the columns to the last guest: one for each guest and its head."""
    lines = kept["printed"]["status"].splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith("guest "))
    end = next(number for number, line in enumerate(lines) if re.match(r"\S+: ", line) and number > first)
    return "".join(lines[first:end])


def keep(folder: Path) -> None:
    """Keep a run of the demo.  Raises ValueError for one that did not hold."""
    for path in sorted(folder.glob("*.json")):
        if path.name != "record.json" and not _holds(json.loads(path.read_text())):
            raise ValueError(f"{path.name} did not hold: only a run that did is told")
    for story in DEMO:
        if not (folder / file_of(story)).exists():
            raise ValueError(f"{folder}: no figures of {story}: run make demo again, with both stories")
    demo = json.loads((folder / file_of(FIRST)).read_text())
    if not (folder / "record.json").exists():
        raise ValueError(f"{folder}: of which commit that run was is not known: run make demo again")
    record = json.loads((folder / "record.json").read_text())
    write_atomically(KEPT, {"record": record | {"command": ["make", "demo"]}, "demo": demo})


def _holds(story: Result) -> bool:
    return not (story["failed_expectations"] or story["too_slow"])


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
    readme = with_results(README.read_text(), json.loads(LOG.read_text()))
    readme = with_losses(readme, json.loads(POLICIES.read_text()))
    README.write_text(with_status(readme, json.loads(STATUS.read_text())))
    draw(kept, PICTURE)


if __name__ == "__main__":
    main()
