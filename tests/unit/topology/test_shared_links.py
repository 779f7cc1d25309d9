"""Links that accesses share are found where two paths get less at once, on hosts of which that is known.

The truth is the host files of the simulator, and copies of them with more bandwidth than CPUs can use.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vmplace.simulate
from vmplace.simulate.calibrated_host import as_calibrated
from vmplace.simulate.host_file import SimulatedHost, read_host
from vmplace.topology.host import HostTopology, Node
from vmplace.topology.shared_links import Contest, contests, shared_links

HOSTS = sorted((Path(vmplace.simulate.__file__).parent / "hosts").glob("*.toml"))
SQUARE = {(0, 1), (0, 3), (1, 2), (2, 3)}
GB = 10**9


def bare(simulated: SimulatedHost) -> HostTopology:
    nids, latency = simulated.system.nids, simulated.system.latency / simulated.system.latency.min()
    counts = zip(nids, simulated.cpus.astype(int).tolist(), simulated.capacity_pages, strict=True)
    nodes = tuple(
        Node(nid, tuple(range(100 * nid, 100 * nid + count)), int(pages) * 4096, int(pages) * 2048)
        for nid, count, pages in counts
    )
    distances = {(a, b): round(10 * latency[i, j]) for i, a in enumerate(nids) for j, b in enumerate(nids)}
    return HostTopology(nodes, distances)


def wider(simulated: SimulatedHost, times: float) -> SimulatedHost:
    links = tuple(replace(link, capacity=times * link.capacity) for link in simulated.system.links)
    system = replace(simulated.system, controller=times * simulated.system.controller, links=links)
    return replace(simulated, system=system)


def of_name(name: str) -> SimulatedHost:
    return read_host(next(path for path in HOSTS if path.stem == name))


def true_links(simulated: SimulatedHost) -> set[tuple[int, ...]]:
    nids = simulated.system.nids
    return {tuple(sorted(nids[i] for i in one.ends)) for one in simulated.system.links if not one.directed}


@pytest.mark.parametrize("times", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_links_and_waits_of_each_simulated_host_are_found(path: Path, times: float):
    simulated = wider(read_host(path), times)
    found = as_calibrated(bare(simulated), simulated)
    assert {link.nids for link in found.links} == true_links(simulated)
    # With few CPUs and much bandwidth nothing tells how long accesses would wait.
    assert found.queue is None or found.queue == pytest.approx(simulated.system.queue, rel=0.01)
    assert found.queue is not None or times != 1


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_where_cpus_cannot_fill_links_none_are_made_up(path: Path):
    simulated = wider(read_host(path), 8.0)
    found = as_calibrated(bare(simulated), simulated)
    assert found.links == ()
    assert found.queue is None or found.queue == pytest.approx(simulated.system.queue, rel=0.01)


def square(**changed: object) -> HostTopology:
    """Return four nodes in a square, each path measured alone."""
    nodes = tuple(Node(nid, (2 * nid, 2 * nid + 1), 1 << 30, 1 << 29) for nid in range(4))
    far = {(a, b): 22 if abs(a - b) == 2 else 16 for a in range(4) for b in range(4) if a != b}
    host = HostTopology(
        nodes, far | {(nid, nid): 10 for nid in range(4)}, bandwidths=dict.fromkeys(far, 10 * GB)
    )
    return replace(host, **changed)  # type: ignore[arg-type]


def shared(host: HostTopology, way: float = 6.0, control: float = 10.0) -> dict[Contest, tuple[float, float]]:
    """Return what both paths get: less where the farther of them takes the other one's link."""
    return {one: ((way if host.distances[one.one] == 22 else control) * GB,) * 2 for one in contests(host)}


def test_links_of_which_one_path_alone_loses_are_none():
    """The far path may lose by what the node that it reads from does, and not by a link."""
    got = shared(square())
    for contest in got:
        if square().distances[contest.one] == 22:
            got[contest] = (6.0 * GB, 9.9 * GB)
    assert shared_links(square(), got) == ()


def test_without_a_control_no_link_is_believed():
    got = {one: rates for one, rates in shared(square()).items() if square().distances[one.one] == 22}
    assert shared_links(square(), got) == ()


def test_far_nodes_that_get_much_less_than_links_carry_are_narrow_by_themselves():
    narrow = {
        pair: 3 * GB if square().distances[pair] == 22 else rate for pair, rate in square().bandwidths.items()
    }
    host = square(bandwidths=narrow)
    got = {
        one: (one_rate * narrow[one.one] / 10 / GB, other * narrow[one.other] / 10 / GB)
        for one, (one_rate, other) in shared(host).items()
    }
    assert shared_links(host, got) == ()


def test_two_nodes_without_cpus_need_no_latency_between_them():
    far = {(a, b): 10 if a == b else 21 for a in range(4) for b in range(4)}
    nodes = tuple(Node(nid, (nid,) if nid < 2 else (), 1 << 30, 1 << 29) for nid in range(4))
    known = {(0, 0): 90.0, (1, 1): 90.0, (0, 1): 140.0, (1, 0): 140.0}
    known |= {(0, 2): 220.0, (1, 2): 400.0, (0, 3): 400.0, (1, 3): 220.0}
    tried = contests(HostTopology(nodes, far, idle_latencies=known))
    assert Contest((1, 2), (0, 1)) in tried and Contest((0, 3), (1, 0)) in tried


def test_links_are_found_where_paths_get_less_at_once_and_others_do_not():
    assert {link.nids for link in shared_links(square(), shared(square()))} == SQUARE


@pytest.mark.parametrize(("way", "control"), [(9.5, 10.0), (6.0, 7.0), (10.0, 10.0)])
def test_what_the_control_loses_as_well_is_no_link(way: float, control: float):
    assert shared_links(square(), shared(square(), way, control)) == ()


def test_one_pair_that_shares_nothing_leaves_each_path_its_own():
    host, got = square(), shared(square())
    for contest in got:
        if {*contest.one} == {0, 2}:
            got[contest] = (10.0 * GB, 10.0 * GB)
    assert shared_links(host, got) == ()


def test_without_measurements_there_are_no_links():
    assert shared_links(square(), {}) == ()
    assert shared_links(square(bandwidths={}), shared(square())) == ()


def test_a_link_of_unknown_width_leaves_each_path_its_own():
    """That of nodes 2 and 3, which no way from the others' side needs to be shown."""
    some = {pair: rate for pair, rate in square().bandwidths.items() if set(pair) != {2, 3}}
    got = {one: rates for one, rates in shared(square()).items() if {*one.one} != {2, 3} != {*one.other}}
    assert shared_links(square(), got) != ()
    assert shared_links(square(bandwidths=some), got) == ()


@pytest.mark.parametrize("seed", range(50))
def test_latencies_that_vary_make_no_links_of_nodes_that_are_joined(seed: int):
    """One node may seem to lie between two others; but no path loses anything while others are read."""
    chance = np.random.default_rng(seed)
    pairs = [(a, b) for a in range(4) for b in range(4)]
    latencies = {(a, b): (90.0 if a == b else 140.0) * (1 + 0.05 * chance.normal()) for a, b in pairs}
    host = square(idle_latencies=latencies)
    vary = lambda: 10.0 * GB * (1 + 0.05 * chance.normal())  # noqa: E731
    host = replace(host, bandwidths={pair: round(vary()) for pair in host.bandwidths})
    assert shared_links(host, {one: (vary(), vary()) for one in contests(host)}) == ()


def test_sockets_of_two_nodes_each_have_no_links_that_are_known():
    """Those of the other socket are all as far: none of them lies between."""
    far = {(a, b): 10 if a == b else 12 if a // 2 == b // 2 else 32 for a in range(4) for b in range(4)}
    assert contests(square(distances=far)) == ()


def test_hosts_of_so_many_nodes_that_it_would_take_long_are_not_tried():
    nids = range(24)
    nodes = tuple(Node(nid, (nid,), 1 << 30, 1 << 29) for nid in nids)
    ring = {(a, b): 10 + 6 * min((a - b) % 24, (b - a) % 24) for a in nids for b in nids}
    assert contests(HostTopology(nodes, ring)) == ()
