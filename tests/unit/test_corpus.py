"""What fuzzing found (tests/data/fuzz) and starts from: every reader takes or refuses it."""

import pytest

from tests.fuzz.targets import TARGETS, corpus, inputs
from vmplace.errors import VmplaceError


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_is_taken_or_refused(name: str):
    for data in inputs(name):
        try:
            TARGETS[name].feed(data)
        except VmplaceError as err:
            assert str(err)


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_are_as_they_ought_to_be_are_taken(name: str):
    for data in TARGETS[name].seeds():
        TARGETS[name].feed(data)


def test_what_is_kept_belongs_to_a_target():
    assert {path.name for path in corpus("cpulist").parent.glob("*")} <= set(TARGETS)
