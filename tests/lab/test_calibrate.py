"""A calibration on a host of several nodes: everything is measured, between the nodes that are asked for.

An emulator's memory is as fast from anywhere, so its figures tell nothing, and no link may be found.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab.machine import LabHost, boot_host

pytestmark = pytest.mark.lab

PLACES = """
import threading
from vmplace.topology.streams import Reader, readings
from vmplace.topology.sysfs import read_host

def pages():
    found = {}
    for line in open("/proc/self/numa_maps"):
        if "bind:" in line:
            for word in line.split():
                if word[0] == "N" and "=" in word:
                    node, _, count = word[1:].partition("=")
                    found[int(node)] = found.get(int(node), 0) + int(count)
    return found

most = {}
def watch():
    while not done.wait(0.05):
        for node, count in pages().items():
            most[node] = max(most.get(node, 0), count)

done = threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
readings(read_host(), [Reader(0, 0, of=1), Reader(4, 2, of=3)], (1, 3), 1000)
done.set()
watcher.join()
print(sorted(most))
"""


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    with boot_host("n4-square-diagonal") as booted:
        yield booted


@pytest.fixture(scope="module")
def calibrated(host: LabHost) -> Any:
    command = "vmplace calibrate --duration-ms 50 --out /root/bandwidth.json --json"
    return json.loads(host.run(command, timeout=900).stdout)


def test_each_pair_has_a_bandwidth_and_a_latency(calibrated: Any):
    pairs = {(path["cpu_nid"], path["mem_nid"]) for path in calibrated["paths"]}
    assert pairs == {(a, b) for a in range(4) for b in range(4)}
    assert all(path["bytes_per_s"] > 0 and path["latency_ns"] > 0 for path in calibrated["paths"])


def test_each_node_is_measured_under_load(calibrated: Any):
    assert {(one["nid"], one["streams"]) for one in calibrated["loaded"]} == {(nid, 1) for nid in range(4)}


def test_an_emulators_memory_shows_no_links(calibrated: Any):
    assert calibrated["links"] == []


def test_it_is_shown_again_as_it_was_kept(host: LabHost, calibrated: Any):
    shown = host.run("vmplace calibrate --show --out /root/bandwidth.json --json", timeout=120).stdout
    assert json.loads(shown) == calibrated
    text = host.run("vmplace calibrate --show --out /root/bandwidth.json", timeout=120).stdout
    assert "ns for a line, idle" in text and "no links that farther nodes share" in text


def test_who_reads_from_one_node_has_memory_there_alone(host: LabHost):
    script = ["env", "PYTHONPATH=/opt/vmplace", "python3", "-c", PLACES]
    assert json.loads(host.run(script, timeout=300).stdout) == [1, 3]
