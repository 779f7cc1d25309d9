"""What scrapes cost the agent: whoever reaches the port may scrape as often as he likes."""

import pytest

from vmplace.interfaces import metrics_exporter
from vmplace.interfaces.client import NoAgentError
from vmplace.interfaces.metrics_exporter import FRESH_S, AgentCollector


def test_scrapes_of_one_second_are_one_question_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(*_: object, **__: object) -> None:
        asked.append(now[0])
        raise NoAgentError("no agent")

    monkeypatch.setattr(metrics_exporter, "ask", ask)
    now = [0.0]
    collector = AgentCollector(None, lambda: now[0])
    for tenths in range(25):
        now[0] = tenths / 10 * FRESH_S
        names = {one.name for one in collector.collect()}
        assert "vmplace_up" in names
    assert asked == [0.0, FRESH_S, 2 * FRESH_S]
