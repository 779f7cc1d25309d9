"""Memory backends of the lab's own QEMU, in the emulated host: where a guest's memory comes from."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.build import build_all
from lab.machine import LabHost, boot_host
from lab.progress import Progress

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HERE = Path(__file__).parent
FLAGS = (
    *("-m32", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-pie", "-fno-stack-protector"),
    *("-fno-asynchronous-unwind-tables", "-mgeneral-regs-only", "-nostdlib", "-static"),
    "-Wl,-Ttext=0x101000,--build-id=none,--section-start=.multiboot=0x100000",
)
UNIT_PAGES = 1024
SOME, MORE, REST = [8, 40], [40, 168], [168, 248]
"""In units of 4 MiB."""
NIDS = [0, 1]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHost]:
    toucher = tmp_path_factory.mktemp("toucher") / "toucher"
    subprocess.run(["gcc", *FLAGS, "-o", toucher, HERE / "toucher.c"], check=True, timeout=60)
    artifacts = build_all(Progress())
    files = {
        "/root/toucher": toucher,
        "/root/qemu": artifacts.qemu,
        "/root/memdev_inside.py": HERE / "memdev_inside.py",
    }
    with boot_host("n2", files=files, artifacts=artifacts) as booted:
        yield booted


def after(host: LabHost, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was seen after each step."""
    done = host.run(["python3", "/root/memdev_inside.py"], input=json.dumps(steps), timeout=240)
    reported: list[dict[str, Any]] = json.loads(done.stdout)
    return reported


def interleaved(*weights: int) -> dict[str, Any]:
    return {"policy": {"policy": "weighted-interleave", "host-nodes": NIDS, "weights": list(weights)}}


def pages(seen: dict[str, Any]) -> list[int]:
    return [seen["numa_maps"].get(str(nid), 0) for nid in NIDS]


def shares(before: dict[str, Any], after: dict[str, Any]) -> list[float]:
    """Return each node's share of the pages that came in between."""
    new = [now - then for now, then in zip(pages(after), pages(before), strict=True)]
    return [count / sum(new) for count in new]


def test_new_memory_of_a_running_guest_follows_weights_set_by_qmp_and_nothing_moves(host: LabHost) -> None:
    bound = {"policy": {"policy": "bind", "host-nodes": [1]}}
    weights = interleaved(3, 1), interleaved(1, 4)
    seen = after(host, bound, {"touch": SOME}, weights[0], {"touch": MORE}, weights[1], {"touch": REST})
    assert shares(seen[0], seen[1]) == [0, 1]
    assert shares(seen[2], seen[3]) == pytest.approx([0.75, 0.25], abs=0.02)
    assert shares(seen[4], seen[5]) == pytest.approx([0.2, 0.8], abs=0.02)
    new = sum(pages(seen[5])) - sum(pages(seen[0]))
    assert new == pytest.approx(UNIT_PAGES * (REST[1] - SOME[0]), rel=0.01)
    assert [step["moved"] for step in seen] == [0] * 6


def test_what_is_there_stays_and_can_be_moved_by_another_process(host: LabHost) -> None:
    here, there = ({"policy": {"policy": "bind", "host-nodes": [nid]}} for nid in (1, 0))
    seen = after(host, here, {"touch": SOME}, there, {"migrate": [1, 0]})
    assert [step["moved"] for step in seen[:3]] == [0, 0, 0]
    assert seen[3]["moved"] >= UNIT_PAGES * (SOME[1] - SOME[0])
    assert pages(seen[3])[1] == 0


def test_backends_with_weights_leave_most_of_a_process_mappings_to_others(host: LabHost) -> None:
    """Eight of 128 GiB, each cut into parts of 64 MiB, would take 32,768 of the 65,530 that there are."""
    allowed = int(host.run("cat /proc/sys/vm/max_map_count").stdout)
    more: dict[str, Any] = {"size": 128 << 30, "reserve": False} | interleaved(3, 1)["policy"]
    (seen,) = after(host, {"add": more})
    assert 8 * 2 < seen["mappings"] < allowed // 4


def test_the_hosts_weights_hold_where_a_backend_has_none(host: LabHost) -> None:
    host.run("cd /sys/kernel/mm/mempolicy/weighted_interleave && echo 6 >node0 && echo 2 >node1")
    by_host = {"policy": {"policy": "weighted-interleave", "host-nodes": NIDS}}
    seen = after(host, by_host, {"touch": MORE})
    assert shares(*seen) == pytest.approx([0.75, 0.25], abs=0.02)
