"""Feed one target, or all: ``fuzz.py RUNS [TARGET …]``; a table, and exit code 1 if anything bad came out.

Each target has a process of its own, in which Atheris (libFuzzer for Python) makes inputs that reach new
code.  An exception other than VmplaceError is bad; so is an input that takes more than SECONDS or MEGABYTES.
After ROUND inputs another process goes on with what was found: instrumented code leaves some 12 KiB an input
behind (measured with journal_records, whose inputs leave none when they are fed to it without Atheris).
Bad inputs are left in build/fuzz/bad: once mended, they belong into tests/data/fuzz/TARGET, where
tests/unit/test_corpus.py feeds them again with every run of the tests.
"""

import contextlib
import hashlib
import io
import os
import sys
import time
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/fuzz"
SECONDS, MEGABYTES, LONGEST = 5, 1024, 1 << 14
ROUND = 20_000

with (
    contextlib.redirect_stderr(io.StringIO()),
    atheris.instrument_imports(include=["vmplace", "lab"], enable_loader_override=False),
):
    from tests.fuzz.table import HEADING, MARK, row
    from tests.fuzz.targets import TARGETS, inputs
    from vmplace.errors import VmplaceError


def feed(name: str, runs: int, seed: int) -> None:
    """Become the fuzzer of one target; the process ends with it."""
    seeds, found = BUILD / "seeds" / name, BUILD / "found" / name
    for folder in (seeds, found, BUILD / "bad"):
        folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs(name)):
        (seeds / str(number)).write_bytes(data)

    def one(data: bytes) -> None:
        try:
            TARGETS[name].feed(data)
        except VmplaceError:
            return
        except Exception:
            # Not left to libFuzzer, which in Atheris writes none after an exception.
            (BUILD / f"bad/{name}-{hashlib.sha256(data).hexdigest()[:16]}").write_bytes(data)
            raise

    options = [f"-runs={runs}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}", f"-max_len={LONGEST}"]
    options += [f"-seed={seed}", f"-artifact_prefix={BUILD}/bad/{name}-", str(found), str(seeds)]
    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


def begun(name: str, runs: int) -> int:
    """Start feeding a target in processes that have all modules already; return the pid that ends last."""
    pid = os.fork()
    if pid:
        return pid
    log = os.open(BUILD / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for number, first in enumerate(range(0, runs, ROUND), 1):
        count = min(ROUND, runs - first)
        os.write(log, f"{MARK}{count}\n".encode())
        if fed(name, count, number):
            os._exit(1)
    os._exit(0)


def fed(name: str, runs: int, seed: int) -> int:
    """Feed a target in a process of its own; return its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        feed(name, runs, seed)
    finally:
        os._exit(3)


def main(runs: str, *names: str) -> int:
    """Feed the targets, as many at once as there are CPUs; print the table."""
    BUILD.mkdir(parents=True, exist_ok=True)
    print(HEADING, flush=True)
    waiting, all_well = list(names or TARGETS), True
    running: dict[int, tuple[str, float]] = {}
    while waiting or running:
        while waiting and len(running) < len(os.sched_getaffinity(0)):
            name = waiting.pop(0)
            running[begun(name, int(runs))] = name, time.monotonic()
        pid, status = os.wait()
        name, started = running.pop(pid)
        log = (BUILD / f"{name}.log").read_text(errors="replace")
        print(row(name, log, time.monotonic() - started, status), flush=True)
        all_well &= not status
    return 0 if all_well else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
