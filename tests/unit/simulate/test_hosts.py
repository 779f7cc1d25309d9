"""The hosts that come with the simulator."""

from pathlib import Path

import pytest

import vmplace.simulate
from tests.unit.simulate.small_trace import private_pages
from vmplace.errors import VmplaceError
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.host_file import read_host
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.run import simulate
from vmplace.simulate.source_views import source_named
from vmplace.simulate.trace import parse_trace

HOSTS = sorted((Path(vmplace.simulate.__file__).parent / "hosts").glob("*.toml"))
TRACE = parse_trace(private_pages(windows=3), name="small")


@pytest.mark.slow
@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "kmaf"])
def test_every_policy_brings_two_guests_to_their_end(path: Path, policy: str):
    host = read_host(path)
    specs = [guest_spec(name, TRACE, {}, host) for name in ("a", "b")]
    result = simulate(host, specs, POLICIES[policy], source_named("full"), windows=2)
    assert all(guest.run_time_s > 0 for guest in result.guests.values())


def test_kmaf_brings_a_guest_to_its_end():
    pytest.importorskip("pymetis", reason="pymetis (extra: plan) is not there")
    host = read_host(HOSTS[0])
    result = simulate(host, [guest_spec("a", TRACE, {}, host)], POLICIES["kmaf"], source_named("hints"))
    assert result.guests["a"].run_time_s > 0


def test_a_protected_guest_has_a_bound_and_an_unknown_priority_is_refused():
    host = read_host(HOSTS[0])
    assert guest_spec("a", TRACE, {"priority": "protected"}, host).slowdown_bound == 0.005
    with pytest.raises(VmplaceError, match="priority"):
        guest_spec("a", TRACE, {"priority": "high"}, host)
