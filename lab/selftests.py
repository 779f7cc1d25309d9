"""What do the kernel's KVM selftests say on the lab's kernels: stock, patched, and with the kernel's checks?

1. The selftests are those of the patched source, built in the toolbox: the kernel's own and the series'.
2. They run one after the other in an emulated host with the kernel of one flavour, each for a while at most.
3. A result is a word: ok, skip (the machine lacks what the test needs), fail, or timeout.
4. What the kernel logged meanwhile tells what its checks found.

The list of results is a file, a column for each flavour (kvm-patches/selftests.txt): the kernel's own tests
must have the same result in all, the series' need the series.
"""

import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab import cache, trees
from lab.build import build_all, patches_folder
from lab.errors import LabError
from lab.kernel import SOURCE, Flavour, kernel_tree, prepare_source
from lab.machine import LabHost, boot_host
from lab.patching import series
from lab.progress import Progress, log_path
from lab.toolbox import run_in_tree

INSIDE = "/root/selftests"
RESULTS = "/run/selftests"
FOLDER = "tools/testing/selftests/kvm"
STRESS_TEST = "x86_64/placement_stress_test"
STRESS_CALLS = 30_000
"""Of its own accord it makes 10^6 calls, which takes the lab half a day."""
KSFT_SKIP = 4
"""tools/testing/selftests/kselftest.h."""
TIMED_OUT = (124, 137)
"""timeout(1): ended by its signal, or killed."""
MORE_TIME = 10
"""So many times as long a test has that is run again."""
SILENCE_S = 900.0
"""Beyond a test's limit."""
LOOK_S, BESIDE = 15, "#"
"""So often a test that takes long is looked at, in lines that begin like this."""
OF_THE_SERIES = "/placement_"
MAKE = (
    "make -s headers && make -s -j$(nproc) -C {folder} OUTPUT=/run/out ARCH=x86_64"
    " KHDR_INCLUDES=-isystem\\ /build/{source}/usr/include"
    " && find /run/out -type f -perm /100 ! -name '*.sh' -exec strip {{}} +"
    " && find /run/out -type f ! -perm /100 -delete"
)
RUN = """mkdir -p {results}; cd {inside}
# Some have memory swapped out.
fallocate -l 256M /var/swap && chmod 600 /var/swap && mkswap -q /var/swap && swapon /var/swap
find . -type f -perm /100 | cut -c3- | sort | grep -E {only} >{results}/all
# The assertion that failed, in a line: where it is, and with which values.
said() {{
	sed -n '/Test Assertion Failure/,$p' "$1" | sed 1d | grep -v '0x.*: ?? ??:0' | tr -s '[:space:]' ' '
}}
while read -r test; do
	log={results}/$(echo "$test" | tr / _).log
	set --; [ "$test" != {stress} ] || set -- {arguments}
	timeout -k 5 {limit} "./$test" "$@" >"$log" 2>&1 </dev/null &
	test_pid=$!
	while sleep {look_s}; do
		printf '%s\\n' "{beside} $test: $(grep -v "^Random seed" "$log" | tail -n 1 | cut -c 1-200)"
	done &
	wait "$test_pid"
	code=$? text=$(said "$log")
	kill $!
	[ -n "$text" ] || text=$(tail -n 1 "$log")
	printf '%s\\n' "$test $code $(printf '%s' "$text" | cut -c 1-400)"
done <{results}/all
"""
BAD_NEWS = re.compile(r"BUG:|WARNING:|KASAN:|INFO: |Oops|refcount_t")


@dataclass(frozen=True)
class SelftestRun:
    """The results of one flavour by test, the last line each said, and what the kernel complained of."""

    flavour: Flavour
    results: Mapping[str, str]
    said: Mapping[str, str]
    complaints: tuple[str, ...]


def build_selftests(progress: Progress, patches: Path) -> Path:
    """Return the folder with the built selftests, programs only."""
    toolbox = trees.toolbox(progress)
    inputs = {
        "toolbox": toolbox.parent.name,
        "patches": "\n".join(path.read_text() for path in series(patches)),
        "make": MAKE,
    }

    def build(folder: Path) -> None:
        work, log = kernel_tree(toolbox, "patched"), log_path("selftests")
        (out := folder / "out").mkdir()
        with cache.locked(work.name):
            prepare_source(toolbox, work, series(patches), progress, log)
            with progress.step("selftests: compile", log):
                script = MAKE.format(folder=FOLDER, source=SOURCE)
                binds = {work: Path("/build"), out: Path("/run/out")}
                run_in_tree(toolbox, ["sh", "-ec", script], binds=binds, cwd=f"/build/{SOURCE}", log=log)
            for script_file in (work / SOURCE / FOLDER).rglob("*.sh"):
                shutil.copy(script_file, out / script_file.relative_to(work / SOURCE / FOLDER))

    return cache.artifact("selftests", inputs, build) / "out"


def run_selftests(  # noqa: PLR0913  (as its command's options)
    progress: Progress,
    flavour: Flavour,
    *,
    topology: str = "n2",
    only: str = ".",
    limit_s: int = 120,
    stress: str = str(STRESS_CALLS),
) -> SelftestRun:
    """Run the selftests whose names match ``only`` on a kernel; raises LabError if the host hangs.

    ``stress``: the arguments of the series' stress test, how many calls it makes above all.
    """
    artifacts = build_all(progress, flavour)
    built = build_selftests(progress, patches_folder("kvm-patches"))
    files = {f"{INSIDE}/{path.relative_to(built)}": path for path in built.rglob("*") if path.is_file()}
    with boot_host(topology, files=files, artifacts=artifacts, progress=progress) as host:
        log = log_path(f"selftests-{flavour}")
        script = RUN.format(
            results=RESULTS,
            inside=INSIDE,
            only=shlex.quote(only),
            limit=limit_s,
            stress=STRESS_TEST,
            arguments=stress,
            look_s=LOOK_S,
            beside=BESIDE,
        )
        with progress.step(f"selftests: run on the {flavour} kernel", log):
            lines = _results(host, script, log, SILENCE_S + limit_s)
        complaints = host.run("dmesg --level=emerg,alert,crit,err,warn").stdout.splitlines()
    results = {test: result_of(int(code)) for test, code, _ in lines}
    said = {test: text for test, _, text in lines}
    return SelftestRun(flavour, results, said, tuple(line for line in complaints if BAD_NEWS.search(line)))


def _results(host: LabHost, script: str, log: Path, silence_s: float) -> list[tuple[str, str, str]]:
    """Run the script inside to its end; return its lines as test, exit code and text."""
    process = host.spawn(script)
    ended, heard = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(5)
        log.write_text(output := process.output())
        # Lines about a test that goes on are none of a test that ended.
        if (count := len(parse_lines(output))) != ended:
            ended, heard = count, time.monotonic()
        if time.monotonic() - heard > silence_s:
            raise LabError(f"no test ended for {silence_s:.0f} s", hint=f"results so far: {log}")
    return parse_lines(process.output())


def parse_lines(output: str) -> list[tuple[str, str, str]]:
    """Parse lines that end with a newline; tests that show progress leave carriage returns in their texts."""
    return [parse_line(line) for line in output.split("\n") if line and not line.startswith(BESIDE)]


def parse_line(line: str) -> tuple[str, str, str]:
    """Parse "TEST CODE TEXT", where the text may be empty."""
    test, _, rest = line.partition(" ")
    code, _, text = rest.partition(" ")
    return test, code, text.rpartition("\r")[2]


def result_of(code: int) -> str:
    """Return the word for an exit code."""
    if code in TIMED_OUT:
        return "timeout"
    return {0: "ok", KSFT_SKIP: "skip"}.get(code, "fail")


def result_table(runs: Sequence[SelftestRun]) -> str:
    """Return the table of results: a line for each test, a column for each run."""
    tests = sorted({test for run in runs for test in run.results})
    rows = [("test", *(run.flavour for run in runs))]
    rows += [(test, *(run.results.get(test, "-") for run in runs)) for test in tests]
    return "".join(f"{row[0]:52}{' '.join(f'{word:8}' for word in row[1:]).rstrip()}\n" for row in rows)


def settled(
    runs: Sequence[SelftestRun], once_more: Callable[[str], Sequence[SelftestRun]]
) -> Sequence[SelftestRun]:
    """Return the runs after tests that a busy machine may have kept from their end were run again.

    These are the series' own that timed out, and those that did so on one kernel alone.  ``once_more`` runs
    what matches an expression, on the same kernels.
    """
    again = [test for test in sorted({test for run in runs for test in run.results}) if _is_open(test, runs)]
    if not again:
        return runs
    return [_renewed(*both) for both in zip(runs, once_more(f"^({'|'.join(again)})$"), strict=True)]


def _is_open(test: str, runs: Sequence[SelftestRun]) -> bool:
    words = {run.results.get(test) for run in runs}
    return "timeout" in words and (len(words) > 1 or OF_THE_SERIES in test)


def _renewed(run: SelftestRun, later: SelftestRun) -> SelftestRun:
    results, said = {**run.results, **later.results}, {**run.said, **later.said}
    return replace(run, results=results, said=said, complaints=run.complaints + later.complaints)


def what_is_wrong(runs: Sequence[SelftestRun]) -> tuple[str, ...]:
    """Return a sentence for each complaint of a kernel, failed test of the series, and differing result."""
    sentences = [f"{run.flavour}: the kernel said: {line}" for run in runs for line in run.complaints]
    for test in sorted({test for run in runs for test in run.results}):
        words = {run.flavour: run.results.get(test, "absent") for run in runs}
        if OF_THE_SERIES in test:
            bad = [flavour for flavour, word in words.items() if word not in ("ok", "skip")]
            sentences += [f"{flavour}: {test}: {words[flavour]}" for flavour in bad]
        elif len(set(words.values())) > 1:
            reported = ", ".join(f"{flavour} {word}" for flavour, word in words.items())
            sentences.append(f"{test} differs: {reported}")
    return tuple(sentences)
