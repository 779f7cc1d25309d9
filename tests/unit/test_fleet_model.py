"""The model of a fleet: the same each time, nobody lost, no host oversold, and pressed hosts are relieved."""

import json

import pytest
from click.testing import CliRunner

from vmplace.fleet.fleet_model import Arrival, Fleet, FleetSetup, Host, arrivals, simulated_fleet
from vmplace.fleet.rebalance import Migration
from vmplace.interfaces.cli import cli

SETUP = FleetSetup(hosts=30, days=1.0, packs=True, seed=2)


def guest(name: str, demand: float, vcpus: int = 4) -> Arrival:
    return Arrival(name, 0.0, 1e9, vcpus, vcpus, demand)


def test_the_agent_deals_guests_out_over_the_nodes() -> None:
    guests = {one.uuid: one for one in (guest("a", 0.5), guest("b", 0.3), guest("c", 0.25))}
    assert Host("h", 64, 64, 2, guests).pressure() == pytest.approx(0.55)


def test_a_guest_that_asks_more_than_a_node_has_is_divided() -> None:
    assert Host("h", 64, 64, 2, {"a": guest("a", 1.5)}).pressure() == pytest.approx(0.75)


def test_runs_with_one_seed_are_the_same() -> None:
    guests = arrivals(SETUP)
    assert guests == arrivals(SETUP)
    runs = [simulated_fleet(SETUP, guests, rebalances=True) for _ in range(2)]
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
    for name in ("a", "b"):
        fleet.hosts["host000"].guests[name] = guest(name, 0.1, vcpus=5)
        fleet.host_of[name] = "host000"
    assert fleet.has_room("a", "host001", ())
    assert not fleet.has_room("b", "host001", (Migration("a", "host000", "host001"),))


def test_hosts_are_pressed_for_less_of_the_time() -> None:
    argv = ["fleet-model", "--hosts", "60", "--days", "1.5", "--packs", "--seed", "2", "--json"]
    reported = json.loads(CliRunner().invoke(cli, argv).output)
    assert reported["nobody"]["migrations"] == 0
    assert reported["watcher"]["pressed_share"] < reported["nobody"]["pressed_share"] / 2
    assert reported["watcher"]["migrated_share"] < 0.05
