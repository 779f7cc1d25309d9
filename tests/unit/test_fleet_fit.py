"""`fit` over a fleet: the room for further guests, by hand and by trying all ways to add them."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.interfaces.test_json_schemas import errors
from vmplace.fleet.arrivals import Arrival
from vmplace.fleet.fleet_fit import FleetFlavour, OverTime, SpareCapacity, host_room, over_time, room
from vmplace.fleet.fleet_host import Host
from vmplace.fleet.fleet_model import Fleet, FleetSetup, arrivals
from vmplace.fleet.loop_table import LoopTable, shipped_table
from vmplace.interfaces.cli import cli

SHIPPED = shipped_table()
TABLE = LoopTable("h", "by hand", {"p": {4: 0.3}}, ((0.0, 0.0), (1.0, 1.0)))


def host(*nodes: int) -> Host:
    """Return a host of two nodes of 8 vCPUs and 8 GiB, with a guest of 4 vCPUs and 4 GiB on each of these."""
    made = Host("h", 16, 16, 2)
    for number, node in enumerate(nodes):
        made.guests[f"g{number}"] = Arrival(f"g{number}", 0.0, 1.0, 4, 4, "p")
        made.node_of[f"g{number}"] = node
    return made


@pytest.mark.parametrize(
    ("flavour", "there", "found"),
    [
        (FleetFlavour(4, 1024), (), (4, 4)),
        (FleetFlavour(4, 1024), (0,), (3, 3)),
        (FleetFlavour(3, 1024), (0,), (3, 3)),  # of 4 + 8 free vCPUs, no node takes what both have left
        (FleetFlavour(1, 3072), (0,), (3, 3)),  # nor is memory of two nodes one guest's
        (FleetFlavour(9, 1024), (), (0, 0)),
        (FleetFlavour(1, 8193), (), (0, 0)),
        (FleetFlavour(1, 1024, 0.15), (), (16, 6)),  # 3 x 0.15 = 0.45 on each node
        (FleetFlavour(1, 1024, 0.15), (0,), (12, 4)),  # 0.3 + 0.15 on one, 0.45 on the other
        (FleetFlavour(2, 1024, 0.5), (), (8, 0)),  # at the threshold is not below it
        (FleetFlavour(2, 1024, 0.0), (0, 0), (4, 4)),  # node 0 has 0.6, and no vCPU
    ],
)
def test_room_of_a_host_by_hand(
    flavour: FleetFlavour, there: tuple[int, ...], found: tuple[int, int]
) -> None:
    assert host_room(host(*there), TABLE, flavour, 0.5) == found


def test_guests_that_ask_nothing_are_not_below_where_others_press() -> None:
    pressed = LoopTable("h", "by hand", {"p": {4: 0.6}}, TABLE.saturation)
    assert host_room(host(0), pressed, FleetFlavour(4, 1024), 0.5) == (3, 2)


def test_a_guest_larger_than_its_node_takes_room_of_the_host() -> None:
    large, table = host(), LoopTable("h", "by hand", {"p": {1: 0.0}}, TABLE.saturation)
    large.guests["g"], large.node_of["g"] = Arrival("g", 0.0, 1.0, 1, 14, "p"), 0
    assert host_room(large, table, FleetFlavour(1, 1024), 1.0) == (2, 2)
    assert host_room(large, table, FleetFlavour(4, 512), 1.0) == (2, 2)


def test_hosts_without_room_are_not_counted() -> None:
    hosts = [host(), host(0), host(0, 0, 1, 1)]
    assert room(hosts, TABLE, FleetFlavour(4, 1024, 0.3), 0.5) == SpareCapacity(
        guests=7, hosts=2, below_threshold=3
    )


def tried(found: Host, table: LoopTable, flavour: FleetFlavour, threshold: float) -> tuple[int, int]:
    """Return the most guests, and the most below the threshold, of all numbers that two nodes could take."""
    fitting, below = [0], [0]
    for counts in product(range(13), repeat=2):
        stays = True
        for node, count in enumerate(counts):
            mine = [one for uuid, one in found.guests.items() if found.node_of[uuid] == node]
            if sum(one.vcpus for one in mine) + count * flavour.vcpus > 12:
                break
            if sum(one.memory_gib << 10 for one in mine) + count * flavour.memory_mib > 16 << 10:
                break
            demands = [table.demand[one.program][one.vcpus] for one in mine] + [flavour.pressure] * count
            stays &= not count or table.pressure(demands) < threshold
        else:
            fitting.append(sum(counts))
            below.append(sum(counts) if stays else 0)
    return max(fitting), max(below)


def test_room_is_what_trying_all_ways_finds() -> None:
    setup = FleetSetup(hosts=6, days=0.5, packs=True, seed=3)
    fleet, pressed, seen = Fleet(setup, arrivals(setup)), 0, 0
    for number, _ in enumerate(fleet.iter_audits()):
        for one in fleet.hosts.values() if number % 24 == 23 else ():
            for flavour in (FleetFlavour(2, 1500, 0.1), FleetFlavour(3, 5000), FleetFlavour(1, 700, 0.02)):
                found = host_room(one, SHIPPED, flavour, 0.4)
                assert found == tried(one, SHIPPED, flavour, 0.4)
                pressed, seen = pressed + (found[1] < found[0]), seen + 1
    assert 0 < pressed < seen


def test_figures_over_time_are_the_last_and_those_of_the_sorted() -> None:
    moments = [SpareCapacity(count, 100 - count, 0) for count in (*range(41, 0, -1), 21)]
    assert over_time(moments[:41]).guests == OverTime(end=1, p5=3, p50=21)
    assert over_time(moments[:41]).hosts == OverTime(end=99, p5=61, p50=79)


def fleet_model(*words: str) -> Result:
    return CliRunner().invoke(cli, ["fleet-model", "--hosts", "2", "--days", "0.1", *words])


@pytest.fixture
def two_guests(tmp_path: Path) -> str:
    """Guests of half a node each that press it by 0.53; one is there for 4 of 7 audits of the second half.

    Wherever they land, it is on a node of its own.
    """
    rows = ["uuid,from_s,to_s,vcpus,memory_gib,program", "a,0,1e6,6,6,gups", "b,4000,7000,6,6,gups"]
    (path := tmp_path / "arrivals.csv").write_text("\n".join(rows))
    return str(path)


def test_the_command_counts_over_the_second_half(two_guests: str) -> None:
    """By hand: an empty node takes two of 6 vCPUs and 7 GiB, one of them below 0.5; a's takes one above."""
    done = fleet_model("--arrivals", two_guests, "--fit", "6:7168:0.3", "--json")
    reported: dict[str, Any] = json.loads(done.output)
    assert errors("fleet-model", reported) == []
    assert reported["fit"]["flavour"] == {"vcpus": 6, "memory_mib": 7168, "pressure": 0.3}
    assert reported["fit"]["nobody"] == {
        "guests": {"end": 7, "p5": 6, "p50": 6},
        "hosts": {"end": 2, "p5": 2, "p50": 2},
        "below_threshold": {"end": 3, "p5": 2, "p50": 2},
    }


def test_the_threshold_is_that_of_the_strategy(two_guests: str) -> None:
    words = ("--arrivals", two_guests, "--fit", "6:7168:0.3", "--threshold", "0.9", "--json")
    found = json.loads(fleet_model(*words).output)["fit"]
    assert found["threshold"] == 0.9
    # 0.53 + 0.3 and 2 x 0.3 are below it.
    assert found["nobody"]["below_threshold"]["end"] == found["nobody"]["guests"]["end"] == 7


def test_nobody_is_the_fleet_in_which_nobody_migrates() -> None:
    words = ("--hosts", "20", "--packs", "--days", "1", "--fit", "2:1500:0.1", "--json")
    reported = json.loads(fleet_model(*words).output)
    setup = FleetSetup(hosts=20, days=1.0, packs=True)
    fleet = Fleet(setup, arrivals(setup))
    assert len(list(fleet.iter_audits())) == setup.audits
    found = [tried(one, SHIPPED, FleetFlavour(2, 1500, 0.1), 0.5) for one in fleet.hosts.values()]
    ends = [reported["fit"]["nobody"][name]["end"] for name in ("guests", "below_threshold")]
    assert ends == [sum(counts) for counts in zip(*found, strict=True)]
    assert reported["watcher"]["migrations"] and reported["fit"]["watcher"] != reported["fit"]["nobody"]


def test_the_table_has_a_line_for_each_count(two_guests: str) -> None:
    lines = fleet_model("--arrivals", two_guests, "--fit", "6:7168:0.3").output.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("further 6:7168:0.3"))
    assert [line.split()[-3:] for line in lines[at + 1 : at + 4]] == [
        ["7", "6", "6"],
        ["2", "2", "2"],
        ["3", "2", "2"],
    ]


def test_without_the_option_nothing_is_counted() -> None:
    assert json.loads(fleet_model("--hosts", "20", "--json").output)["fit"] is None


@pytest.mark.parametrize("size", ["4", "0:1024", "4:0", "4:1024:1.5", "4:1024:nan", "4:1024:", "4:-1", "x:1"])
def test_what_is_no_size_is_refused_with_an_example(size: str) -> None:
    done = fleet_model("--fit", size)
    assert done.exit_code == 2 and "4:8192:0.3" in done.output


@pytest.mark.parametrize("size", ["4:4096:2", "4:4096:x", "4"])
def test_a_size_that_is_wrong_is_answered_with_what_may_be_left_out_and_its_range(size: str) -> None:
    done = fleet_model("--fit", size)
    assert done.exit_code == 2
    assert "VCPUS:MIB[:PRESSURE]" in done.output and "PRESSURE is from 0 to 1" in done.output
