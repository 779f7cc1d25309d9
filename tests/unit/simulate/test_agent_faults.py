"""Whatever goes wrong under the agent, by seed: nobody's failure stops another's, and undo is exact.

`make agent-faults` runs 10,000 seeds and names for one that fails the command that repeats it.
"""

import time

import numpy as np
import pytest

from tests.fuzz import agent_faults, faulty_host
from vmplace.actuation.budget import Budget
from vmplace.actuation.guest_mover import GuestMover
from vmplace.actuation.journal import Journal
from vmplace.actuation.mover import Mover
from vmplace.actuation.veto import PingPongVeto
from vmplace.agent.actuator import HostActuator
from vmplace.simulate.agent_host import SimulatedMachine
from vmplace.topology.host import HostTopology

SEEDS = range(48)
RESTLESS = range(3, 100, 8)
"""Those in which all pages are to change places in each window."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_hold_holds_whatever_went_wrong(seed: int) -> None:
    agent_faults.check(seed)


@pytest.mark.slow
def test_things_do_go_wrong_and_pages_do_move(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = 0
    carry_out = SimulatedMachine._move

    def counted(self: SimulatedMachine, guest: object, pages: np.ndarray, target: int) -> None:
        nonlocal moved
        moved += len(pages)
        carry_out(self, guest, pages, target)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedMachine, "_move", counted)
    seeds = SEEDS[:12]
    assert sum(agent_faults.check(seed).faults for seed in seeds) > 4 * len(seeds)
    assert moved > 10 * len(seeds)


def failures(seeds: range) -> list[str]:
    until = float("inf")
    return [reported for _, _, reported in (agent_faults.checked(seed, until) for seed in seeds) if reported]


def test_an_undo_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostActuator, "undo", lambda *_: ())
    assert "undo is not exact" in "".join(failures(range(12)))


def test_a_move_that_the_journal_does_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "record_pages", lambda *_: None)
    assert "is not in the journal" in "".join(failures(range(12)))


def test_a_failure_that_stops_the_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(self: faulty_host.FaultyCost, guest: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("vmplace.agent.trials.Trials._rate", rate)
    assert len(failures(range(6))) == 6


def test_a_budget_that_limits_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "take", lambda *_: True)
    monkeypatch.setattr(Budget, "available_bytes", lambda *_: 1 << 40)
    monkeypatch.setattr(Budget, "wait_s", lambda *_: 0.0)
    assert "beyond the budget" in "".join(failures(RESTLESS))


@pytest.mark.slow
def test_a_veto_that_lets_all_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PingPongVeto, "allowed", lambda _, hva: np.ones(len(hva), np.bool_))
    assert "to and fro" in "".join(failures(RESTLESS))


@pytest.mark.slow
def test_a_failure_that_ends_all_movers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    move_chunk = GuestMover.move_chunk
    window: dict[str, object] = {}

    def apply(self: Mover, *given: object, **options: object) -> object:
        window.clear()
        return whole(self, *given, **options)  # type: ignore[arg-type]

    def first_failure_ends_all(self: GuestMover, most_bytes: int) -> None:
        if window:
            return self.end()
        try:
            move_chunk(self, most_bytes)
        except Exception:
            window["failed"] = True
            raise

    whole = Mover.apply
    monkeypatch.setattr(Mover, "apply", apply)
    monkeypatch.setattr(GuestMover, "move_chunk", first_failure_ends_all)
    assert "as another one failed" in "".join(failures(range(3, 400, 8)))


@pytest.mark.slow
def test_a_move_to_a_node_that_is_offline_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    look = faulty_host.FaultyHost._without_node

    def unheard(self: faulty_host.FaultyHost, host: HostTopology) -> HostTopology:
        look(self, host)
        return host

    monkeypatch.setattr(faulty_host.FaultyHost, "_without_node", unheard)
    assert "is offline" in "".join(failures(range(96)))


@pytest.mark.parametrize("call", ["page_nids", "move_pages"])
@pytest.mark.parametrize("times", [1, 1000])
def test_a_seed_in_which_the_kernel_hangs_is_named(
    call: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, answer = [times], getattr(SimulatedMachine, call)

    def hang(*words: object, **options: object) -> object:
        if left[0] > 0:
            left[0] -= 1
            time.sleep(30)
        return answer(*words, **options)

    monkeypatch.setattr(agent_faults, "LONGEST_S", 1)
    monkeypatch.setattr(SimulatedMachine, call, hang)
    assert "took more than 1 s" in failures(range(1))[0]


@pytest.mark.parametrize(("seconds", "code"), [("600", 0), ("0", 1)])
def test_a_time_that_is_too_short_for_all_seeds_is_no_success(
    monkeypatch: pytest.MonkeyPatch, seconds: str, code: int
) -> None:
    monkeypatch.setattr("sys.argv", ["agent_faults", "--seeds", "2", "--jobs", "1", "--seconds", seconds])
    assert agent_faults.main() == code


SEED = agent_faults.Done(3, 20, 5)


@pytest.mark.parametrize(
    ("asked", "done", "code"),
    [
        (10_000, [SEED] * 10_000, 0),
        (10_000, [SEED] * 500, 5),
        (10_000, [SEED] * 499, 1),
        (10_000, [SEED._replace(copies=0)] * 10_000, 1),
        (10_000, [SEED._replace(moves=0)] * 600, 1),
        (1, [SEED._replace(copies=0)], 0),
    ],
)
def test_few_seeds_or_seeds_in_which_nothing_happens_are_no_success(
    asked: int, done: list[agent_faults.Done], code: int
) -> None:
    assert agent_faults.verdict(asked, done) == code


@pytest.mark.slow
def test_moves_and_copies_are_counted() -> None:
    done = [agent_faults.check(seed) for seed in SEEDS[:12]]
    assert sum(one.moves for one in done) > 0
    assert sum(one.copies for one in done) > 0
