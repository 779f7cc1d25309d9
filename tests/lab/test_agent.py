"""The agent with real guests on the emulated host; the truth is the kernel's numa_maps."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab.channel import GuestProcess
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from tests.lab.agent_scenario import misplaced_guests
from vmplace.interfaces.cli import cli

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

CONFIG = """
window_ms = 500
longest_rest_ms = 500
numa_balancing = "take"
[budget]
mb_per_s = {mb_per_s}
"""
PRESENT = 20_000
"""Pages that each guest has touched for the first time, at least: 64 MiB of arena and its kernel."""


@pytest.fixture(scope="module")
def snapshot() -> Any:
    return misplaced_guests()


@pytest.fixture
def host(snapshot: Any) -> Iterator[LabHost]:
    with boot_host("n4-full", snapshot=snapshot) as booted:
        booted.run("mkdir -p /etc/vmplace")
        balance(booted, "0")
        yield booted


def start_agent(host: LabHost, *, mb_per_s: int = 512, rules: str = "") -> GuestProcess:
    host.put((CONFIG.format(mb_per_s=mb_per_s) + rules).encode(), "/etc/vmplace/vmplace.toml")
    agent = host.spawn(["vmplace", "agent"])
    until(lambda: status(host)["windows"] >= 0, "the agent answers", agent)
    return agent


# What `vmplace status --json` asks and prints, which takes seconds of an emulated CPU each time.
ASK_STATUS = r"""alarm 30; socket(my $agent, PF_UNIX, SOCK_STREAM, 0) or exit 1;
connect($agent, sockaddr_un("/run/vmplace/control.sock")) or exit 1;
syswrite($agent, qq({"command": "status"}\n)); print scalar <$agent>;"""


def status(host: LabHost) -> dict[str, Any]:
    answer = host.run(["perl", "-MSocket", "-e", ASK_STATUS], check=False, timeout=60).stdout
    reported: dict[str, Any] = {"windows": -1, "guests": {}}
    return json.loads(answer).get("data", reported) if answer else reported


def until(
    is_so: Callable[[], bool], what: str, agent: GuestProcess | None = None, *, timeout_s: float = 240
) -> None:
    end = time.monotonic() + timeout_s
    with Progress().step(what):
        while not is_so():
            if agent is not None and agent.poll() is not None:
                raise AssertionError(f"the agent ended: {agent.output()[-3000:]}")
            assert time.monotonic() < end, f"not in time: {what}"
            time.sleep(0.5)


def pages_by_nid(host: LabHost, name: str) -> dict[int, int]:
    """Return where the kernel says that the guest's RAM (its largest mapping) is."""
    script = f"cat /proc/$(cat /run/libvirt/qemu/{name}.pid)/numa_maps"
    maps = [dict(re.findall(r" N(\d+)=(\d+)", line)) for line in host.run(script).stdout.splitlines()]
    largest = max(maps, key=lambda pages: sum(map(int, pages.values())))
    return {int(nid): int(count) for nid, count in largest.items()}


def balancing(host: LabHost) -> str:
    return host.run("cat /proc/sys/kernel/numa_balancing").stdout.strip()


def balance(host: LabHost, value: str) -> None:
    """Set kernel NUMA balancing, which moves pages, too: "1" only to see that it is taken."""
    host.run(f"echo {value} >/proc/sys/kernel/numa_balancing")


def is_away(host: LabHost, name: str, nid: int) -> bool:
    """Tell whether a guest's memory is on ``nid`` but for what its vCPU touched elsewhere since."""
    pages = pages_by_nid(host, name)
    return pages.get(nid, 0) > PRESENT and sum(pages.values()) - pages[nid] < 1000


def is_home(host: LabHost, name: str, nid: int) -> bool:
    pages = pages_by_nid(host, name)
    return pages.get(nid, 0) > PRESENT and sum(pages.values()) - pages.get(nid, 0) < 200


def start_over_balancing(host: LabHost, **config: Any) -> GuestProcess:
    """Start the agent on a host with NUMA balancing on, which moves no page before the agent takes it."""
    host.run("kill -STOP $(pidof qemu-system-x86_64)")
    balance(host, "1")
    agent = start_agent(host, **config)
    until(lambda: balancing(host) == "0", "balancing is taken", agent)
    host.run("kill -CONT $(pidof qemu-system-x86_64)")
    return agent


def test_memory_follows_the_vcpus_and_a_clean_stop_gives_everything_back(host: LabHost):
    assert is_away(host, "one", 1)
    agent = start_over_balancing(host)
    until(lambda: is_home(host, "one", 0) and is_home(host, "two", 3), "both guests are at home", agent)
    reported = status(host)
    assert reported["guests"]["one"]["vcpu_nids"] == [0] and reported["guests"]["one"]["origin"] == "libvirt"
    assert reported["moved_bytes"] > 2 * PRESENT * 4096
    assert reported["rss_bytes"] < 60e6
    assert balancing(host) == "0"
    agent.kill("TERM")
    assert agent.wait(timeout=60) == 0
    assert balancing(host) == "1"
    assert host.run("ls /run/vmplace").stdout == ""
    balance(host, "0")
    # What was moved stays moved, and can still be undone.
    assert is_home(host, "one", 0)
    host.run("vmplace undo one", timeout=120)
    assert is_away(host, "one", 1) and is_home(host, "two", 3)


def test_a_killed_agents_moves_are_reported_and_undone_by_the_next(host: LabHost):
    before = pages_by_nid(host, "one")
    agent = start_over_balancing(host, mb_per_s=16)
    until(lambda: pages_by_nid(host, "one").get(0, 0) > 1000, "some pages are moved", agent)
    agent.kill("KILL")
    agent.wait(timeout=30)
    assert balancing(host) == "0"
    # A guest that runs would be moved once more: the kernel's own balancing is back with the undo.
    host.run("kill -STOP $(pidof qemu-system-x86_64)")
    host.run("vmplace undo", timeout=120)
    assert balancing(host) == "1"
    assert abs(pages_by_nid(host, "one")[1] - before[1]) < 500
    host.run("kill -CONT $(pidof qemu-system-x86_64)")


@pytest.mark.slow
def test_the_next_agent_knows_of_a_killed_one(host: LabHost):
    agent = start_agent(host, mb_per_s=16)
    until(lambda: pages_by_nid(host, "two").get(3, 0) > 1000, "some pages are moved", agent)
    pid = status(host)["pid"]
    agent.kill("KILL")
    agent.wait(timeout=30)
    second = start_agent(host)
    assert any(f"pid {pid} was killed" in note and "two:" in note for note in status(host)["notes"])
    until(lambda: is_home(host, "two", 3), "the next agent goes on", second)
    assert host.run("vmplace undo two", timeout=120).stdout.startswith("two: ")
    assert is_away(host, "two", 2)
    assert status(host)["guests"]["two"]["state"] == "held"


def affinities(host: LabHost, name: str) -> set[str]:
    """Return where the kernel says that the guest's vCPU threads may run."""
    grep = f"grep -l '^CPU .*/KVM' /proc/$(cat /run/libvirt/qemu/{name}.pid)/task/*/comm"
    script = f"for comm in $({grep}); do grep Cpus_allowed_list ${{comm%comm}}status; done"
    return {line.split()[1] for line in host.run(script).stdout.splitlines()}


@pytest.mark.slow
def test_vcpus_that_float_are_tied_to_their_memory_and_undo_lets_them_float(host: LabHost):
    for name in ("one", "two"):
        host.run(f"virsh vcpupin {name} 0 0-7 --live")
        assert affinities(host, name) == {"0-7"}
    techniques = 'techniques = ["move", "interleave", "replicate", "vcpus"]'
    agent = start_agent(host, rules=f'[guests."*"]\n{techniques}\n')
    # The memory of guest one is on node 1, that of two on node 2: there the vCPUs go, and no page moves.
    until(lambda: affinities(host, "one") == {"2-3"}, "vCPUs of one are tied to node 1", agent)
    until(lambda: affinities(host, "two") == {"4-5"}, "vCPUs of two are tied to node 2", agent)
    until(lambda: status(host)["guests"]["two"]["state"] == "settled", "all is quiet", agent)
    assert is_away(host, "one", 1) and is_away(host, "two", 2)
    assert "1 vCPUs given their CPUs back" in host.run("vmplace undo one", timeout=120).stdout
    assert affinities(host, "one") == {"0-7"} and affinities(host, "two") == {"4-5"}


def recorded(host: LabHost, path: str) -> dict[str, Any]:
    """Record for some seconds; for more, where the machine is so busy that these are no two windows."""
    reported: dict[str, Any] = {"windows": 0, "guests": 0}
    for seconds in (6, 30, 90):
        said = host.run(
            f"vmplace record {path} --force --duration {seconds} --json", check=False, timeout=300
        )
        if said.returncode == 0 and (reported := json.loads(said.stdout))["windows"] >= 2:
            break
    return reported


@pytest.mark.parametrize("source", ["kvm", "hints"])
def test_what_is_recorded_here_is_replayed_elsewhere(host: LabHost, tmp_path: Path, source: str):
    away = {"one": 1, "two": 2}
    before = {name: pages_by_nid(host, name)[nid] for name, nid in away.items()}
    config = f'source = "{source}"\n' + CONFIG.format(mb_per_s=4096)
    host.put(config.encode(), "/etc/vmplace/vmplace.toml")
    said = recorded(host, "/root/host.vmptrace")
    assert said["guests"] == 2 and said["windows"] >= 2
    # Nothing was moved; a guest may have touched memory for the first time meanwhile, where its vCPU is.
    assert all(pages_by_nid(host, name)[nid] >= before[name] for name, nid in away.items())
    assert all(is_away(host, name, nid) for name, nid in away.items())
    (tmp_path / "host.vmptrace").write_bytes(host.get("/root/host.vmptrace"))
    replay = ["replay", str(tmp_path / "host.vmptrace"), "--json"]
    reported = json.loads(CliRunner().invoke(cli, replay, catch_exceptions=False).stdout)
    for name in away:
        guest = reported["guests"][name]
        assert guest["lar_before"] < 0.1 and guest["lar_after"] > 0.9
        assert guest["moved_bytes"] > PRESENT * 4096


@pytest.mark.slow
def test_libvirtds_restart_and_a_guest_destroyed_in_the_middle_stop_nothing(host: LabHost):
    agent = start_agent(host, mb_per_s=16)
    until(lambda: pages_by_nid(host, "one").get(0, 0) > 500, "moves are going on", agent)
    host.run("systemctl kill --signal KILL libvirtd; systemctl restart libvirtd", timeout=120)
    host.run("kill -9 $(cat /run/libvirt/qemu/one.pid)")
    until(lambda: is_home(host, "two", 3), "the other guest gets home", agent)
    until(lambda: set(status(host)["guests"]) == {"two"}, "the dead guest is forgotten", agent)
    assert status(host)["guests"]["two"]["origin"] == "libvirt"
    agent.kill("TERM")
    assert agent.wait(timeout=60) == 0


@pytest.mark.slow
def test_the_services_sandbox_lets_it_work_and_ends_cleanly(host: LabHost):
    balance(host, "1")
    host.put(CONFIG.format(mb_per_s=512).encode(), "/etc/vmplace/vmplace.toml")
    host.run(
        "cp /opt/vmplace/vmplace/interfaces/vmplace.service /etc/systemd/system/; systemctl daemon-reload"
    )
    host.run("systemctl start vmplace", timeout=120)
    try:
        until(lambda: is_home(host, "one", 0) and is_home(host, "two", 3), "both guests are at home")
        assert status(host)["guests"]["one"]["origin"] == "libvirt" and balancing(host) == "0"
        host.run("systemctl stop vmplace", timeout=120)
        assert balancing(host) == "1" and host.run("ls -A /run/vmplace 2>&1", check=False).returncode != 0
        assert host.run("systemctl is-failed vmplace", check=False).stdout == "inactive\n"
    finally:
        print(host.run("journalctl -u vmplace --no-pager | tail -40", check=False).stdout)
