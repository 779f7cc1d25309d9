"""The emulated host: is it the machine that was declared, does a snapshot hold, does nothing stay behind?"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import cache
from lab.errors import LabCommandError, LabError
from lab.machine import LabHost, boot_host
from lab.topology import ABOVE_HOLE, cpu_nids, memory_ranges, read_topology

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    with boot_host("n3-sparse") as booted:
        yield booted


def test_nodes_cpus_and_distances_are_the_declared_ones(host: LabHost) -> None:
    topology = host.topology
    assert host.run("cat /sys/devices/system/node/online").stdout.strip() == "0,2,5"
    for row, node in zip(topology.distances, topology.nodes, strict=True):
        folder = f"/sys/devices/system/node/node{node.nid}"
        distances = host.run(["cat", f"{folder}/distance"]).stdout.split()
        assert [int(distance) for distance in distances] == list(row)
        cpus = host.run(f"ls -d {folder}/cpu[0-9]* | sed 's/.*cpu//'").stdout.split()
        assert sorted(map(int, cpus)) == [
            cpu for cpu, nid in enumerate(cpu_nids(topology)) if nid == node.nid
        ]


def test_physical_ranges_are_those_of_the_firmware_table(host: LabHost) -> None:
    lines = host.run("dmesg | grep -o 'SRAT: Node.*'").stdout.splitlines()
    spans = []
    for line in lines:
        words = line.replace("[mem ", "").replace("]", "").split()
        start, end = (int(part, 16) for part in words[-1].split("-"))
        spans.append((start, end + 1, int(words[2])))
    # The firmware leaves out the legacy video hole below 1 MiB.
    spans = [
        (0, end, nid) if start == 1 << 20 else (start, end, nid) for start, end, nid in spans if end > 1 << 20
    ]
    assert spans == [(r.start, r.end, r.nid) for r in memory_ranges(host.topology)]
    assert any(start == ABOVE_HOLE for start, _, _ in spans)


def test_kvm_and_libvirt_are_there(host: LabHost) -> None:
    assert "npt" in host.run("virsh capabilities; cat /proc/cpuinfo").stdout
    assert host.run("cat /sys/module/kvm_amd/parameters/npt").stdout.strip() == "Y"


def test_files_survive_the_way_in_and_out(host: LabHost) -> None:
    data = os.urandom(3_000_000)
    host.put(data, "/root/data")
    assert host.get("/root/data") == data


def test_a_failing_command_says_what_it_said(host: LabHost) -> None:
    with pytest.raises(LabCommandError, match="no such thing"):
        host.run("echo no such thing >&2; exit 3")


def test_a_command_that_takes_too_long_is_killed(host: LabHost) -> None:
    with pytest.raises(LabError, match="took over"):
        host.run(["sleep", "54321"], timeout=1)
    time.sleep(1)
    assert host.run(["pgrep", "-f", "sleep 54321"], check=False).returncode == 1


def test_a_spawned_process_can_be_watched_and_ended(host: LabHost) -> None:
    process = host.spawn("echo begun; exec sleep 1000")
    while "begun" not in process.output():
        time.sleep(0.1)
    assert process.poll() is None
    process.kill()
    assert process.wait() != 0


def test_the_package_of_this_checkout_runs_inside(host: LabHost) -> None:
    assert host.run(["vmplace", "--version"]).returncode == 0


def test_a_snapshot_holds_processes_memory_and_disk_and_serves_two_at_once(host: LabHost) -> None:
    host.run("mkdir -p /run/kept; echo memory >/run/kept/x; echo disk >/root/kept")
    process = host.spawn("exec sleep 7777")
    saved = host.savevm("test")
    try:
        host.run("rm /run/kept/x /root/kept")
        with boot_host(host.topology, snapshot=saved) as one, boot_host(host.topology, snapshot=saved) as two:
            for copy in (one, two):
                assert copy.run("cat /run/kept/x /root/kept").stdout == "memory\ndisk\n"
                assert copy.run(["pgrep", "-f", "sleep 7777"]).stdout.strip() == str(process.pid)
            one.run("rm /root/kept")
            assert two.run("cat /root/kept").stdout == "disk\n"
            assert one.is_running()
            for copy, how in ((one, signal.SIGKILL), (two, signal.SIGTERM)):
                os.kill(copy.emulator_pid, how)
                assert copy.killed_by() == how.name
    finally:
        process.kill()
        cache.remove_tree(saved)


def emulators_of(log_name: str) -> list[int]:
    """Return the pids of emulators that write a console log of that name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if log_name in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_and_no_mount_outlives_us(how: signal.Signals) -> None:
    code = (
        # What starts us in the background may have Ctrl-C ignored, and a child inherits that.
        "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from lab.machine import boot_host\n"
        "with boot_host('n3-sparse') as host: print(host.console_log.name, flush=True); time.sleep(600)"
    )
    ours = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert ours.stdout
        name = ours.stdout.readline().strip()
        assert emulators_of(name)
        ours.send_signal(how)
        ours.wait(timeout=30)
    finally:
        ours.kill()
    deadline = time.monotonic() + 10
    while emulators_of(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not emulators_of(name)
    assert str(cache.cache_root()) not in Path("/proc/self/mounts").read_text()
    cache.remove_stale()
    assert not list((cache.cache_root() / "run").glob(f"{ours.pid}-*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n4-cpuless", "n4-memoryless"])
def test_nodes_without_cpus_or_memory_are_seen_as_such(name: str) -> None:
    topology = read_topology(name)
    with boot_host(topology) as host:
        folder = "/sys/devices/system/node"
        for kind, wanted in (
            ("has_cpu", [node.nid for node in topology.nodes if node.cpus]),
            ("has_memory", [node.nid for node in topology.nodes if node.memory_bytes]),
        ):
            seen = host.run(["python3", "-c", EXPAND, f"{folder}/{kind}"]).stdout.split()
            assert list(map(int, seen)) == wanted


EXPAND = """
import sys
for part in open(sys.argv[1]).read().split(","):
    first, _, last = part.strip().partition("-")
    print(*range(int(first), int(last or first) + 1))
"""
