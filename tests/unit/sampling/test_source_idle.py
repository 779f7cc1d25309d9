"""Idle-page tracking on real frames; only the bitmap is a file (the real one: tests/lab)."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.descriptors import descriptors
from tests.unit.sampling.guest_process import Bitmap, GuestProcess, frame_of, ram_range
from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.model.page_windows import absorbed
from vmplace.sampling import source_idle
from vmplace.sampling.sample import RangeSample
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_idle import IdleSource

PMD_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="frame numbers need root (CAP_SYS_ADMIN)"),
    # A page that this machine's own kernel moves to another frame meanwhile (compaction) looks touched.
    pytest.mark.flaky(reruns=2),
]


@pytest.fixture
def source(setup: SourceSetup) -> Iterator[IdleSource]:
    with closing(IdleSource(setup)) as opened:
        yield opened


def window(source: IdleSource, guest: GuestProcess, bitmap: Bitmap, touched: list[int]) -> RangeSample:
    """Harvest a window in which the frames of the pages ``touched`` lose their idle bit."""
    topology = guest.topology
    source.arm(topology)
    ram = topology.ram[0]
    bitmap.settle({frame_of(topology.pid, ram.hva + 4096 * page) for page in range(ram.npages)})
    for page in touched:
        bitmap.touch(frame_of(topology.pid, ram.hva + 4096 * page))
    return source.harvest(topology).ranges[0]


def test_exactly_the_touched_pages_are_accessed(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess
) -> None:
    guest.touch(0, 600)
    sample = window(source, guest, bitmap, [3, 64, 599])
    assert np.flatnonzero(sample.accessed).tolist() == [3, 64, 599]


def test_a_page_that_appeared_in_the_window_was_touched(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess
) -> None:
    source.arm(guest.topology)
    guest.touch(7, 9)
    assert np.flatnonzero(source.harvest(guest.topology).ranges[0].accessed).tolist() == [7, 8]


def test_the_node_is_known_of_present_pages_only(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess
) -> None:
    guest.touch(10, 20)
    index = window(source, guest, bitmap, []).node_index
    assert np.flatnonzero(index == 0).tolist() == list(range(10, 20))
    assert np.count_nonzero(index == -1) == 1024 - 10


@pytest.mark.parametrize("guest", [2 << 20], indirect=True)
@pytest.mark.skipif("[never]" in PMD_THP.read_text(), reason="transparent huge pages are off")
def test_a_huge_page_answers_whole(source: IdleSource, bitmap: Bitmap, guest: GuestProcess) -> None:
    guest.touch(0, 1)
    sample = window(source, guest, bitmap, [0])
    assert sample.huge.tolist() == [1, 0]
    assert sample.accessed.tolist() == [1] * 512 + [0] * 512


@pytest.mark.parametrize("guest", [2 << 20], indirect=True)
@pytest.mark.skipif("[never]" in PMD_THP.read_text(), reason="transparent huge pages are off")
def test_a_range_that_starts_inside_a_huge_page_sees_it(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess
) -> None:
    guest.touch(0, 1)
    ram = ram_range(guest.topology.ram[0].hva + 100 * 4096, 900)
    cut = replace(guest, topology=replace(guest.topology, ram=(ram,)))
    sample = window(source, cut, bitmap, [])
    assert sample.huge.tolist() == [1, 0]
    assert not sample.accessed.any()


@pytest.mark.parametrize("guest", [2 << 20], indirect=True)
@pytest.mark.skipif("[never]" in PMD_THP.read_text(), reason="transparent huge pages are off")
def test_a_huge_page_whose_head_the_balloon_took_can_be_idle(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess
) -> None:
    guest.touch(0, 1)
    # A whole word of the bitmap, for the kernel adds to a word what is written to it, and a file does not.
    guest.touch(0, 64, "drop")
    window(source, guest, bitmap, [])
    sample = window(source, guest, bitmap, [])
    assert not sample.accessed.any()
    assert np.count_nonzero(sample.node_index == 0) == 448


def test_the_shared_zero_page_belongs_to_no_guest(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess
) -> None:
    pid, hva = guest.topology.pid, guest.topology.ram[0].hva
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(hva)
        memory.read(4096)
    zero_frame = frame_of(pid, hva)
    sample = window(source, guest, bitmap, [])
    assert zero_frame and not bitmap.is_idle(zero_frame)
    assert sample.node_index[0] == -1 and not sample.accessed[0]


def test_windows_add_up_to_heat(source: IdleSource, bitmap: Bitmap, guest: GuestProcess) -> None:
    guest.touch(0, 4)
    pages = None
    for touched in ([0, 1], [0], [2]):
        source.arm(guest.topology)
        for page in touched:
            bitmap.touch(frame_of(guest.topology.pid, guest.topology.ram[0].hva + 4096 * page))
        pages = absorbed(pages, source.harvest(guest.topology))
    assert pages and pages.ranges[0].part(0, 4)[0].tolist() == [96, 32, 128, 0]
    assert pages.pages_by_node() == {0: 4} and pages.pages_by_node(hot_only=True) == {0: 1}


@pytest.mark.parametrize("moment", ["arm", "harvest"])
def test_a_guest_that_ended_is_gone(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess, moment: str
) -> None:
    guest.touch(0, 10)
    if moment == "harvest":
        source.arm(guest.topology)
    guest.process.kill()
    guest.process.wait()
    with pytest.raises(GuestGoneError):
        getattr(source, moment)(guest.topology)


def test_a_guest_that_ends_while_it_is_read_is_gone(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie still has its start time, but no memory."""
    guest.process.kill()
    os.waitid(os.P_PID, guest.process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(GuestGoneError):
        source.arm(guest.topology)


def test_another_process_with_the_same_pid_is_not_the_guest(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess
) -> None:
    with pytest.raises(GuestGoneError, match="another process"):
        source.arm(replace(guest.topology, start_time=1))


def test_a_kernel_without_idle_tracking_is_reported_with_the_cure(setup: SourceSetup) -> None:
    (setup.sysfs / "kernel/mm/page_idle/bitmap").unlink()
    with pytest.raises(UnsupportedHostError) as refused:
        IdleSource(setup)
    assert "CONFIG_IDLE_PAGE_TRACKING" in str(refused.value.hint)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv")
def test_without_the_capability_frames_are_not_made_up() -> None:
    """The kernel shows frame 0 then: that is "cannot", not "no page is present"."""
    code = "from vmplace.sampling.page_frames import FrameReader; FrameReader()"
    bounded = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", code]
    asked = subprocess.run(bounded, capture_output=True, text=True, check=False)
    assert "UnsupportedHostError: /proc/PID/pagemap hides frame numbers" in asked.stderr


def test_without_memory_blocks_the_kernel_is_asked_page_by_page(
    setup: SourceSetup, bitmap: Bitmap, guest: GuestProcess
) -> None:
    (setup.sysfs / "devices").unlink()
    guest.touch(0, 3)
    with closing(IdleSource(setup)) as source:
        assert window(source, guest, bitmap, []).node_index[:4].tolist() == [0, 0, 0, -1]


def test_descriptors_are_closed(setup: SourceSetup, bitmap: Bitmap, guest: GuestProcess) -> None:
    before = descriptors()
    source = IdleSource(setup)
    window(source, guest, bitmap, [])
    assert {Path(target).name for _, target in descriptors() - before} >= {"bitmap", "kpageflags"}
    source.close()
    source.close()
    assert descriptors() - before == set()


def test_a_source_that_cannot_be_opened_keeps_nothing_open(
    setup: SourceSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENFILE, "no descriptors are left")

    before = descriptors()
    for where in ("source_idle._open_bitmap", "page_frames.FrameReader._probe_pfns"):
        monkeypatch.setattr(f"vmplace.sampling.{where}", fails)
        with pytest.raises(OSError, match="no descriptors"):
            IdleSource(setup)
    assert descriptors() - before == set()


def test_scattered_frames_are_visited_in_order_and_answer_for_their_own_pages(
    source: IdleSource, bitmap: Bitmap, guest: GuestProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_idle, "_is_scattered", lambda _: True)
    for page in (700, 3, 64, 900, 5):
        guest.touch(page, page + 1)
    sample = window(source, guest, bitmap, [3, 900])
    assert np.flatnonzero(sample.accessed).tolist() == [3, 900]
    assert np.flatnonzero(sample.node_index == 0).tolist() == [3, 5, 64, 700, 900]
