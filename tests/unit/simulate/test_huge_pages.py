"""Guests with huge pages: what is placed, moved, copied and seen as a whole.  Truth: counts made by hand."""

from typing import Any

import numpy as np
import pytest

from tests.unit.simulate.small_trace import Record, arrays_of
from vmplace.errors import VmplaceError
from vmplace.policy.host_view import REPLICATED
from vmplace.simulate.agent_source import TraceSource
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.guest_run import GuestRun, share_cpus
from vmplace.simulate.host_file import parse_host
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.result import SimulationResult
from vmplace.simulate.run import simulate
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import source_named
from vmplace.simulate.trace import Trace, parse_trace
from vmplace.simulate.trace_units import in_units

HOST = parse_host(
    """
distances = [[10, 30], [30, 10]]
bandwidth_mib_per_s = [[8000, 4000], [4000, 8000]]
node = [{nid = 0, cpus = 2, memory_mib = 64}, {nid = 3, cpus = 2, memory_mib = 64}]
""",
    name="two",
)
BLOCK, WINDOWS = 512, 24
MIB = 1 << 20


def trace_of(records: list[Record], pages: int, **arrays: Any) -> Trace:
    whole = arrays_of(records, pages=pages, threads=2, windows=1 + max(one[0] for one in records))
    return parse_trace(whole | arrays, name="made-up")


def halves(blocks: int = 2, stores: int = 0, heat: int = 600) -> Trace:
    """Return a trace in which each thread uses one half of each block; thread 0 touches first."""
    pages = range(blocks * BLOCK)
    users = [(page, int(page % BLOCK >= BLOCK // 2)) for page in pages]
    records = [(w, page, user, heat, stores) for w in range(WINDOWS) for page, user in users]
    first = np.array([user for _, user in users], np.uint16)
    return trace_of(records, blocks * BLOCK, first_touch_thread=first)


def simulation_of(trace: Trace, **options: str) -> tuple[Simulation, GuestRun]:
    guest = GuestRun(guest_spec("g", trace, options, HOST), HOST, WINDOWS)
    share_cpus([guest], HOST)
    return Simulation(HOST, [guest], POLICIES["none"], source_named("full"), PlacementCosts()), guest


def result(trace: Trace, policy: str, source: str = "full", **options: str) -> SimulationResult:
    spec = guest_spec("g", trace, options, HOST)
    return simulate(HOST, [spec], POLICIES[policy], source_named(source))


def test_the_accesses_of_a_huge_page_are_those_of_its_small_ones() -> None:
    records = [(0, 0, 0, 5, 1), (0, 511, 0, 7, 0), (0, 1, 1, 2, 2), (0, 512, 0, 9, 0), (1, 3, 0, 4, 0)]
    huge = in_units(trace_of(records, 600), BLOCK)
    found = list(zip(huge.page, huge.thread, huge.loads, huge.stores, strict=True))
    assert found == [(0, 0, 12, 1), (0, 1, 2, 2), (1, 0, 9, 0), (0, 0, 4, 0)]
    assert huge.window_starts.tolist() == [0, 3, 4]
    assert huge.npages == 2


def test_a_huge_page_lives_from_the_first_touch_to_the_last_unmapping() -> None:
    touched, unmapped = [0, 0, 2, 5], [1, 3, 3, 65535]
    records = [(window, page, 0, 1, 0) for page, window in enumerate(touched)]
    arrays = {"first_touch_epoch": np.array(touched), "free_epoch": np.array(unmapped)}
    huge = in_units(trace_of(records, 4, **arrays), BLOCK)
    assert huge.first_touch_window.tolist() == [0, 5]
    assert huge.free_window.tolist() == [3, 65535]
    assert huge.frame.tolist() == [0, 0]


@pytest.mark.parametrize("never", [65535, 65536, 1 << 31])
def test_whatever_is_unmapped_after_the_last_window_leaves_each_block_its_own(never: int) -> None:
    records = [(w, page, page % 2, 10, 0) for w in range(3) for page in range(6)]
    arrays = {
        "vpn": np.array([0, 1, 512, 513, 1024, 1025]),
        "free_epoch": np.full(6, never, np.uint32),
    }
    huge = in_units(trace_of(records, 6, **arrays), BLOCK)
    assert huge.npages == 3
    assert huge.free_window.tolist() == [65535] * 3


@pytest.mark.parametrize("name", ["thread", "page_idx", "first_touch_epoch", "free_epoch"])
def test_arrays_of_unsigned_64_bits_are_as_good_as_others(name: str) -> None:
    records = [(0, 0, 0, 5, 1), (0, 511, 1, 7, 0)]
    whole = arrays_of(records, pages=512, threads=2, windows=1)
    huge = in_units(parse_trace(whole | {name: whole[name].astype(np.uint64)}, name="made-up"), BLOCK)
    assert huge.thread.tolist() == [0, 1]
    assert huge.loads.tolist() == [5, 7]


@pytest.mark.parametrize(("pages", "lar"), [("4K", 1.0), ("2M", 0.5)])
def test_halves_of_two_nodes_lie_on_the_node_of_the_first_touch(pages: str, lar: float) -> None:
    assert result(halves(), "none", pages=pages).lar == pytest.approx(lar)


def test_smaller_blocks_that_one_node_uses_are_all_local() -> None:
    assert result(halves(), "none", pages="64K").lar == pytest.approx(1.0)


def test_a_huge_page_takes_the_memory_of_all_its_small_ones() -> None:
    touched = trace_of([(0, 0, 0, 9, 0), (0, 1, 0, 9, 0)], 2, vpn=np.array([5, BLOCK * 7]))
    simulation, _ = simulation_of(touched, pages="2M")
    assert (HOST.capacity_pages - simulation.free_pages()).tolist() == [2 * BLOCK, 0]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["vmplace", "agent:auto", "kernel-balancing-model", "kmaf"])
def test_policies_bring_huge_pages_home_as_a_whole(policy: str) -> None:
    far = {"nodes": "3", "first_touch": "0", "pages": "2M"}
    source = {"kernel-balancing-model": "hints", "kmaf": "hints"}.get(policy, "full")
    moved = result(halves(blocks=4, heat=2500), policy, source, **far).guests["g"].moved_bytes
    assert moved == 4 * 2 * MIB


@pytest.mark.parametrize(("pages", "copied"), [("4K", True), ("2M", False)])
def test_a_huge_page_of_which_a_part_is_written_has_no_copies(pages: str, copied: bool) -> None:
    readers = [(w, p, t, 900, 0) for w in range(WINDOWS) for p in range(BLOCK) for t in (0, 1)]
    written = [(w, p, t, 900, 9 * (p == 7)) for w, p, t, _, _ in readers]
    trace = trace_of(written, BLOCK)
    _, guest = simulation_of(trace, pages=pages)
    guest.put(np.arange(len(guest.node)), REPLICATED)
    guest.collapse()
    assert bool((guest.node == REPLICATED).any()) is copied
    assert guest.counts.collapsed == (1 if copied else BLOCK)


def test_a_huge_move_costs_its_copying_and_the_rest_once() -> None:
    costs = PlacementCosts(move_ns=2000.0)
    assert costs.unit_ns(1) == 2000.0
    # 1.6 us of work, and 2 MiB at 10.24 bytes a ns.
    assert costs.unit_ns(BLOCK) == pytest.approx(1600 + 2 * MIB / 10.24)


def test_what_a_huge_move_costs_is_lost_by_the_guest() -> None:
    simulation, guest = simulation_of(halves(blocks=3), nodes="3", first_touch="0", pages="2M")
    simulation._apply(guest, np.array([1, 1, 0], np.int8))
    assert guest.counts.moved == 2 * BLOCK
    # Two vCPUs share the work; each block is a batch of its own, whose flush both wait for.
    copying = 2 * (1600 + 2 * MIB / 10.24) / 2
    assert simulation.pause["g"] == pytest.approx(copying + 2 * 5000)


def test_the_agent_sees_huge_pages_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    harvest = TraceSource.harvest

    def kept(self: TraceSource, guest: Any) -> Any:
        batch = harvest(self, guest)
        seen.append(batch.ranges[0])
        return batch

    monkeypatch.setattr(TraceSource, "harvest", kept)
    result(halves(blocks=3, heat=4000), "agent:auto", "ad", nodes="3", first_touch="0", pages="2M")
    sample = seen[0]
    assert sample.huge.tolist() == [1, 1, 1]
    assert len(sample.accessed) == 3 * BLOCK
    bits = sample.accessed.reshape(3, BLOCK)
    assert (bits == bits[:, :1]).all()


@pytest.mark.parametrize("pages", ["", "1G", "2m", "512"])
def test_other_sizes_are_refused(pages: str) -> None:
    with pytest.raises(VmplaceError, match="pages is"):
        guest_spec("g", halves(blocks=1), {"pages": pages}, HOST)
