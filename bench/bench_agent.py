"""Does what ships do harm?  The agent's policies in virtual time on recorded traces, each alone.

Prints a row for each trace: share of the oracle's gain, and run time against doing nothing.  Ends with 1 if
a guest of POLICY gets slower by more than 1 %, or a trace is missing.  Traces are split in traces.toml.

    python -m bench.bench_agent --traces FOLDER [--policy agent:auto] [--source ad] [--windows 14]
        [--split judging]
"""

import argparse
import sys
import tomllib
from pathlib import Path

import numpy as np

from vmplace.simulate.guest_option import read_guests
from vmplace.simulate.host_file import read_host
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.result import oracle_share, worst_slowdown
from vmplace.simulate.run import ALL_WINDOWS, simulate
from vmplace.simulate.source_views import source_named

HOST = Path(__file__).parents[1] / "vmplace/simulate/hosts/carrefour-a.toml"
SPLIT = Path(__file__).with_name("traces.toml")
HARM = 0.01


def main() -> int:
    """Run one policy on one half of the traces."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--policy", choices=list(POLICIES), default="agent:auto")
    parser.add_argument("--source", default="ad")
    parser.add_argument("--windows", type=int, default=ALL_WINDOWS)
    parser.add_argument("--split", choices=["tuning", "judging"], default="judging")
    options = parser.parse_args()
    names = tomllib.loads(SPLIT.read_text())[options.split]
    missing = [name for name in names if not (options.traces / f"{name}.npz").is_file()]
    if missing:
        print(f"{options.traces} has no trace of {', '.join(missing)}: see --traces", file=sys.stderr)
        return 1
    rows = [row(options, name) for name in names]
    shares = [share for share, _ in rows if share is not None]
    # Unlike max(), it passes over nothing that is no number.
    worst = float(np.max([slower for _, slower in rows]))
    mean = f"{sum(shares) / len(shares):.2f}" if shares else "-"
    print(f"mean share {mean} of {len(shares)} traces with a gain, worst guest {100 * worst:+.1f} %")
    is_harmed = not all(slower <= HARM for _, slower in rows)
    if is_harmed:
        print(
            f"{options.policy} does harm: more than {100 * HARM:.0f} % slower than nothing", file=sys.stderr
        )
    return int(is_harmed)


def row(options: argparse.Namespace, name: str) -> tuple[float | None, float]:
    """Return the share of the oracle's gain, None where there is none, and the worst guest's slowdown."""
    host = read_host(HOST)
    specs = read_guests((f"g={options.traces / name}.npz",), host)
    none, oracle, result = (
        simulate(host, specs, POLICIES[policy], source_named(source), options.windows)
        for policy, source in (("none", "full"), ("oracle", "full"), (options.policy, options.source))
    )
    share = oracle_share(none.run_time_s, result.run_time_s, oracle.run_time_s)
    slower = worst_slowdown(result, none)
    reported = "   -" if share is None else f"{share:.2f}"
    print(
        f"{name:16} {options.policy} {options.source} share {reported} time {100 * slower:+.1f} %", flush=True
    )
    return share, slower


if __name__ == "__main__":
    sys.exit(main())
