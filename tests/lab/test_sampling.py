"""What sensors see in the emulated host, against what processes and vCPUs there declare to touch."""

import json
import lzma
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.machine import LabHost, boot_host

pytestmark = pytest.mark.lab

INSIDE, DEAR = "/root/sampling_inside.py", "/root/dear_pages_inside.py"
TOUCHED = [[100, 101], [4096, 4196], [16383, 16384]]
CODE_PAGE = [0, 1]
PERF_DATA = Path(__file__).parents[1] / "data/perf/two-vcpus.perf.data.xz"
KDAMONDS = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds"


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    files = {at: Path(__file__).with_name(Path(at).name) for at in (INSIDE, DEAR)}
    with boot_host("n4-full", files=files) as booted:
        yield booted


def windows(host: LabHost, source: str, kind: str, page_kib: int, touched: list[list[int]]) -> dict[str, Any]:
    words = [f"{first}:{end}" for first, end in touched]
    argv = ["numactl", "-m", "2", "python3", INSIDE, "window", source, kind, str(page_kib), *words]
    reported: dict[str, Any] = json.loads(host.run(argv, timeout=180).stdout)
    return reported


@pytest.fixture(scope="module")
def small_pages(host: LabHost) -> dict[str, Any]:
    return windows(host, "idle", "process", 4, TOUCHED)


def test_small_pages_of_a_process_are_seen_exactly(small_pages: dict[str, Any]) -> None:
    assert small_pages["windows"] == [TOUCHED, TOUCHED, []]
    assert small_pages["huge"] == 0


def test_small_pages_that_a_vcpu_touches_are_seen_exactly(host: LabHost) -> None:
    """Nested page tables only: the process itself touches nothing."""
    wanted = [CODE_PAGE, *TOUCHED]
    assert windows(host, "idle", "kvm", 4, TOUCHED)["windows"] == [wanted, wanted, []]


@pytest.mark.parametrize(
    ("source", "kind", "code"),
    [("idle", "process", []), ("idle", "kvm", [[0, 512]]), ("kvm", "kvm", [[0, 512]])],
)
def test_huge_pages_are_seen_whole(host: LabHost, source: str, kind: str, code: list[list[int]]) -> None:
    wanted = [*code, [1024, 1536], [4096, 4608]]
    seen = windows(host, source, kind, 2048, [[1100, 1101], [4607, 4608]])
    assert seen["windows"] == [wanted, wanted, []]
    # In the last window nothing was touched.
    assert seen["huge"] == 32


@pytest.mark.slow
def test_a_guest_whose_pages_are_mapped_too_often_is_left_alone_and_another_one_is_read(
    host: LabHost,
) -> None:
    """By 60,000 mappings; any process may have 65,530.  Each page takes thousands of times as long."""
    reported = json.loads(host.run(["python3", DEAR, "watch", "1", "60000", "2048"], timeout=300).stdout)
    assert [error for _, error in reported["plain"]] == [None, None, None]
    assert all(error and "mapped too often" in error for _, error in reported["dear"])
    (first_s, *later_s), cost = (took for took, _ in reported["dear"]), per_page(host)
    # Marked and read back in full, it takes this, in the same emulated time.
    assert first_s < 2048 * (cost["mark"] + cost["collect"]) / 1e9 / 2
    assert max(later_s) < first_s / 10


def per_page(host: LabHost) -> dict[str, float]:
    reported = json.loads(host.run(["python3", DEAR, "cost", "1", "60000", "2048"], timeout=300).stdout)
    cost: dict[str, float] = reported["dear"]
    assert cost["mark"] > 100 * reported["plain"]["mark"]
    return cost


def test_the_node_of_each_page_is_the_kernels(small_pages: dict[str, Any]) -> None:
    assert small_pages["nodes"] == {"2": 16384}
    assert "N2=16384" in small_pages["numa_maps"]


@pytest.mark.parametrize("kind", ["kvm", pytest.param("process", marks=pytest.mark.slow)])
def test_damon_finds_the_touched_region(host: LabHost, kind: str) -> None:
    """Sampled: no exact truth, but the region must stand out, and silence must be seen."""
    seen = windows(host, "damon", kind, 4, [[4096, 8192]])["windows"]
    pages = {page for first, end in seen[0] for page in range(first, end)}
    inside = sum(4096 <= page < 8192 for page in pages)
    assert inside > 2048 and len(pages) - inside < 4096
    assert seen[2] == []
    assert host.run(f"cat {KDAMONDS}").stdout == "0\n"


def test_the_patched_kvm_tells_which_node_read_and_wrote(host: LabHost) -> None:
    """Two vCPU nodes, ranges that overlap; page 0 holds the code."""
    argv = ["python3", INSIDE, "nodes", "2:r:100:4196", "7:w:4000:4100"]
    reported = json.loads(host.run(argv, timeout=180).stdout)
    assert reported == {
        "accessed": {"1": [CODE_PAGE, [100, 4196]], "3": [CODE_PAGE, [4000, 4100]]},
        "written": {"3": [[4000, 4100]]},
    }


def test_where_untouched_pages_went_is_known_once_it_is_reported(host: LabHost) -> None:
    """The control is the window before: a source that is not notified looks them up in turn."""
    argv = ["numactl", "-m", "2", "python3", INSIDE, "places", "3"]
    assert json.loads(host.run(argv, timeout=180).stdout) == {"moved": 512, "nodes": [[2], [2], [3]]}


def test_the_patched_kvm_sees_what_idle_tracking_sees(host: LabHost) -> None:
    wanted = [CODE_PAGE, *TOUCHED]
    assert windows(host, "kvm", "kvm", 4, TOUCHED)["windows"] == [wanted, wanted, []]


HOT, COOL = 6.0, 0.5
"""Touches a second: in a window of 8 s of the emulated host each page has some."""
LATEST_S = 4.0
"""Half a window: of touches that come later, bits cannot tell how often they were to come."""
OWN, NEIGHBOUR = 1, 3
"""Nodes of CPUs 2 and 3, and of 6 and 7."""


@dataclass(frozen=True)
class Watched:
    """What agents hold of hot pages, of cool ones, and of the hot ones once more.

    One by bits that were read early, one by bits read once a window.
    """

    early: dict[str, Any]
    once: dict[str, Any]


def watched(host: LabHost, first_ms: int, cpu: int, neighbour: int) -> dict[str, Any]:
    """Return what an agent holds of a guest with a vCPU on each of two CPUs."""
    streams = [f"{cpu}:1024:1152:{HOT}", f"{cpu}:4096:4224:{COOL}", f"{neighbour}:1024:1152:{COOL}"]
    argv = ["python3", INSIDE, "rates", str(first_ms), *streams]
    reported: dict[str, Any] = json.loads(host.run(argv, timeout=180).stdout)
    return reported


@pytest.fixture(scope="module")
def seen(host: LabHost) -> Watched:
    """Have two such guests, with an agent each, in the same host at the same time: they wait most of it."""
    with ThreadPoolExecutor() as pool:
        early = pool.submit(watched, host, 125, 2, 7)
        once = pool.submit(watched, host, 0, 3, 6)
        reported = Watched(early.result(), once.result())
    if (late_s := max(reported.early["late_s"], reported.once["late_s"])) > LATEST_S:
        pytest.skip(f"the machine is too busy: touches came {late_s:.0f} s later than declared")
    return reported


def rightly_ordered(cool: list[float], hot: list[float]) -> float:
    """Return in how many pairs of a cool and a hot page the hot one has more heat; like ones count half."""
    one, other = np.array(cool)[:, None], np.array(hot)[None]
    return float((one < other).mean() + (one == other).mean() / 2)


@pytest.mark.slow
def test_bits_that_an_agent_reads_early_order_pages_by_heat(seen: Watched) -> None:
    (hot, cool, _), (hot_by_once, cool_by_once, _) = seen.early["heat"], seen.once["heat"]
    assert rightly_ordered(cool, hot) > 0.85
    assert rightly_ordered(cool_by_once, hot_by_once) < 0.7
    # Sixteen runs of pages that are touched together are few to learn from: unit tests tell how exact it is.
    assert np.mean(hot) > 2 * np.mean(cool)


@pytest.mark.slow
def test_bits_that_an_agent_reads_early_tell_who_uses_a_page_most(seen: Watched) -> None:
    several, once = seen.early["by_node"][0], seen.once["by_node"][0]
    assert several[OWN] > 2 * several[NEIGHBOUR]
    assert once[OWN] < 1.5 * once[NEIGHBOUR]


@pytest.mark.slow
def test_ibs_samples_pages_that_a_vcpu_touches_and_no_others(host: LabHost) -> None:
    """The samples of a guest, taken by the host, have addresses of the host."""
    seen = windows(host, "ibs", "kvm", 4, [[1024, 9216]])["windows"]
    pages = {page for window in seen[:2] for first, end in window for page in range(first, end)}
    # KVM reads the code of the HLT in page 0.
    assert {page for page in pages if not 1024 <= page < 9216} <= {0}
    # A machine outside that is busy leaves little time for ops.
    assert len(pages) > 3


def test_a_file_of_perf_is_read_by_the_perf_tool_itself(host: LabHost) -> None:
    host.put(lzma.decompress(PERF_DATA.read_bytes()), "/root/perf.data")
    reported = json.loads(host.run("vmplace replay /root/perf.data --json").stdout)
    # One vCPU on each node, all memory on node 0 (tests/data/perf/README).
    assert reported["guests"]["pid-347"]["lar_before"] == pytest.approx(0.5, abs=0.1)
    assert reported["windows"] > 1


def new_damon(host: LabHost, then: str, state_dir: str = "/run/vmplace") -> str:
    code = (
        "import os, sys; sys.path.insert(0, '/opt/vmplace');"
        "from pathlib import Path; from vmplace.sampling.damon_admin import DamonAdmin;"
        f"admin = DamonAdmin(Path('/sys'), Path('{state_dir}')); {then}"
    )
    return host.run(["python3", "-c", code], check=False).stderr


def test_damon_of_somebody_else_is_refused_and_left_alone(host: LabHost) -> None:
    host.run(f"echo 1 > {KDAMONDS}")
    try:
        assert "DAMON is in use by somebody else" in new_damon(host, "admin.close()")
        assert host.run(f"cat {KDAMONDS}").stdout == "1\n"
    finally:
        host.run(f"echo 0 > {KDAMONDS}")


WATCH_ITSELF = "admin.start(1, [(0x10000, 0x20000)]); os.kill(os.getpid(), 9)"


def damon_by_doctor(host: LabHost) -> dict[str, Any]:
    reported = json.loads(host.run("vmplace doctor --json", check=False, timeout=240).stdout)
    return next(one for one in reported["capabilities"] if one["name"] == "DAMON")


@pytest.mark.slow
def test_the_cure_for_damon_of_somebody_else_frees_it(host: LabHost) -> None:
    new_damon(host, WATCH_ITSELF, "/run/somebody")
    found = damon_by_doctor(host)
    assert found["answer"] is False and "by somebody else (on)" in found["why"]
    host.run("set -e\n" + "\n".join(re.findall(r"echo \w+ > [\w/]+", found["cure"])))
    assert host.run(f"cat {KDAMONDS}").stdout == "0\n"
    assert damon_by_doctor(host)["answer"] is True


def test_the_kdamond_of_a_killed_agent_is_taken_over(host: LabHost) -> None:
    new_damon(host, WATCH_ITSELF)
    assert host.run("cat /sys/kernel/mm/damon/admin/kdamonds/0/state").stdout == "on\n"
    assert new_damon(host, "admin.close()") == ""
    assert host.run(f"cat {KDAMONDS}").stdout == "0\n"
