from pathlib import Path

import numpy as np
import pytest

import vmplace.simulate
from vmplace.errors import ConfigError
from vmplace.model.published import CARREFOUR_2013
from vmplace.simulate.host_file import parse_host, read_host

HOSTS = Path(vmplace.simulate.__file__).with_name("hosts")
LAB = HOSTS.parents[2] / "lab/topologies"
TWO = """
distances = [[10, 20], [20, 10]]
bandwidth_mib_per_s = [[8000, 4000], [4000, 8000]]
[[node]]
nid = 0
cpus = 2
memory_mib = 64
[[node]]
nid = 3
memory_mib = 64
"""


@pytest.mark.parametrize("path", sorted(LAB.glob("*.toml")), ids=lambda path: path.stem)
def test_the_labs_topologies_are_hosts(path: Path):
    host = read_host(path)
    assert len(host.cpus) == len(host.system.nids)
    assert host.system.latency.min() == 87.0


def test_carrefours_machine_in_ns_is_the_one_that_was_fitted_in_cycles():
    system = read_host(HOSTS / "carrefour-a.toml").system
    np.testing.assert_allclose(system.latency * 2.3, CARREFOUR_2013.latency, rtol=1e-3)
    np.testing.assert_allclose(system.capacities / 2.3, CARREFOUR_2013.capacities, rtol=1e-3)


def test_nids_may_be_sparse_and_nodes_without_cpus():
    host = parse_host(TWO, name="two")
    assert (host.system.nids, host.cpus.tolist(), host.capacity_pages[1]) == ((0, 3), [2, 0], 16384)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[10, 20], ", "", "distances must be 2 rows of 2"),
        ("8000", "0", "bandwidth_mib_per_s is 0"),
        ("8000", "nan", "bandwidth_mib_per_s is nan"),
        ("64", "nan", "memory_mib"),
        ("cpus = 2", "cpus = nan", "cpus"),
        ("64", "1e400", "memory_mib"),
        ("cpus = 2", "cpus = 2\ncolour = 1", "unknown key 'colour'"),
        ("[[node]]", "queue = nan\n[[node]]", "queue is nan"),
        ("[[node]]", "queue = -1\n[[node]]", "queue is -1"),
        ("[[node]]", "local_latency_ns = nan\n[[node]]", "local_latency_ns is nan"),
        ("[[node]]", "[[link]]\nnids = [0, 5]\nbandwidth_mib_per_s = 1\n[[node]]", "two nodes of .0, 3."),
        ("nid = 3", "nid = 0", "ascend"),
        ("cpus = 2", "", "needs CPUs"),
        ("distances = [[10, 20], [20, 10]]", "", "lacks 'distances'"),
        ("distances", "distance", "unknown key 'distance'"),
        ("[[10", "[[", "two:|line"),
    ],
)
def test_what_is_wrong_with_a_host_file_is_said(old: str, new: str, message: str):
    with pytest.raises(ConfigError, match=message):
        parse_host(TWO.replace(old, new, 1), name="two")
