"""What scrapes cost the agent: whoever reaches the port may scrape as often as he likes."""

import pytest

from vmplace.interfaces import metrics_exporter
from vmplace.interfaces.client import NoAgentError, RefusedError
from vmplace.interfaces.metrics_exporter import FRESH_S, AgentCollector


@pytest.mark.parametrize("err", [NoAgentError("no agent"), RefusedError("busy", kind="busy")])
def test_scrapes_of_one_second_are_one_question_to_the_agent(
    err: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(*_: object, **__: object) -> None:
        asked.append(now[0])
        raise err

    monkeypatch.setattr(metrics_exporter, "ask", ask)
    now = [0.0]
    collector = AgentCollector(None, lambda: now[0])
    for tenths in range(25):
        now[0] = tenths / 10 * FRESH_S
        names = {one.name for one in collector.collect()}
        assert "vmplace_up" in names
    assert asked == [0.0, FRESH_S, 2 * FRESH_S]
