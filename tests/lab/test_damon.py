"""Beside a process that lets nobody read its memory map, real DAMON samples the other guests all the time."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.machine import LabHost, boot_host

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

INSIDE = [Path(__file__).with_name(name) for name in ("damon_inside.py", "sampling_inside.py")]
WAIT_S = 600


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    with boot_host("n4-full", files={f"/root/{path.name}": path for path in INSIDE}) as booted:
        yield booted


def serve_disk(host: LabHost, is_over: Path | str) -> None:
    """Have the second disk wait, or go on, as the process inside asks, until it is over."""
    limits = {"wait": 1, "go on": 0}
    done, end = "", time.monotonic() + WAIT_S
    while time.monotonic() < end:
        asked = host.run("cat /run/damon-asked 2>/dev/null; true").stdout
        if asked in limits and asked != done:
            words = f"block_set_io_throttle deploy {limits[asked]} 0 0 0 0 0"
            assert host.qmp("human-monitor-command", command_line=words) == ""
            host.put(asked.encode(), "/run/damon-done")
            done = asked
        if host.run(f"test -e {is_over}", check=False).returncode == 0:
            return
        time.sleep(0.2)
    raise TimeoutError("the process inside goes on and on")


@pytest.fixture(scope="module")
def reported(host: LabHost) -> dict[str, Any]:
    """Return what became of each guest, window by window."""
    run = "cd /root && python3 damon_inside.py held >/run/damon-reported 2>/run/damon-failed"
    host.spawn(f"{run}; touch /run/damon-over")
    try:
        serve_disk(host, "/run/damon-over")
    finally:
        print(host.run("cat /run/damon-reported /run/damon-failed", check=False).stdout)
    windows: dict[str, Any] = json.loads(host.get("/run/damon-reported"))
    return windows


def are_sampled(rows: list[dict[str, Any]], *names: str) -> bool:
    """Tell whether touched pages of the guests were seen in each of these windows."""
    return all(isinstance(row[name], int) and row[name] > 0 for row in rows for name in names)


def test_all_are_sampled_before(reported: dict[str, Any]) -> None:
    assert are_sampled(reported["before"][1:], "evil", "db1", "db2")


def test_while_one_holds_its_lock_the_others_are_sampled_in_each_window(reported: dict[str, Any]) -> None:
    assert are_sampled(reported["held"], "db1", "db2")
    assert not any(isinstance(row["evil"], int) for row in reported["held"])


def test_a_guest_that_comes_meanwhile_is_sampled(reported: dict[str, Any]) -> None:
    assert are_sampled(reported["new"][1:], "db1", "db2", "db3")


def test_who_lets_go_is_sampled_again(reported: dict[str, Any]) -> None:
    assert are_sampled(reported["after"][1:], "evil", "db1", "db2", "db3")


def test_who_closes_meanwhile_leaves_one_thread_and_the_next_one_samples(
    reported: dict[str, Any],
) -> None:
    assert (reported["close"], reported["kdamonds"]) == ("DamonHeldError", "512")
    assert are_sampled(reported["next"][1:], "db1", "db2", "db3")
    assert (reported["close at last"], reported["kdamonds at last"]) == ("", "0")
