"""Moves by the placement fd, on a fake one that answers as Documentation/virt/kvm/placement.rst says."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.actuation.child_guest import guest_of
from tests.unit.actuation.fake_kernel import PAGE, FakeKernel
from vmplace import native
from vmplace.actuation.batch import UNTRIED, move_batch
from vmplace.actuation.gfn_kernel import MOVE_DRAIN, MOVE_INSIST, GfnKernel, GuestKernels
from vmplace.topology.placement import Placement, PlacementInfo, Slot

HVA, GFN, NPAGES = 1 << 32, 1 << 20, 64
OK, NOT_PRESENT, BUSY, NO_MEMORY, SHARED, WRITTEN, NODE_REFUSED = 0, 2, 6, 8, 11, 12, 13


@dataclass
class FakeFd:
    """Guest frames ``written`` and ``batched`` need their flag; ``answers`` is the status of others."""

    written: set[int] = field(default_factory=set)
    batched: set[int] = field(default_factory=set)
    answers: dict[int, int] = field(default_factory=dict)
    reached: int = NPAGES
    calls: list[tuple[int, int]] = field(default_factory=list)

    def move(
        self,
        fd: int,
        gfns: npt.NDArray[np.uint64],
        nids: npt.NDArray[np.int32],
        npages: npt.NDArray[np.int32],
        status: npt.NDArray[np.int32],
        flags: int,
    ) -> int:
        assert fd == 7 and len(gfns) == len(nids) == len(npages) == len(status)
        self.calls.append((len(gfns), flags))
        for i, gfn in enumerate(gfns.tolist()[: self.reached]):
            status[i] = self._status(gfn, flags)
        return 1000

    def _status(self, gfn: int, flags: int) -> int:
        if gfn in self.written and not flags & MOVE_INSIST:
            return WRITTEN
        if gfn in self.batched and not flags & MOVE_DRAIN:
            return BUSY
        return self.answers.get(gfn, OK)


T = TypeVar("T")


class OneSlot(Placement):
    def call(self, step: Callable[[int], T]) -> T:
        return step(self.fd)

    def info(self) -> PlacementInfo:
        return PlacementInfo(0, 3, 0, (Slot(GFN, NPAGES, HVA, 0), Slot(0, NPAGES, HVA, 1)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeFd:
    fd = FakeFd()
    monkeypatch.setattr(native, "placement_move", fd.move)
    return fd


def kernel(stock: FakeKernel | None = None) -> GfnKernel:
    made = GfnKernel(OneSlot(7), stock or FakeKernel(), clock=lambda: 0)
    made.start_window()
    return made


def moved(by: GfnKernel, pages: list[int], nid: int = 1) -> list[int]:
    hvas = np.array([HVA + page * PAGE for page in pages], np.uint64)
    status = np.full(len(pages), UNTRIED, np.int32)
    by.move_pages(1, hvas, np.full(len(pages), nid, np.int32), status)
    return [int(value) for value in status]


def test_pages_are_named_by_their_frame_in_address_space_0(fake: FakeFd):
    fake.answers = {GFN + 3: SHARED, GFN + 4: NOT_PRESENT}
    assert moved(kernel(), [2, 3, 4]) == [1, -errno.EACCES, -errno.ENOENT]


def test_a_page_that_is_written_moves_with_the_others(fake: FakeFd):
    fake.written = {GFN + 1}
    assert moved(kernel(), [0, 1, 2]) == [1, 1, 1]
    assert fake.calls == [(3, MOVE_INSIST)]


def test_lru_batches_are_emptied_at_most_once_a_second(fake: FakeFd):
    fake.batched = {GFN, GFN + 1}
    one = kernel()
    assert moved(one, [0, 9]) == [1, 1]
    assert moved(one, [1, 9]) == [-errno.EBUSY, 1]
    assert fake.calls == [(2, MOVE_INSIST), (1, MOVE_DRAIN | MOVE_INSIST), (2, MOVE_INSIST)]


def test_pages_outside_of_the_slots_move_by_the_system_call(fake: FakeFd):
    stock = FakeKernel({HVA + NPAGES * PAGE: 0})
    assert moved(kernel(stock), [5, NPAGES]) == [1, 1]
    assert fake.calls == [(1, MOVE_INSIST)] and stock.calls == [1]


def test_pages_that_a_signal_kept_from_being_tried_are_untried(fake: FakeFd):
    fake.reached = 1
    assert moved(kernel(), [0, 1]) == [1, int(UNTRIED)]


@pytest.mark.parametrize(("code", "error"), [(NO_MEMORY, errno.ENOMEM), (NODE_REFUSED, errno.EACCES)])
def test_a_node_that_takes_no_page_is_an_error_of_the_whole_call(fake: FakeFd, code: int, error: int):
    fake.answers = {GFN + 1: code}
    stock = FakeKernel({HVA: 1, HVA + PAGE: 0})
    outcome = move_batch(kernel(stock), 1, np.array([HVA, HVA + PAGE], np.uint64), 1)
    assert outcome.error == error
    assert outcome.status.tolist() == [1, int(UNTRIED)]


def test_a_process_without_a_vm_moves_by_the_system_call():
    stock = FakeKernel()
    assert GuestKernels(stock, by_gfn=True).of(guest_of(os.getpid(), HVA, NPAGES)) is stock
