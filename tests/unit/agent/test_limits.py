"""What a guest's policy allows is all that happens to it: each key through the loop, to the actuator."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.agent.agent_world import GIB, HOST, HVA, NPAGES, World, batch, guest
from tests.unit.agent.test_guest_policy import domain_xml
from tests.unit.agent.test_loop import Running
from vmplace.actuation.result import Copies
from vmplace.agent.config import parse_config
from vmplace.agent.discovered import Discovered
from vmplace.agent.limits import GuestLimits, limited
from vmplace.model.page_windows import absorbed
from vmplace.policy.plan import GuestSettings, GuestView, Move, PlacementPlan, Replication, Snapshot
from vmplace.policy.schedule import parse_stretch
from vmplace.topology.domain_policy import QEMU, Numatune, domain_policy
from vmplace.topology.guest import GuestTopology, Vcpu

UUID = "8f1d3c52-0000-0000-0000-000000000001"


def named(name: str = "db1") -> GuestTopology:
    return replace(guest(name), uuid=UUID)


def world_of(words: dict[str, str] | None, *, more: str = "", **options: object) -> World:
    world = World([named()], **options)  # type: ignore[arg-type]
    world.policies = {UUID: domain_policy(domain_xml(words, more=more))}
    return world


def one_window(world: World, words: dict[str, str] | None = None) -> tuple[str, ...]:
    """Let a window pass; return what is reported of the guest."""
    agent = world.agent()
    agent.run(windows=1)
    return agent.status.guests["db1"].reasons


def test_without_a_word_the_guest_moves():
    world = world_of({})
    one_window(world)
    assert world.applied == ["db1"]


STAYS = [
    ({"mode": "manual"}, ""),
    ({"mode": "advise"}, ""),
    ({"techniques": "replicate"}, "does not allow to move"),
    ({"allowed_nids": "0"}, ""),
    ({"preferred_nids": "0"}, ""),
    ({"schedule": "Mon 00:00-00:01"}, "schedule does not allow"),
]


@pytest.mark.parametrize(("words", "why"), STAYS)
def test_what_the_policy_does_not_allow_does_not_happen(words, why):
    world = world_of(words)
    # Not in that minute of the week.
    reasons = one_window(world)
    assert world.applied == []
    assert why in " ".join(reasons)


def test_memory_is_not_moved_faster_than_the_guests_own_rate():
    world = world_of({"move_mb_per_s": "1"})
    agent = world.agent()
    agent.run(windows=1)
    # 2 MiB, the least that an allowance holds, of 4 MiB.
    assert agent.status.moved_bytes == 2 << 20
    assert any("move_mb_per_s" in reason for reason in agent.status.guests["db1"].reasons)


def test_preferred_nodes_without_room_are_reported_and_others_taken(monkeypatch: pytest.MonkeyPatch):
    full = replace(HOST, nodes=(replace(HOST.nodes[0], free_bytes=GIB // 10), HOST.nodes[1]))
    world = world_of({"preferred_nids": "0"})
    world.nid_of["db1"] = 1
    world.running = [replace(named(), vcpus=(Vcpu(0, 2, (2,)),))]
    monkeypatch.setattr(world, "host", lambda: full)
    reasons = one_window(world)
    assert world.applied == []
    assert "preferred nodes 0 have no room for 4 MiB more" in " ".join(reasons)


def test_vcpus_are_tied_only_where_that_is_allowed():
    for words, cpus in (({}, (0, 1, 2, 3)), ({"techniques": "move vcpus"}, (0, 1))):
        world = world_of(words)
        world.running = [replace(named(), vcpus=(Vcpu(0, 2, (0, 1, 2, 3)),))]
        one_window(world)
        assert world.running[0].vcpus[0].cpus == cpus


def test_a_policy_that_changes_is_followed_without_a_restart():
    world = world_of({"mode": "advise"})
    with Running(world) as running:
        running.pass_windows()
        assert world.applied == []
        world.policies = {UUID: domain_policy(domain_xml({"mode": "auto"}))}
        running.pass_windows()
        assert world.applied == ["db1"]
        world.policies = {UUID: domain_policy(domain_xml({"mode": "atuo"}))}
        running.pass_windows()
        reported = running.agent.status.guests["db1"]
        assert reported.mode == "manual" and "atuo" in str(reported.problem)


def test_nothing_moves_while_libvirt_owes_the_policy_of_a_new_guest():
    world = World([named()])
    world.awaited = frozenset({UUID})
    with Running(world) as running:
        running.pass_windows()
        assert world.applied == []
        # It may be one that is to be left alone: root's word does not make up for that.
        assert running.order("apply", "db1") == ("nothing to move",)
        assert "libvirt does not answer" in " ".join(running.agent.status.guests["db1"].reasons)
        world.awaited = frozenset()
        running.pass_windows()
    assert world.applied == ["db1"]


def test_no_plan_is_made_while_libvirt_owes_the_policies_of_all_guests():
    planned = []

    def policy(snapshot: Snapshot) -> PlacementPlan:
        planned.append(len(snapshot.guests))
        return PlacementPlan()

    world = World([named()], policy=policy)
    world.awaited = frozenset({UUID})
    world.agent().run(windows=2)
    assert planned == []
    world.running.append(guest("db2"))
    world.agent().run(windows=1)
    assert planned == [2]


def test_a_guest_that_libvirt_tells_of_ends_the_rest():
    world = World([named()])
    world.awaited = frozenset({UUID})
    agent = world.agent()
    assert agent.refresh_stage.refresh() and not agent.refresh_stage.refresh()
    world.awaited = frozenset()
    assert agent.refresh_stage.refresh() and not agent.refresh_stage.refresh()


def test_another_configuration_is_followed():
    world = world_of({})
    agent = world.agent()
    agent.roster.update(world.running, (0, 1))
    text = '[guests.db1]\nmode = "advise"\n'
    agent.roster.reload(parse_config(text, Path("vmplace.toml")), (0, 1))
    tracked = agent.roster.get("db1")
    assert tracked and tracked.settings.mode.value == "advise"


def replication(hva: list[int], npages: list[int]) -> Replication:
    return Replication("db1", np.array(hva, np.uint64), np.array(npages, np.int32), (0, 1), "only read")


def copies_of(settings: GuestSettings, *wanted: Replication, huge: tuple[int, ...] = ()) -> list[Replication]:
    pages = absorbed(None, batch(named()))
    blocks = np.zeros_like(pages.ranges[0].huge)
    blocks[list(huge)] = 1
    pages = replace(pages, ranges=(replace(pages.ranges[0], huge=blocks),))
    limits = GuestLimits(named(), settings, pages)
    return list(limited(PlacementPlan(replications=wanted), {"db1": limits}).replications)


def test_copies_stay_on_the_nodes_that_numatune_binds_their_cell_to():
    ram = named().ram[0]
    half = ram.npages // 2
    second = replace(ram, hva=ram.hva + half * 4096, npages=half, cell=1)
    cells = replace(named(), ram=(replace(ram, npages=half, cell=0), second))
    wanted = replication([HVA, second.hva], [half, half])

    def copied(nids: dict[int | None, tuple[int, ...]]) -> list[int]:
        limits = GuestLimits(cells, GuestSettings(), None, Numatune(nids, is_strict=True))
        plan = limited(PlacementPlan(replications=(wanted,)), {"db1": limits})
        return [hva for one in plan.replications for hva in one.hva.tolist()]

    assert copied({}) == [HVA, second.hva]
    assert copied({0: (0,), 1: (0, 1)}) == [second.hva]
    assert copied({None: (0, 1), 0: (0,), 1: (1,)}) == []


def test_copies_keep_to_what_the_policy_allows():
    wanted = replication([HVA], [NPAGES])
    assert copies_of(GuestSettings(), wanted)[0].limit_bytes is None
    assert copies_of(GuestSettings(replica_bytes=4096), wanted)[0].limit_bytes == 4096
    assert copies_of(GuestSettings(replicates=False), wanted) == []
    assert copies_of(GuestSettings(replica_bytes=0), wanted) == []
    assert copies_of(GuestSettings(allowed_nids=(1, 2)), replace(wanted, nids=(0, 1, 2)))[0].nids == (1, 2)


def test_copies_that_a_policy_allows_on_one_node_no_more_are_dropped():
    wanted = replication([HVA], [NPAGES])
    limits = GuestLimits(named(), GuestSettings(allowed_nids=(1,)))
    plan = limited(PlacementPlan(replications=(wanted,)), {"db1": limits})
    (drop,) = plan.collapses
    assert plan.replications == () and drop.hva is wanted.hva and "policy" in drop.reason


def test_huge_pages_that_are_left_are_cut_out_of_runs():
    # Two blocks of 512 pages; the second is huge, and the run begins and ends within blocks.
    wanted = replication([HVA + 100 * 4096], [800])
    (kept,) = copies_of(GuestSettings(huge_pages=False), wanted, huge=(1,))
    assert kept.hva.tolist() == [HVA + 100 * 4096] and kept.npages.tolist() == [412]
    assert copies_of(GuestSettings(huge_pages=False), wanted)[0].pages == 800


def move(npages: list[int], to_nid: list[int]) -> Move:
    count = len(npages)
    hva = np.array([HVA + i * (2 << 20) for i in range(count)], np.uint64)
    return Move(
        "db1", hva, np.array(npages, np.uint16), np.zeros(count, np.int16), np.array(to_nid, np.int16), "why"
    )


def moves_of(limits: GuestLimits, wanted: Move) -> list[int]:
    kept = limited(PlacementPlan((wanted,)), {"db1": limits}).moves
    return [int(hva - HVA) >> 21 for one in kept for hva in one.hva]


def test_huge_pages_are_moved_only_where_that_is_allowed():
    limits = GuestLimits(named(), GuestSettings(huge_pages=False))
    assert moves_of(limits, move([1, 512, 1], [1, 1, 1])) == [0, 2]


def test_a_plan_that_names_other_nodes_is_cut():
    assert moves_of(GuestLimits(named(), GuestSettings(allowed_nids=(1,))), move([1, 1], [0, 1])) == [1]


def test_the_memory_of_a_cell_stays_where_numatune_binds_it():
    ram = named().ram[0]
    cells = (replace(ram, npages=512, cell=0), replace(ram, hva=HVA + (2 << 20), npages=512, cell=1))
    topology = replace(named(), ram=cells)
    numatune = Numatune({None: (0, 1), 0: (0,), 1: (1,)})
    limits = GuestLimits(topology, GuestSettings(), numatune=numatune)
    assert moves_of(limits, move([1, 1], [1, 1])) == [1]


def bound_by_qemu(world: World, nids: dict[int | None, tuple[int, ...]]) -> World:
    world.bound = {one.identity: Numatune(nids, is_strict=True, by=QEMU) for one in world.running}
    return world


@pytest.mark.parametrize("nids, moves", [({None: (0,)}, False), ({None: (0, 1)}, True), ({}, True)])
def test_memory_that_qemu_binds_stays_on_its_nodes(nids: dict[int | None, tuple[int, ...]], moves: bool):
    """Of a guest whose memory is on node 0, and whose vCPU runs on node 1."""
    world = bound_by_qemu(World([guest("db1", origin="kvm")]), nids)
    one_window(world)
    assert world.applied == (["db1"] if moves else [])


def test_cells_that_qemu_binds_stay_on_their_nodes_and_why_is_reported():
    ram = named().ram[0]
    half = ram.npages // 2
    cells = (replace(ram, npages=half, cell=0), replace(ram, hva=HVA + half * 4096, npages=half, cell=1))
    vcpus = tuple(Vcpu(cell, 7 + cell, (2,), cell) for cell in (0, 1))
    world = bound_by_qemu(World([replace(guest("db1", origin="kvm"), vcpus=vcpus, ram=cells)]), {0: (0,)})
    reasons = one_window(world)
    assert world.applied == ["db1"]
    assert "2 MiB stay: QEMU's policy=bind binds it to other nodes" in reasons


def test_what_libvirt_says_of_a_guest_holds_in_place_of_its_command_line():
    world = bound_by_qemu(world_of({}), {None: (0,)})
    one_window(world)
    assert world.applied == ["db1"]


def test_a_guest_that_qemu_binds_is_left_alone_too_until_libvirt_tells_its_policy():
    world = bound_by_qemu(World([named()]), {None: (0, 1)})
    world.awaited = frozenset({UUID})
    with Running(world) as running:
        running.pass_windows()
        running.pass_windows()
        assert world.applied == []


def test_what_qemu_binds_holds_while_guests_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch):
    world = bound_by_qemu(World([guest("db1", origin="kvm")]), {None: (0,)})
    agent = world.agent()
    agent.run(windows=1)

    def fail() -> Discovered:
        raise OSError("too many open files")

    monkeypatch.setattr(world, "guests", fail)
    agent.run(windows=1)
    assert world.applied == [] and agent.roster.get("db1") is not None


def test_allowed_nodes_that_qemu_binds_no_memory_to_leave_the_guest_alone():
    world = bound_by_qemu(World([guest("db1", origin="kvm")]), {None: (0,)})
    agent = world.agent()
    agent.roster.reload(parse_config("[defaults]\nallowed_nids = [1]\n", Path("vmplace.toml")), (0, 1))
    agent.run(windows=1)
    problem = str(agent.status.guests["db1"].problem)
    assert world.applied == [] and "QEMU's policy=bind have no node in common" in problem


def test_what_is_left_out_is_reported_with_its_size():
    plan = limited(
        PlacementPlan((move([512, 512], [1, 1]),)), {"db1": GuestLimits(named(), GuestSettings(moves=False))}
    )
    assert [stay.reason for stay in plan.stays] == ["4 MiB stay: its policy does not allow to move memory"]


def test_a_schedule_is_in_the_hosts_local_time(monkeypatch: pytest.MonkeyPatch):
    world = world_of({})
    agent = world.agent()
    agent.roster.update(world.running, (0, 1))
    tracked = agent.roster.get("db1")
    assert tracked
    tracked.settings = GuestSettings(schedule=(parse_stretch("Thu 01:00-02:00"),))
    # 1970-01-01 was a Thursday.
    for zone, is_off in (("UTC0", True), ("XXX-1", False)):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        agent.roster.follow_time(600.0)
        assert tracked.is_off_hours is is_off
    monkeypatch.undo()
    time.tzset()


def test_a_plan_knows_what_the_policy_leaves_and_which_copies_there_are():
    seen: list[GuestView] = []

    def policy(snapshot: Snapshot) -> PlacementPlan:
        seen.extend(snapshot.guests)
        return PlacementPlan()

    world = bound_by_qemu(World([guest("db1", origin="kvm")], policy=policy), {None: (0,)})
    agent = world.agent()
    config = parse_config("[defaults]\nmove_mb_per_s = 1\n", Path("vmplace.toml"))
    agent.roster.reload(config, (0, 1))
    agent.run(windows=1)
    world.copied = {"db1": Copies(4096, 0, wait=True)}
    agent.run(windows=3)
    world.copied = {}
    agent.run(windows=5)
    assert {(view.numatune.nids[None], view.move_bytes) for view in seen} == {((0,), 2 << 20)}
    counted = [(view.copied_bytes, view.copies_wait) for view in seen]
    # Nothing was counted before the first plan, and each knows what was counted after the one before it.
    assert counted == [(None, False), (0, False), (4096, True), (4096, True), (0, False)]
