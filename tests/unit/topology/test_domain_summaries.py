"""Are all summaries written, however many guests there are, and whoever hangs?"""

import importlib.util
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from vmplace.errors import UnsupportedHostError
from vmplace.model.handover import MOST_TEXT
from vmplace.topology import domain_summaries, libvirt_worker
from vmplace.topology.domain_policy import PLACEMENT
from vmplace.topology.domain_summaries import DomainSummaries
from vmplace.topology.guests_libvirt import Answer

needs_libvirt = pytest.mark.skipif(
    importlib.util.find_spec("libvirt") is None, reason="Python has no libvirt module"
)


class Worker:
    """Stands for a process that has libvirt: ``answer`` gets what the real worker reads from its stdin."""

    def __init__(self, text: str, answer: Callable[[list[list[str]]], Answer]) -> None:
        # As libvirt_worker.py reads it.
        self._heard = json.loads(io.StringIO(text).read(libvirt_worker.MOST_BYTES))
        self._answer = answer

    def result(self, patience_s: float) -> Answer:
        return self._answer(self._heard)


@pytest.fixture
def libvirt(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return what libvirt is asked to write: one dictionary for each process."""
    asked: list[dict[str, str]] = []

    def answer(reported: list[list[str]]) -> Answer:
        asked.append(dict(reported))
        stuck = [uuid for uuid, _ in reported if uuid.startswith("hung")]
        unreached = [uuid for uuid, _ in reported][5:] if len(stuck) > 2 else []
        return Answer(stuck=tuple(stuck[:3]), unreached=tuple(unreached))

    def question(uri: str, *words: str, text: str) -> Any:
        return Worker(text, answer)

    monkeypatch.setattr(domain_summaries, "Question", question)
    return asked


def test_a_thousand_guests_with_the_longest_texts(libvirt: list[dict[str, str]]):
    """64 MiB, four times of what one worker reads; it failed from 256 such guests on."""
    texts = {f"{number:036d}": "x" * MOST_TEXT for number in range(1000)}
    summaries = DomainSummaries()
    summaries.write(texts)
    summaries.finish(0)
    written = {uuid: text for part in libvirt for uuid, text in part.items()}
    assert written.keys() == texts.keys()
    assert set(written.values()) == {f"<placement xmlns='{PLACEMENT}'>{'x' * MOST_TEXT}</placement>"}
    assert len(libvirt) < 30 and not summaries.is_busy()


def test_a_domain_that_hangs_is_reported_comes_last_and_is_left_out_ever_longer(
    libvirt: list[dict[str, str]],
):
    summaries = DomainSummaries()
    rounds = []
    for _ in range(12):
        summaries.write({"hung": "a", "well": "b"})
        try:
            summaries.finish(0)
            rounds.append(False)
        except UnsupportedHostError as err:
            assert "libvirt does not answer for domain hung, which is tried again" in str(err)
            rounds.append(True)
    # Left out once, twice, four times ...
    assert [number for number, reported in enumerate(rounds) if reported] == [0, 2, 5, 10]
    assert all("well" in part for part in libvirt) and [*libvirt[2]] == ["well", "hung"]


def test_what_a_hung_domain_has_is_taken_out_once_it_answers(libvirt: list[dict[str, str]]):
    summaries = DomainSummaries()
    summaries.write({"hung": ""})
    with pytest.raises(UnsupportedHostError):
        summaries.finish(0)
    summaries.write({"well": "b"})
    assert libvirt[-1] != {} and summaries._asked == {"well": "b", "hung": ""}


def test_those_behind_many_that_hang_are_written_by_another_process(libvirt: list[dict[str, str]]):
    summaries = DomainSummaries()
    summaries.write({f"hung{n}": "a" for n in range(3)} | {f"well{n}": "b" for n in range(9)})
    with pytest.raises(UnsupportedHostError, match="hung0, hung1, hung2"):
        summaries.finish(0)
    summaries.finish(0)
    assert set(libvirt[1]) >= {f"well{n}" for n in range(2, 9)}


@needs_libvirt
def test_the_real_worker_reads_what_is_written():
    """By the test driver, whose domain cannot be kept between two processes: only that it is no failure."""
    summaries = DomainSummaries("test:///default")
    summaries.write(
        {"6695eb01-f6a4-8304-79aa-97f2502e193f": "A", "00000000-0000-0000-0000-000000000000": "B"}
    )
    summaries.finish(60)


def test_an_answer_for_which_memory_does_not_suffice_stops_no_later_summary(
    libvirt: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
):
    summaries = DomainSummaries()
    summaries.write({"first": "a"})

    def short(*_: object) -> Answer:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "result", short)
        with pytest.raises(MemoryError):
            summaries.finish(0)
    assert not summaries.is_busy() and libvirt == []
    summaries.write({"second": "b"})
    summaries.finish(0)
    assert [list(part) for part in libvirt] == [["second"]]
