"""Under systemd the agent comes back by itself, whatever ended it, and takes over what it had."""

import json
from collections.abc import Iterator

import pytest

from lab.machine import LabHost
from tests.lab.test_agent import CONFIG, balance, balancing, host, snapshot, status, until

__all__ = ["host", "snapshot"]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

DROP_IN = """
[Service]
RestartSec=1
# An emulated host is slow; the unit has 180.
WatchdogSec=25
TimeoutAbortSec=1
"""
KDAMONDS = "/sys/kernel/mm/damon/admin/kdamonds"


@pytest.fixture
def service(host: LabHost) -> Iterator[LabHost]:
    balance(host, "1")
    host.run("mkdir -p /etc/systemd/system/vmplace.service.d")
    host.put(DROP_IN.encode(), "/etc/systemd/system/vmplace.service.d/test.conf")
    host.run(
        "cp /opt/vmplace/vmplace/interfaces/vmplace.service /etc/systemd/system/; systemctl daemon-reload"
    )
    try:
        yield host
    finally:
        print(host.run("journalctl -u vmplace --no-pager | tail -80", check=False).stdout)


def start(host: LabHost, source: str) -> int:
    config = f'source = "{source}"\n' + CONFIG.format(mb_per_s=512)
    host.put(config.encode(), "/etc/vmplace/vmplace.toml")
    host.run("systemctl start vmplace", timeout=120)
    return works(host, source)


def works(host: LabHost, source: str, *, other_than: int = 0) -> int:
    """Wait for an agent that samples both guests and has taken the balancing; return its pid."""

    def is_so() -> bool:
        reported = status(host)
        looked = [guest.get("pages_by_node") for guest in reported["guests"].values()]
        return (
            reported.get("pid", other_than) != other_than
            and len(looked) == 2
            and all(looked)
            and balancing(host) == "0"
        )

    until(is_so, f"an agent with source {source} works")
    reported = status(host)
    assert reported["source"] == source
    return int(reported["pid"])


def ended(host: LabHost) -> str:
    """Return what systemd and the agent say of the agent's ends, newest last."""
    return host.run("journalctl -u vmplace --no-pager", check=False).stdout


@pytest.mark.slow
@pytest.mark.parametrize("source", ["damon", "idle", "kvm"])
def test_an_agent_comes_back_and_takes_over_whatever_ended_it(service: LabHost, source: str):
    """In one run, as each end costs a minute of emulation: killed, out of memory, hanging."""
    first = start(service, source)
    service.run("systemctl kill -s KILL --kill-whom=main vmplace")
    second = works(service, source, other_than=first)
    assert any(f"pid {first} was killed" in note for note in status(service)["notes"])
    # In between the kernel had its own back, and it has so after the last one.
    assert "kernel.numa_balancing=0->1: given back" in ended(service)

    service.run("systemctl set-property --runtime vmplace MemoryMax=16M")
    until(lambda: "killed by the OOM killer" in ended(service), "the agent is out of memory")
    service.run("systemctl set-property --runtime vmplace MemoryMax=infinity")
    third = works(service, source, other_than=second)

    service.run(f"kill -STOP {third}")
    until(lambda: "Watchdog timeout" in ended(service), "the watchdog bites")
    last = works(service, source, other_than=third)

    service.run("sed -i 's/^RestartSec=.*/Restart=no/' /etc/systemd/system/vmplace.service.d/test.conf")
    service.run(f"systemctl daemon-reload; kill -9 {last}")
    until(lambda: balancing(service) == "1", "the kernel has its balancing back")
    if source == "damon":
        until(lambda: service.run(f"cat {KDAMONDS}/nr_kdamonds").stdout.strip() == "0", "DAMON is free again")


def test_the_service_is_limited_by_the_hosts_size(service: LabHost):
    agent = start(service, "idle")
    shown = service.run("systemctl show vmplace -p MemoryMax -p MemoryHigh -p WatchdogUSec").stdout
    limits = dict(line.split("=") for line in shown.splitlines())
    memory = int(service.run("awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo").stdout)
    assert abs(int(limits["MemoryMax"]) / memory - 0.05) < 0.01
    limit = service.run(f"grep 'Max data size' /proc/{agent}/limits").stdout
    # 256 MiB and 16 bytes for each page of 4 KiB.
    assert 256 << 20 < int(limit.split()[3]) <= (256 << 20) + memory / 256
    assert json.loads(service.run("vmplace status --json").stdout)["windows"] >= 1
