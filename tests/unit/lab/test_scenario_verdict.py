"""Which claims get a verdict on a machine that does other things, too?"""

import msgspec
import pytest

from lab.scenario import Expectation, Guest, Scenario
from lab.scenario_result import ManagerResult
from lab.scenario_verdict import COMPARISONS, STEPS_OF, skipped_claims, verdict
from lab.workload import Workload
from tests.unit.lab.scenario_figures import manager

GUEST = Guest(name="web", start_nids=(0, 0), memory_mib=64, workload=Workload())
CLAIM = Expectation(managers=("vmplace",), lar_after_min=0.95, intact=True)
RIVAL = Expectation(managers=("vmplace",), as_good_as=("none",), tolerance=-0.3)
SECONDS = {"starts": 0.3, "acts": 30.0, "metered windows after": 6.0, "guests verify all their memory": 3.0}
LOST = "vmplace: web: memory intact is False, expected True"


def scenario(*claims: Expectation) -> Scenario:
    return Scenario(name="try", topology="n2", guests=(GUEST,), expect=claims)


def seen(shares: dict[str, float], *, lar: float | None = 0.99, intact: bool | None = True) -> ManagerResult:
    """Return a manager that had all of the machine, but these shares of it in some steps."""
    found = manager(lar_after=lar, intact=intact)
    return msgspec.structs.replace(found, machine_share=dict.fromkeys(SECONDS, 1.0) | shares, step_s=SECONDS)


@pytest.mark.parametrize("lar", [0.99, 0.05])
def test_no_claim_holds_or_fails_where_others_used_much_of_the_machine(lar: float):
    found = verdict(scenario(CLAIM), {"vmplace": seen({"acts": 0.45}, lar=lar)})
    assert found.failed == () and found.too_slow
    assert "others used up to 55% of it under vmplace; claims undecided: 1, not as" in found.too_slow
    assert len(found.undecided) == (lar < 0.95)


@pytest.mark.parametrize("step", ["starts", "what it costs, in turns"])
def test_a_step_that_no_figure_comes_from_excuses_nothing(step: str):
    found = verdict(scenario(CLAIM), {"vmplace": seen({step: 0.1}, lar=0.05)})
    assert "LAR after is 0.050" in found.failed[0] and found.too_slow is None


@pytest.mark.parametrize("step", ["acts", "metered windows after"])
@pytest.mark.parametrize("lar", [0.99, 0.05])
def test_each_step_that_figures_come_from_has_to_be_free_by_itself(step: str, lar: float):
    """A window of six seconds is what is judged, however long and free the time before it was."""
    found = verdict(scenario(CLAIM), {"vmplace": seen({step: 0.6}, lar=lar)})
    assert found.failed == () and found.too_slow and "others used up to 40%" in found.too_slow


@pytest.mark.parametrize(
    "claim",
    [
        RIVAL,
        Expectation(managers=("vmplace",), fastest_of=("none",)),
        Expectation(managers=("vmplace",), as_good_as=("none",), compare="host_mc_imbalance"),
    ],
)
def test_a_rival_without_a_figure_leaves_the_claim_undecided(claim: Expectation):
    lacking = msgspec.structs.replace(seen({}, lar=None), mc_imbalance_after=None, emulated_run_time_s=None)
    ours = msgspec.structs.replace(seen({}), emulated_run_time_s=99.0)
    found = verdict(scenario(claim), {"vmplace": ours, "none": lacking})
    assert found.failed == () and found.too_slow
    assert "there are no figures to compare with under none; claims undecided: 1" in found.too_slow


def test_a_guest_that_does_not_verify_its_memory_while_others_do_fails_on_any_machine():
    busy = seen({"acts": 0.2, "guests verify all their memory": 0.2}, intact=None)
    assert "memory intact is None" in verdict(scenario(CLAIM), {"vmplace": busy}).failed[0]


def test_claims_that_compare_with_what_did_not_run_are_counted():
    two = Expectation(managers=("vmplace",), as_good_as=("none", "interleave"), fastest_of=("interleave",))
    assert skipped_claims(scenario(two), {"vmplace": seen({}), "none": seen({})}) == {"interleave": 2}


@pytest.mark.parametrize("lar", [0.99, 0.05])
@pytest.mark.parametrize("busy", ["vmplace", "none"])
def test_a_comparison_is_undecided_both_ways_if_either_side_lacked_the_machine(busy: str, lar: float):
    results = {"vmplace": seen({}, lar=lar), "none": seen({}, lar=0.1)}
    results[busy] = msgspec.structs.replace(results[busy], machine_share={"acts": 0.4})
    found = verdict(scenario(RIVAL), results)  # type: ignore[arg-type]
    assert found.failed == () and found.too_slow and f"under {busy}" in found.too_slow


def test_a_claim_about_one_manager_is_judged_though_a_rival_lacked_the_machine():
    results = {"vmplace": seen({}, lar=0.05), "none": seen({"acts": 0.4}, lar=0.05)}
    found = verdict(scenario(CLAIM, RIVAL), results)  # type: ignore[arg-type]
    assert [sentence.split(",")[0] for sentence in found.failed] == ["vmplace: web: LAR after is 0.050"]
    assert [sentence.split(",")[1] for sentence in found.undecided] == [" none reached 0.050"]


def test_all_is_judged_on_a_free_machine():
    results = {"vmplace": seen({"acts": 0.7}), "none": seen({}, lar=0.1)}
    assert verdict(scenario(CLAIM, RIVAL), results).too_slow is None  # type: ignore[arg-type]
    results["vmplace"] = seen({"acts": 0.7}, lar=0.3)
    assert len(verdict(scenario(CLAIM, RIVAL), results).failed) == 2  # type: ignore[arg-type]


def test_memory_that_is_lost_is_lost_on_any_machine():
    found = verdict(scenario(CLAIM), {"vmplace": seen({"acts": 0.2}, lar=0.5, intact=False)})
    assert found.failed == (LOST,) and found.too_slow and "intact" not in found.too_slow


def test_the_steps_of_each_kind_of_claim_are_known():
    about = {"managers", "guests", "compare", "tolerance"}
    assert set(STEPS_OF) | set(COMPARISONS) | about == set(Expectation.__struct_fields__)
