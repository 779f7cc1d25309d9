"""What may a loop of ``fit`` and ``advise`` cost the agent?"""

import time
from typing import Any

import pytest

from tests.unit.agent.agent_world import guest
from tests.unit.agent.test_room import Crowded
from vmplace.agent.clock import HostClock
from vmplace.agent.loop import Agent
from vmplace.interfaces import answers as answers_module
from vmplace.interfaces import control as control_module
from vmplace.interfaces.answers import AgentAnswers
from vmplace.interfaces.control import Peer
from vmplace.interfaces.fit_answers import fit_answer
from vmplace.interfaces.look_budget import MOST_S, SHARE
from vmplace.interfaces.protocol import Request, Response, Size

USER, OTHER, ROOT = (Peer(1, uid, uid) for uid in (1000, 1001, 0))
COST_S = 0.06


class HandClock(HostClock):
    """Time that a test sets; CPU time goes by COST_S with each answer that is worked out."""

    def __init__(self) -> None:
        self.now_s = self.cpu = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_cpu_ns(self) -> int:
        return round(self.cpu * 1e9)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def agent() -> Agent:
    found = Crowded([guest("db1")]).agent()
    found.run(windows=1)
    return found


@pytest.fixture
def answers(agent: Agent, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> AgentAnswers:
    """Return answers of a real agent, each of which costs more than it does."""

    def costly(*words: Any) -> Any:
        clock.cpu += COST_S
        return fit_answer(*words)

    monkeypatch.setattr(answers_module, "fit_answer", costly)
    return AgentAnswers(agent, clock)


def test_ids_that_a_user_was_lent_take_from_his_share(answers: AgentAnswers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control_module, "owner_of", lambda uid: 1000 if uid >= 100_000 else uid)
    given = [fit(answers, Peer(1, 100_000 + vcpus, 1000), vcpus) for vcpus in range(1, 20)]
    assert given[0].ok and not given[-1].ok
    assert not fit(answers, USER, 30).ok and fit(answers, OTHER, 31).ok and fit(answers, ROOT, 32).ok


def fit(answers: AgentAnswers, peer: Peer, vcpus: int, mib: int = 1) -> Response:
    answer = answers(peer, Request("fit", size=Size(vcpus, mib << 20)))
    assert isinstance(answer, Response)
    return answer


def test_a_user_who_asks_in_a_loop_is_asked_to_wait_and_nobody_else(answers: AgentAnswers, clock: HandClock):
    got = [fit(answers, USER, 1 + number) for number in range(50)]
    assert [one.ok for one in got] == [True] * 5 + [False] * 45
    assert got[-1].kind == "busy" and "ask again in" in str(got[-1].hint)
    assert fit(answers, OTHER, 60).ok and all(fit(answers, ROOT, 70 + number).ok for number in range(20))


@pytest.mark.slow
def test_in_the_long_run_a_user_gets_a_share_of_a_cpu(answers: AgentAnswers, clock: HandClock):
    for number in range(10_000):
        clock.now_s += 0.1
        fit(answers, USER, 1 + number % 4000)
    assert clock.cpu <= MOST_S + SHARE * clock.now_s + COST_S
    assert clock.cpu >= SHARE * clock.now_s * 0.9


def test_the_same_question_is_answered_from_memory(answers: AgentAnswers, clock: HandClock):
    first = [fit(answers, USER, 1) for _ in range(100)]
    assert all(one.ok for one in first) and clock.cpu == COST_S


def test_what_it_follows_from_is_asked_again_once_it_changed(
    answers: AgentAnswers, agent: Agent, clock: HandClock
):
    before = fit(answers, ROOT, 2, 6)
    one = agent.roster.get("db1")
    assert one is not None
    one.held = True
    after = fit(answers, ROOT, 2, 6)
    assert before.data != after.data and clock.cpu == 2 * COST_S
    agent.run(windows=agent.status.windows + 1)
    fit(answers, ROOT, 2, 6)
    assert clock.cpu == 3 * COST_S


def test_pictures_of_memory_take_from_the_share_of_who_looks_at_them(
    agent: Agent, clock: HandClock, monkeypatch: pytest.MonkeyPatch
):
    """Of a guest of 256 GiB they go through 67 million pages, on the thread that answers all others."""

    def costly(_: object) -> tuple[()]:
        clock.cpu += 1.0
        return ()

    monkeypatch.setattr(answers_module, "heat_strips", costly)
    answers = AgentAnswers(agent, clock)

    def show(peer: Peer) -> Response:
        answer = answers(peer, Request("show", "db1"))
        assert isinstance(answer, Response)
        return answer

    assert show(USER).ok and show(USER).ok and clock.cpu == 1.0
    agent.run(windows=agent.status.windows + 1)
    assert show(USER).kind == "busy" and clock.cpu == 1.0
    assert show(ROOT).ok and show(USER).ok and clock.cpu == 2.0


def test_by_the_real_clock(agent: Agent):
    answers, refused = AgentAnswers(agent), 0
    started = time.thread_time()
    # Each question another one: none is in memory.
    for number in range(20_000):
        refused += not fit(answers, USER, 1 + number % 4000).ok
        if refused > 100:
            break
    assert refused > 100 and time.thread_time() - started < 20
