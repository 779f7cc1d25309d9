"""In which order is a manager let run and paused, to see what it costs?"""

from unittest.mock import MagicMock

import pytest

from lab import scenario_cost
from lab.scenario_cost import Spell, measured_cost


def test_a_machine_that_gets_slower_all_the_time_costs_nothing(monkeypatch: pytest.MonkeyPatch):
    speeds = iter([10.0, 9.0, 8.0, 7.0])
    monkeypatch.setattr(scenario_cost, "_spell", lambda *_: Spell({1: next(speeds)}, 1.0))
    assert measured_cost(MagicMock(), MagicMock(), 1.5, {1: 1.0}).share == pytest.approx(0.0)


def test_what_is_lost_while_it_runs_is_its_cost_and_it_runs_on(monkeypatch: pytest.MonkeyPatch):
    running = True
    manager = MagicMock()

    def let(state: bool) -> None:
        nonlocal running
        running = state

    manager.pause.side_effect, manager.resume.side_effect = lambda: let(False), lambda: let(True)
    monkeypatch.setattr(scenario_cost, "_spell", lambda *_: Spell({1: 9.0 if running else 10.0}, 1.0))
    assert measured_cost(MagicMock(), manager, 1.5, {1: 1.0}).share == pytest.approx(0.1)
    assert running


def test_a_guest_that_waits_is_seen_though_the_others_get_its_cpu(monkeypatch: pytest.MonkeyPatch):
    waits, works = Spell({1: 1.0, 2: 15.0}, 1.0), Spell({1: 4.0, 2: 12.0}, 1.0)
    spells = iter([waits, works, works, waits])
    monkeypatch.setattr(scenario_cost, "_spell", lambda *_: next(spells))
    cost = measured_cost(MagicMock(), MagicMock(), 1.5, {1: 1.0, 2: 1.0})
    assert (cost.share, cost.worst_share) == pytest.approx((0.0, 0.75))
