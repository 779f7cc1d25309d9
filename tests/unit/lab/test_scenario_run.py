"""When is a claim that did not come out held against a manager?"""

import msgspec
import pytest

from lab.scenario import Expectation, Guest, Scenario
from lab.scenario_result import ManagerResult
from lab.scenario_run import decided
from lab.workload import Workload
from tests.unit.lab.scenario_figures import manager

GUEST = Guest(name="web", start_nids=(0, 0), memory_mib=64, workload=Workload())
CLAIM = Expectation(managers=("vmplace",), lar_after_min=0.95, intact=True)
SCENARIO = Scenario(name="try", topology="n2", guests=(GUEST,), expect=(CLAIM,))


def seen(share: float, *, lar: float = 0.99, intact: bool = True) -> ManagerResult:
    found = manager(lar_after=lar, intact=intact)
    return msgspec.structs.replace(found, machine_share={"starts": 1.0, "acts": share})


@pytest.mark.parametrize("share", [1.0, 0.71, 0.2])
def test_a_claim_that_holds_holds_on_any_machine(share: float):
    assert decided(SCENARIO, {"vmplace": seen(share)}) == ((), None)


def test_one_that_does_not_fails_where_the_machine_was_free():
    failed, undecided = decided(SCENARIO, {"vmplace": seen(0.71, lar=0.5)})
    assert "LAR after is 0.500" in failed[0] and undecided is None


def test_and_is_left_undecided_where_others_used_much_of_it():
    failed, undecided = decided(SCENARIO, {"vmplace": seen(0.45, lar=0.5)})
    assert failed == () and undecided is not None
    assert "others used up to 55% of it; undecided: vmplace: web: LAR after is 0.500" in undecided


def test_what_others_used_under_a_rival_counts_as_well():
    results = {"vmplace": seen(1.0, lar=0.5), "kernel": seen(0.4)}
    assert decided(SCENARIO, results)[0] == ()  # type: ignore[arg-type]


def test_memory_that_is_lost_is_lost_on_any_machine():
    failed, undecided = decided(SCENARIO, {"vmplace": seen(0.2, lar=0.5, intact=False)})
    assert failed == ("vmplace: web: memory intact is False, expected True",)
    assert undecided is not None and "intact" not in undecided
