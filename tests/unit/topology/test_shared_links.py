"""Links that paths share follow from what all CPUs get that read at once, on hosts of which that is known.

The truth is the host files of the simulator: which links there are, and how wide.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import vmplace.simulate
from vmplace.simulate.agent_host import _calibrated
from vmplace.simulate.host_file import SimulatedHost, read_host
from vmplace.topology.host import HostTopology
from vmplace.topology.shared_links import shared_links

HOSTS = sorted((Path(vmplace.simulate.__file__).parent / "hosts").glob("*.toml"))
SQUARE = {(0, 1), (0, 3), (1, 2), (2, 3)}


def cpus_of(host: SimulatedHost) -> dict[int, tuple[int, ...]]:
    counts = zip(host.system.nids, host.cpus.astype(int).tolist(), strict=True)
    return {nid: tuple(range(100 * nid, 100 * nid + count)) for nid, count in counts}


def known(name: str) -> HostTopology:
    path = next(path for path in HOSTS if path.stem == name)
    return _calibrated(read_host(path), cpus_of(read_host(path)))


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_the_links_of_each_simulated_host_are_found_and_no_others(path: Path):
    simulated = read_host(path)
    true = {
        tuple(sorted(simulated.system.nids[i] for i in link.ends)): link.capacity * 64e9
        for link in simulated.system.links
        if not link.directed
    }
    found = {link.nids: link.bytes_per_s for link in _calibrated(simulated, cpus_of(simulated)).links}
    assert found == pytest.approx(true)


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_how_long_accesses_wait_is_found_on_each_simulated_host(path: Path):
    simulated = read_host(path)
    assert _calibrated(simulated, cpus_of(simulated)).queue == pytest.approx(simulated.system.queue, rel=0.01)


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_measurement_that_is_a_tenth_off_finds_the_same_links(share: float):
    host = known("square-diagonal")
    together = {
        workers: {pair: rate * share for pair, rate in rates.items()}
        for workers, rates in host.worker_bandwidths.items()
    }
    found = shared_links(replace(host, worker_bandwidths=together))
    assert {link.nids for link in found} == SQUARE


def test_without_measurements_of_all_at_once_each_path_is_its_own():
    host = known("square-diagonal")
    assert shared_links(replace(host, worker_bandwidths={})) == ()
    lacking = {pair: rate for pair, rate in host.bandwidths.items() if pair != (0, 2)}
    assert shared_links(replace(host, bandwidths=lacking)) == ()


def test_firmwares_distances_stand_in_for_latencies():
    host = replace(known("square-diagonal"), latencies={})
    assert {link.nids for link in shared_links(host)} == SQUARE


def test_where_all_got_what_paths_are_wide_nothing_is_shared():
    host = known("square-diagonal")
    workers = host.nids
    # Controllers are as busy as they can be: nothing else has to explain what was measured.
    alone = {(a, b): host.bandwidths[b, b] for a in workers for b in workers}
    assert shared_links(replace(host, worker_bandwidths={workers: alone})) == ()


def test_links_that_would_carry_more_than_they_can_are_none():
    host = known("square-diagonal")
    narrow = {pair: rate if pair[0] == pair[1] else rate // 3 for pair, rate in host.bandwidths.items()}
    assert shared_links(replace(host, bandwidths=narrow)) == ()
