"""What do KVM's selftests say on Intel: VMX, and EPT with accessed and dirty bits, as Bochs emulates them?

1. The programs are those of lab/selftests.py; the chosen ones are in an initramfs.
2. Its /init runs them one after the other and tells their results on the serial console.
3. Results mean the same as on the AMD host.

Bochs takes minutes for what needs many accesses: there the stress test makes few calls.
"""

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab import trees
from lab.bochs import run_on_bochs
from lab.build import patches_folder
from lab.cache import run_folder
from lab.errors import LabError
from lab.guest_initramfs import parse_libraries
from lab.kernel import Flavour, build_kernel
from lab.progress import Progress, log_path
from lab.selftests import (
    BAD_NEWS,
    STRESS_TEST,
    SelftestRun,
    build_selftests,
    parse_line,
    result_of,
)
from lab.toolbox import run_in_tree

INTEL = "intel"
"""Stands for the machine where topologies are named."""
STRESS_CALLS = 3000
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
mount -t cgroup2 cgroup /sys/fs/cgroup
# As systemd has it.
echo "+memory +cpuset" >/sys/fs/cgroup/cgroup.subtree_control
# Some tests map more than this machine has, and touch little of it.
echo 1 >/proc/sys/vm/overcommit_memory
exec >/dev/ttyS0 2>&1
run() {{
	echo "running: $1"
	timeout -k 5 {limit} "/tests/$@" >/tmp/log 2>&1 </dev/null
	code=$?
	[ $code = 0 ] || sed 's/^/said: /' /tmp/log
	echo "result: $1 $code $(tail -n 1 /tmp/log | cut -c 1-160)"
}}
cd /sys/module/kvm_intel/parameters
echo "ept: eptad $(cat eptad)"
{runs}
dmesg | grep -E '{bad}' | sed 's/^/kernel: /'
echo "{last_line}"
sleep 1000000
"""
LAST_LINE = "end:"
PACK = "cd /run/out/root && find . | cpio --quiet -o -H newc -R 0:0 >/run/out/initramfs"
# The nodes are the kernel's invention: CPUs of both share a cache, as CPUID has it.
EXPECTED_NEWS = "topology_sane"
# Beyond a test's limit, which counts seconds inside: a busy machine makes those longer.
SILENCE_FACTOR = 5.0
MOST_SILENCE_S = 7200.0


def run_selftests_on_intel(
    progress: Progress, flavour: Flavour, *, only: str = ".", limit_s: int = 120
) -> SelftestRun:
    """Run the selftests whose names match ``only`` on a kernel, in Bochs; raises LabError if that hangs."""
    patches = patches_folder("kvm-patches")
    kernel = build_kernel(progress, patches=patches, flavour=flavour)
    built = build_selftests(progress, patches)
    names = [name for name in _programs(built) if re.search(only, name)]
    if not names:
        raise LabError(f"no selftest matches '{only}'", hint=f"they are in {built}")
    with run_folder() as folder:
        initramfs = _initramfs(trees.toolbox(progress), built, names, folder, limit_s)
        lines = run_on_bochs(
            kernel,
            initramfs,
            progress,
            name="selftests-intel",
            last_line=LAST_LINE,
            silence_s=min(SILENCE_FACTOR * limit_s, MOST_SILENCE_S),
        )
    return parse_console(flavour, names, lines)


def parse_console(flavour: Flavour, names: Sequence[str], lines: Iterable[str]) -> SelftestRun:
    """Return what /init said; raises LabError if it did not come to its end, or EPT lacks what matters."""
    reported: dict[str, list[str]] = {"ept": [], "result": [], "kernel": [], "end": []}
    for line in lines:
        word, _, text = line.partition(":")
        if word in reported:
            reported[word].append(text.strip())
    results = {test: (result_of(int(code)), text) for test, code, text in map(parse_line, reported["result"])}
    if reported["ept"] != ["eptad Y"]:
        raise LabError(
            "KVM found no EPT with accessed and dirty bits on Bochs", hint="give it a CPU of Haswell or later"
        )
    if not reported["end"] or set(results) != set(names):
        raise LabError(
            f"{len(results)} of {len(names)} selftests ended on Bochs",
            hint="its console log shows the last one",
        )
    words = {test: word for test, (word, _) in results.items()}
    said = {test: text for test, (_, text) in results.items()}
    complaints = tuple(line for line in reported["kernel"] if EXPECTED_NEWS not in line)
    return SelftestRun(flavour, words, said, complaints)


def _programs(built: Path) -> list[str]:
    """Return the programs by their names below the folder, as the list of results has them."""
    files = (path for path in built.rglob("*") if path.is_file() and path.stat().st_mode & 0o100)
    return sorted(str(path.relative_to(built)) for path in files)


def _initramfs(toolbox: Path, built: Path, names: Sequence[str], folder: Path, limit_s: int) -> Path:
    root = folder / "root"
    for name in names:
        _copy(built / name, root / "tests" / name)
    inside = f"/run/built/{names[0]}"
    libraries = parse_libraries(
        run_in_tree(toolbox, ["ldd", inside], binds={built: Path("/run/built")}).stdout
    )
    for name in libraries:
        _copy(toolbox / name.lstrip("/"), root / name.lstrip("/"))
    _copy(toolbox / "usr/bin/busybox", root / "bin/busybox")
    runs = "\n".join(f"run {name}{f' {STRESS_CALLS}' if name == STRESS_TEST else ''}" for name in names)
    (root / "init").write_text(
        INIT.format(limit=limit_s, runs=runs, bad=BAD_NEWS.pattern, last_line=LAST_LINE)
    )
    (root / "init").chmod(0o755)
    run_in_tree(
        toolbox, ["sh", "-ec", PACK], binds={folder: Path("/run/out")}, log=log_path("selftests-intel")
    )
    return folder / "initramfs"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
