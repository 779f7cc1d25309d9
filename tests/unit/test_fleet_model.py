"""The model of a fleet: the same each time, nobody lost, no host oversold, and pressed hosts are relieved."""

import json
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from vmplace.fleet.arrivals import Arrival
from vmplace.fleet.fleet_host import Host
from vmplace.fleet.fleet_model import Fleet, FleetSetup, arrivals, least_pressures, simulated_fleet
from vmplace.fleet.loop_table import LoopTable, shipped_table
from vmplace.fleet.rebalance import THRESHOLD, Migration
from vmplace.interfaces.cli import cli

SETUP = FleetSetup(hosts=30, days=1.0, packs=True, seed=2)
TABLE = LoopTable("h", "by hand", {"p": {4: 0.5}, "q": {4: 0.2}}, ((0.0, 0.0), (0.5, 0.5), (1.0, 0.75)))


def guest(name: str, program: str = "p", vcpus: int = 4) -> Arrival:
    return Arrival(name, 0.0, 1e9, vcpus, vcpus, program)


def test_a_guest_goes_to_the_node_with_most_free_vcpus() -> None:
    host = Host("h", 16, 64, 2)
    for name in ("a", "b", "c"):
        host.take(guest(name))
    assert host.node_of == {"a": 0, "b": 1, "c": 0}


def test_guests_that_share_a_node_wait_for_each_other() -> None:
    host = Host("h", 16, 64, 2)
    for name in ("a", "b", "c"):
        host.take(guest(name))
    assert host.loads(TABLE) == {0: 0.75, 1: 0.5}


def test_a_guest_needs_a_node_with_room() -> None:
    host = Host("h", 12, 64, 2)
    host.take(guest("a"))
    host.take(guest("b"))
    assert host.free_vcpus() == 4 and not host.has_room(guest("c"))


def test_the_shipped_table_knows_all_sizes_and_never_falls() -> None:
    table = shipped_table()
    levels = [given for _, given in table.saturation]
    assert levels == sorted(levels) and levels[0] == 0
    assert all(set(sizes) == {1, 2, 3, 4, 6} for sizes in table.demand.values())


def test_runs_with_one_seed_are_the_same() -> None:
    guests = arrivals(SETUP)
    assert guests == arrivals(SETUP)
    runs = [simulated_fleet(Fleet(SETUP, guests), rebalances=True) for _ in range(2)]
    assert runs[0] == runs[1]


def test_no_guest_is_lost_and_no_host_is_oversold() -> None:
    guests = arrivals(SETUP)
    fleet = Fleet(SETUP, guests)
    for now_s in fleet.iter_audits():
        running = {one.uuid for one in guests if one.from_s <= now_s < one.to_s}
        there = [uuid for host in fleet.hosts.values() for uuid in host.guests]
        assert len(there) == len(set(there)) >= len(running) - fleet.refused
        assert set(there) <= running
        assert all(host.free_vcpus() >= 0 for host in fleet.hosts.values())


def test_earlier_moves_of_a_plan_take_room() -> None:
    fleet = Fleet(FleetSetup(hosts=2, vcpus=8), [])
    for name in ("a", "b", "c"):
        fleet.hosts["host000"].guests[name] = guest(name, "gups")
        fleet.host_of[name] = "host000"
    before = (Migration("a", "host000", "host001"), Migration("b", "host000", "host001"))
    assert fleet.has_room("c", "host001", before[:1])
    assert not fleet.has_room("c", "host001", before)


@cache
def modelled(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what comes of a fleet that Nova packs, without and with the strategy, by the command."""
    argv = ["fleet-model", "--hosts", "60", "--days", "1.5", "--packs", "--seed", str(seed), "--json"]
    reported = json.loads(CliRunner().invoke(cli, argv).output)
    return reported["nobody"], reported["watcher"]


ONE_GROUP = "a group presses 7 % of the hosts from half of their bandwidth on, each guest by itself"
TOO_MANY = "5.5 % of the guests are migrated: docs/design/fleet-relief.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1, marks=pytest.mark.xfail(reason=TOO_MANY, strict=True)),
        pytest.param(2, marks=pytest.mark.xfail(reason=ONE_GROUP, strict=True)),
        3,
    ],
)
def test_hosts_are_pressed_for_less_of_the_time(seed: int) -> None:
    nobody, watcher = modelled(seed)
    assert nobody["migrations"] == 0
    assert watcher["pressed_share"] < nobody["pressed_share"] / 2
    assert watcher["migrated_share"] < 0.05


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pressure_falls_and_no_further_than_it_can(seed: int) -> None:
    nobody, watcher = modelled(seed)
    assert watcher["least_p95"] <= watcher["pressure_p95"] < nobody["pressure_p95"]


def test_guests_that_press_by_themselves_take_hosts_of_half_the_time_pressed() -> None:
    """Why seed 2 is not met: on a host each, guests of one group press more hosts than may be pressed."""
    setup = FleetSetup(hosts=60, days=1.5, packs=True, seed=2)
    fleet, pressed, alone = Fleet(setup, arrivals(setup)), list[int](), list[int]()
    for now_s in fleet.iter_audits():
        if now_s >= setup.days * 12 * 3600:
            pressed.append(sum(max(one.values()) >= THRESHOLD for one in fleet.loads().values()))
            alone.append(sum(pressure >= THRESHOLD for pressure, _ in fleet.alone()))
    assert sum(alone) > sum(pressed) / 2


def test_the_bound_lets_guests_share_a_host_while_it_has_vcpus() -> None:
    """By hand: 4 and 3 vCPUs need two hosts of 6; with 2 more the third is still not needed, with 5 it is."""
    guests = [(0.5, 4), (0.4, 3), (0.3, 2)]
    assert least_pressures(guests, 4, 6) == [0.5, 0.4, 0.0, 0.0]
    assert least_pressures([*guests, (0.2, 5)], 4, 6) == [0.5, 0.4, 0.2, 0.0]
    assert least_pressures([*guests, (0.2, 5)], 2, 6) == [0.5, 0.4]
