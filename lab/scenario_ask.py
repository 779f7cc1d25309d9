"""What do the guests of a scenario answer, and who keeps silent?

A guest that keeps silent while the others answer hangs.  Where none of them answers in time, the machine is
too slow.
"""

from collections.abc import Sequence
from typing import Any

from lab.errors import RUN_AGAIN, LabError, TooSlowError
from lab.machine import LabHost
from lab.scenario import Guest
from lab.scenario_stage import ask_payloads, numbered

ANSWER_S = 60
TRIES = 3


def ask_all(host: LabHost, guests: Sequence[Guest], command: str) -> dict[str, Any]:
    """Return each guest's answer to a command that may be given twice.

    Raises LabError with the names of those that keep silent, TooSlowError if nobody answers.
    """
    answers = ask_patiently(host, guests, command, ANSWER_S)
    if silent := [guest.name for guest in guests if guest.name not in answers]:
        raise LabError(f"{', '.join(silent)} fell silent: no answer to '{command}'", hint=RUN_AGAIN)
    return answers


def ask_patiently(host: LabHost, guests: Sequence[Guest], command: str, seconds: int) -> dict[str, Any]:
    """Return the answers; a guest that did not answer, though others did, is absent.

    Raises TooSlowError if nobody answers.
    """
    answers: dict[str, Any] = {}
    question = numbered(command)
    for _ in range(TRIES):
        missing = [guest for guest in guests if guest.name not in answers]
        if not missing:
            break
        answers |= ask_payloads(host, missing, question, seconds)
    if guests and not answers:
        raise TooSlowError(f"no guest answered in {TRIES * seconds} s")
    return answers
