import errno
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.actuation.child_guest import child_guest, guest_of, plan_of
from tests.unit.actuation.fake_kernel import HUGE, PAGE, FakeKernel
from vmplace import held
from vmplace.actuation.batch import Hvas, Status
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import read_identity
from vmplace.actuation.journal import Journal
from vmplace.actuation.mover import Mover
from vmplace.actuation.result import ActuationResult, MoveOutcome
from vmplace.actuation.undo import undo
from vmplace.errors import JournalError
from vmplace.policy.plan import PlacementPlan
from vmplace.topology.guest import GuestTopology, Movability

BASE = 1 << 32


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal") as opened:
        yield opened


def fake_ram(npages: int, nid: int = 0) -> FakeKernel:
    return FakeKernel({BASE + i * PAGE: nid for i in range(npages)})


def guest(npages: int, movability: Movability = Movability.MOVABLE) -> GuestTopology:
    return guest_of(os.getpid(), BASE, npages, movability=movability)


def apply(
    journal: Journal, kernel: FakeKernel, plan: PlacementPlan, npages: int = 4096
) -> tuple[MoveOutcome, tuple[str, ...]]:
    result = Mover(journal, Budget(None), kernel=kernel).apply(plan, {"db1": guest(npages)})
    return result.outcomes[0], result.failures


def accounted(outcome: MoveOutcome) -> int:
    kinds = ("moved", "already", "busy", "pinned", "gone", "vetoed", "left")
    return sum(int(getattr(outcome, kind)) for kind in kinds) + sum(outcome.refused.values())


def test_pages_of_a_real_process_on_the_only_node_are_already_there(journal: Journal):
    with child_guest(1000, touched=600) as child:
        result = Mover(journal, Budget(None)).apply(plan_of(child.hva, 1000, 0), {"db1": child.guest})
    outcome = result.outcomes[0]
    assert (outcome.already, outcome.gone, outcome.moved) == (600, 400, 0)
    assert not result.failures


def test_a_real_process_that_was_killed_is_gone_and_not_an_error(journal: Journal):
    with child_guest(10) as child:
        child.kill()
        result = Mover(journal, Budget(None)).apply(plan_of(child.hva, 10, 0), {"db1": child.guest})
    assert result.outcomes[0].gone == 10
    assert result.failures == ("guest db1: ended while its pages were moved",)


def test_a_guest_killed_in_the_middle_of_a_batch_does_not_stop_the_others(journal: Journal):
    kernel, other = fake_ram(4096), guest_of(os.getpid(), BASE, 4096, name="db2")
    with child_guest(4096) as child:
        kernel.nid_of |= {child.hva + i * PAGE: 0 for i in range(4096)}

        def kill_at_third_call(call: int) -> None:
            if call == 3:
                child.kill()
                raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))

        kernel.before_call = kill_at_third_call
        plan = PlacementPlan(plan_of(child.hva, 4096, 1).moves + plan_of(BASE, 4096, 1, guest="db2").moves)
        mover = Mover(journal, Budget(None), kernel=kernel)
        result = mover.apply(plan, {"db1": child.guest, "db2": other})
    dead, alive = result.outcomes
    assert dead.moved + dead.gone == 4096 and dead.gone > 0
    assert alive.moved == 4096
    assert result.failures == ("guest db1: ended while its pages were moved",)


def test_all_pages_move_and_their_origins_were_journaled(journal: Journal):
    kernel = fake_ram(4096, nid=2)
    outcome, _ = apply(journal, kernel, plan_of(BASE, 4096, 1))
    assert outcome.moved == 4096
    assert set(kernel.nid_of.values()) == {1}
    runs = list(journal.origins(read_identity(guest(1))).iter_runs())
    assert [(r.npages.tolist(), r.nid.tolist()) for r in runs] == [([4096], [2])]


def test_a_call_that_waits_is_distinguished_from_one_that_works(journal: Journal):
    kernel = fake_ram(64)
    kernel.before_call = lambda call: time.sleep(0.05)
    kernel.duration_ns = lambda pages: 50_000_000
    outcome, _ = apply(journal, kernel, plan_of(BASE, 64, 1))
    assert outcome.longest_call_ns == 50_000_000
    assert 0 < outcome.longest_call_cpu_ns < 50_000_000


def test_origins_are_on_disk_before_the_first_page_moves(journal: Journal):
    kernel = fake_ram(64)
    seen = []
    me = read_identity(guest(1))
    kernel.before_call = lambda call: seen.append(journal.origins(me).total_pages)
    apply(journal, kernel, plan_of(BASE, 64, 1))
    assert seen and set(seen) == {64}


def test_nothing_moves_without_a_journal(journal: Journal):
    kernel = fake_ram(64)
    journal.close()
    with pytest.raises(JournalError):
        apply(journal, kernel, plan_of(BASE, 64, 1))
    assert not kernel.calls


def test_a_held_page_is_busy_and_its_batch_moves_on(journal: Journal):
    kernel = fake_ram(2000)
    kernel.held = {BASE + i * PAGE for i in (0, 700, 701, 1999)}
    outcome, _ = apply(journal, kernel, plan_of(BASE, 2000, 1))
    assert (outcome.moved, outcome.busy) == (1996, 4)


def test_a_page_held_in_three_windows_of_a_second_counts_as_pinned(journal: Journal):
    kernel = fake_ram(8)
    kernel.held = {BASE}
    now_ns: list[int] = [0]
    outcomes: list[MoveOutcome] = []
    mover = Mover(journal, Budget(None), lambda: now_ns[0], kernel=kernel)
    for _ in range(4):
        outcomes += mover.apply(plan_of(BASE, 1, 1), {"db1": guest(8)}).outcomes
        now_ns[0] += 10**9
    assert [(o.busy, o.pinned) for o in outcomes] == [(1, 0), (1, 0), (1, 0), (0, 1)]


def test_pages_of_several_processes_are_refused(journal: Journal):
    kernel = fake_ram(8)
    kernel.shared = {BASE}
    outcome, _ = apply(journal, kernel, plan_of(BASE, 8, 1))
    assert (outcome.moved, outcome.refused) == (7, {"EACCES": 1})


@pytest.mark.parametrize(
    ("error", "words"),
    [(errno.EACCES, "cpuset"), (errno.ENODEV, "does not exist"), (errno.ENOMEM, "no free memory")],
)
def test_a_node_that_refuses_is_reported_and_others_still_work(journal: Journal, error: int, words: str):
    kernel = fake_ram(2000)
    kernel.whole_call_errors = {1: error}
    plan = PlacementPlan(plan_of(BASE, 1000, 1).moves + plan_of(BASE + 1000 * PAGE, 1000, 2).moves)
    outcome, failures = apply(journal, kernel, plan)
    assert outcome.refused == {errno.errorcode[error]: 1000}
    assert outcome.moved == 1000
    assert len(failures) == 1 and words in failures[0]


def test_missing_permission_tells_the_cure(journal: Journal):
    kernel = fake_ram(8)
    kernel.whole_call_errors = {1: errno.EPERM}
    outcome, failures = apply(journal, kernel, plan_of(BASE, 8, 1))
    assert outcome.left == 8
    assert "CAP_SYS_PTRACE" in failures[0]


@pytest.mark.parametrize(
    ("movability", "kind"),
    [(Movability.PINNED, "pinned"), (Movability.HUGETLB, "refused"), (Movability.SHARED, "refused")],
)
def test_unmovable_ram_is_never_tried_and_the_reason_reported(
    journal: Journal, movability: Movability, kind: str
):
    kernel = fake_ram(8)
    result = Mover(journal, Budget(None), kernel=kernel).apply(
        plan_of(BASE, 8, 1), {"db1": guest(8, movability=movability)}
    )
    assert getattr(result.outcomes[0], kind) in (8, {movability.value: 8})
    assert result.failures == (f"guest db1: {movability.value}: as declared",)
    assert not kernel.calls


def test_memory_that_is_no_guest_ram_is_never_moved(journal: Journal):
    kernel = fake_ram(16)
    outcome, _ = apply(journal, kernel, plan_of(BASE, 16, 1), npages=8)
    assert (outcome.moved, outcome.refused) == (8, {"not guest RAM": 8})


def test_huge_pages_move_whole_by_their_heads(journal: Journal):
    kernel = fake_ram(8 * 512)
    kernel.huge = {BASE + i * HUGE for i in range(8)}
    outcome, _ = apply(journal, kernel, plan_of(BASE, 8 * 512, 1, huge=True))
    assert outcome.moved == 8 * 512
    assert sum(kernel.calls) == 8


def test_huge_pages_that_were_split_meanwhile_move_page_by_page(journal: Journal):
    kernel = fake_ram(512)
    outcome, _ = apply(journal, kernel, plan_of(BASE, 512, 1, huge=True))
    assert set(kernel.nid_of.values()) == {1}
    assert (outcome.moved, accounted(outcome)) == (512, 512)


def test_small_pages_that_became_a_huge_page_are_counted_once(journal: Journal):
    kernel = fake_ram(512)
    kernel.huge = {BASE}
    outcome, _ = apply(journal, kernel, plan_of(BASE, 512, 1))
    assert (outcome.moved, outcome.busy) == (512, 0)
    assert journal.origins(read_identity(guest(1))).total_pages == 512


def test_the_budget_is_never_exceeded_and_the_rest_is_left(journal: Journal):
    kernel, now = fake_ram(4096), 0
    mover = Mover(journal, Budget(4 << 20), lambda: now, kernel=kernel)
    moved = []
    for _ in range(5):
        result = mover.apply(plan_of(BASE, 4096, 1), {"db1": guest(4096)})
        moved.append(result.moved_pages)
        assert accounted(result.outcomes[0]) == 4096
        now += 1_000_000_000
    assert moved == [1024, 1024, 1024, 1024, 0]


def test_guests_share_a_small_budget(journal: Journal):
    kernel = fake_ram(8192)
    first, second = (guest_of(os.getpid(), BASE, 8192, name=name) for name in ("db1", "db2"))
    plan = PlacementPlan(
        plan_of(BASE, 4096, 1).moves + plan_of(BASE + 4096 * PAGE, 4096, 1, guest="db2").moves
    )
    mover = Mover(journal, Budget(8 << 20), lambda: 0, kernel=kernel)
    outcomes = mover.apply(plan, {"db1": first, "db2": second}).outcomes
    assert [o.moved for o in outcomes] == [1024, 1024]


def test_stop_ends_between_two_calls(journal: Journal):
    kernel, stop = fake_ram(4096), threading.Event()
    kernel.before_call = lambda call: stop.set() if call == 2 else None
    mover = Mover(journal, Budget(None), kernel=kernel)
    outcome = mover.apply(plan_of(BASE, 4096, 1), {"db1": guest(4096)}, stop=stop.is_set).outcomes[0]
    assert len(kernel.calls) == 2
    assert outcome.left == 4096 - outcome.moved


@dataclass
class SlowKernel(FakeKernel):
    """Each call for process ``evil`` waits for 55 ms, but for one page: so batches of it become tiny."""

    evil: int = 0
    waited_s: float = 0.0

    def move_pages(self, pid: int, hvas: Hvas, nids: Status, status: Status) -> int:
        took_ns = super().move_pages(pid, hvas, nids, status)
        if pid != self.evil or len(hvas) == 1:
            return took_ns
        self.waited_s += 0.055
        return 55_000_000


@dataclass(frozen=True)
class Two:
    """A guest that may hold up calls, another one, and the plan that moves both."""

    evil: GuestTopology
    good: GuestTopology
    kernel: SlowKernel
    plan: PlacementPlan

    def apply(self, journal: Journal) -> ActuationResult:
        mover = Mover(journal, Budget(None), kernel=self.kernel)
        return mover.apply(self.plan, {"evil": self.evil, "good": self.good})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Time in s that passes when a test says so, for who was left alone; and calls that take no CPU time."""
    now = [1e6]
    own = held.Held(clock=lambda: now[0])
    for name in ("bounded", "holds", "probe", "await_end", "note_stuck", "note_waits", "keep"):
        monkeypatch.setattr(held, name, getattr(own, name))
    monkeypatch.setattr("vmplace.actuation.batch.thread_cpu_ns", lambda: 0)
    yield now
    own.close()


@pytest.fixture
def two(now: list[float]) -> Iterator[Two]:
    with child_guest(16384) as child:
        evil = replace(child.guest, name="evil")
        mapped = {child.hva + i * PAGE: 0 for i in range(16384)} | fake_ram(4096).nid_of
        moves = plan_of(child.hva, 16384, 1, guest="evil").moves + plan_of(BASE, 4096, 1, guest="good").moves
        good = guest_of(os.getpid(), BASE, 4096, name="good")
        yield Two(evil, good, SlowKernel(mapped), PlacementPlan(moves))


def test_a_guest_that_holds_up_each_call_a_little_is_left_alone_and_others_move(journal: Journal, two: Two):
    """No call waits for long enough to be given up, but there would be thousands: for four minutes."""
    two.kernel.evil = two.evil.pid
    result = two.apply(journal)
    assert result.failures == (f"guest evil: {held.HELD}",) and held.holds(two.evil.pid)
    assert [one.moved for one in result.outcomes if one.guest == "good"] == [4096]
    assert held.MOST_S < two.kernel.waited_s < held.MOST_S + 0.2


@pytest.mark.slow
def test_a_guest_whose_calls_wait_for_a_cpu_is_not_to_blame(
    journal: Journal, two: Two, monkeypatch: pytest.MonkeyPatch
):
    two.kernel.evil = two.evil.pid
    monkeypatch.setattr("vmplace.actuation.batch.thread_delay_ns", lambda: round(two.kernel.waited_s * 1e9))
    result = two.apply(journal)
    assert result.failures == () and not held.holds(two.evil.pid)
    assert two.kernel.waited_s > held.MOST_S


@pytest.mark.slow
def test_a_guest_that_holds_up_each_call_a_little_keeps_no_other_from_being_undone(
    journal: Journal, two: Two, now: list[float]
):
    two.apply(journal)
    assert set(two.kernel.nid_of.values()) == {1}
    two.kernel.evil = two.evil.pid
    result = undo(journal, kernel=two.kernel)
    assert result.failures == (f"guest evil: {held.HELD}",)
    # Its pages are in one block of 64 MiB, or in two: each may take so long.
    assert held.MOST_S < two.kernel.waited_s < 2 * held.MOST_S + 0.2
    assert {two.kernel.nid_of[BASE + i * PAGE] for i in range(4096)} == {0}
    assert [one.identity.name for one in journal.contents().guests.values()] == ["evil"]
    two.kernel.evil = 0
    assert held.holds(two.evil.pid)
    # Once for each block.
    now[0] += 2.5
    assert undo(journal, kernel=two.kernel).is_complete
    assert set(two.kernel.nid_of.values()) == {0}


def test_pages_that_move_to_and_fro_are_vetoed(journal: Journal):
    kernel = fake_ram(8)
    mover = Mover(journal, Budget(None), kernel=kernel)
    outcomes = [mover.apply(plan_of(BASE, 8, nid), {"db1": guest(8)}).outcomes[0] for nid in (1, 0, 1)]
    assert [(o.moved, o.vetoed) for o in outcomes] == [(8, 0), (8, 0), (0, 8)]


def test_pages_that_go_back_after_a_loss_are_not_held_up_for_having_moved(journal: Journal):
    """What was measured as a loss ends, wherever pages were lately; the next plan's moves wait as before."""
    kernel = fake_ram(8)
    mover = Mover(journal, Budget(None), kernel=kernel)
    for nid in (1, 0, 1):
        mover.apply(plan_of(BASE, 8, nid), {"db1": guest(8)})
    assert set(kernel.nid_of.values()) == {0}
    back = PlacementPlan(tuple(replace(move, undoes=True) for move in plan_of(BASE, 8, 1).moves))
    outcome = mover.apply(back, {"db1": guest(8)}).outcomes[0]
    assert (outcome.moved, outcome.vetoed) == (8, 0)
    assert mover.apply(plan_of(BASE, 8, 0), {"db1": guest(8)}).outcomes[0].vetoed == 8


def test_pages_that_moved_to_and_fro_may_follow_vcpus_that_went_elsewhere(journal: Journal):
    """A guest that has not moved anything yet has nothing to be forgiven."""
    kernel = fake_ram(8)
    mover = Mover(journal, Budget(None), kernel=kernel)
    mover.forgive(guest(8))
    for nid in (1, 0, 1, 0, 1):
        mover.apply(plan_of(BASE, 8, nid), {"db1": guest(8)})
    assert mover.apply(plan_of(BASE, 8, 0), {"db1": guest(8)}).outcomes[0].vetoed == 8
    mover.forgive(guest(8))
    assert mover.apply(plan_of(BASE, 8, 0), {"db1": guest(8)}).outcomes[0].vetoed == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_page_is_accounted_for_and_reported_truly(journal: Journal, seed: int):
    noise = np.random.default_rng(seed)
    kernel = FakeKernel({BASE + i * PAGE: int(noise.integers(4)) for i in range(3000)})
    for kind in (kernel.held, kernel.shared):
        kind.update(BASE + i * PAGE for i in noise.integers(3000, size=20).tolist())
    for i in noise.integers(3000, size=20).tolist():
        kernel.nid_of.pop(BASE + i * PAGE, None)
    before = dict(kernel.nid_of)
    outcome, _ = apply(journal, kernel, plan_of(BASE, 3000, 1))
    assert accounted(outcome) == 3000
    assert outcome.moved == sum(before[hva] != nid for hva, nid in kernel.nid_of.items())
    assert outcome.already == sum(nid == 1 for nid in before.values())
    assert outcome.gone == 3000 - len(before)
