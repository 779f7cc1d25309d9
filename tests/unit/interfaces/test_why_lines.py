"""What ``why`` and ``plan`` print of what was weighed, and of what came of it."""

from dataclasses import replace as replace_fields
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.interfaces.test_golden import hold
from tests.unit.policy.test_policy_auto import after, busy
from tests.unit.policy.views import bits
from vmplace.actuation.result import MoveOutcome, ReplicaOutcome
from vmplace.agent.state import Decision, VcpuSummary, summary
from vmplace.interfaces.guest_views import EffectView, KeyView, WhyView
from vmplace.interfaces.tables import print_plan
from vmplace.interfaces.why_lines import (
    NO_TRIAL,
    NOT_WEIGHED,
    decided_lines,
    effect_lines,
    effect_of,
    expectation,
    price_of,
    vcpus_expectation,
)
from vmplace.interfaces.why_tables import print_decisions
from vmplace.policy.options import GATHER, Option, Weighing

MIB = 1 << 20
WINDOW = bits({2: range(200, 300), 0: range(100)}, range(200, 300))
TIED = Option("vcpus", 0, 0, 0, 0.5e6, 3e6, 0.125, nid=1)
EFFECT = EffectView(3 * MIB, {"busy": MIB, "budget": 0}, 2 * MIB, MIB, (0, 1), 0.5, 0.75, 0.9, 0.25)


def option(share: float | None = 0.125, *, moved: int = MIB) -> Option:
    return Option("planned", moved, 0, 0, 3.2e6, 7.5e8, share)


def plain(value: object) -> dict[str, object]:
    """Return what a client gets."""
    found: dict[str, object] = msgspec.to_builtins(value, str_keys=True)
    return found


def why_view() -> WhyView:
    """Return what is shown of a guest for which all was done that can be."""
    plan = summary(after(busy(*[WINDOW] * 4)))
    (weighing,) = plan.weighings.values()
    tied = VcpuSummary("g", (0, 1), (0, 1), 1, "they fit", Weighing("g", TIED, ahead_s=3.0))
    decision = Decision(
        7, 0.0, plan.size_bytes, plan.reasons(weighing.guest), MoveOutcome(weighing.guest, moved=90, busy=10),
        weighing, ReplicaOutcome("g", replicated=512, left=256), MIB, (tied,), 0.75,
    )  # fmt: skip
    plan = replace_fields(plan, vcpu_moves=(tied,))
    return WhyView(weighing.guest, None, (), plan, (decision,), "", EFFECT)


@pytest.mark.parametrize("columns", [80, 300])
def test_it_reads_as_it_was_looked_through(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TZ", "UTC")
    view = plain(why_view())
    print_decisions(view)
    print_plan(view["plan"])  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    if columns == 80:
        assert max(map(len, printed.splitlines())) <= 80
        hold("why-weighed", printed.replace(printed.splitlines()[1][:8], "HH:MM:SS"))
    gain = "expected: saves 12.5% of its time for 0.5 ms"
    assert " ".join(printed.split()).count(gain) == 2
    for line in ("vCPUs 0, 1 run on node 1 now", "2.0 MiB got some", "left 256", "busy 10", "LAR 0.75"):
        assert line in " ".join(printed.split())


def test_it_says_who_let_the_guest_be_placed(capsys: pytest.CaptureFixture[str]) -> None:
    print_decisions(plain(replace(why_view(), mode=KeyView("auto", "flavour [m1] (Nova extra specs)"))))
    assert "mode auto, said by flavour [m1] (Nova extra specs)" in capsys.readouterr().out


def test_an_answer_of_an_agent_from_before_is_printed_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = {"unix_s": 0.0, "window": 1, "planned_bytes": 0, "outcome": None, "reasons": ["as it is"]}
    print_decisions({"decisions": [old], "trial": "", "problem": None, "notes": [], "plan": {}})
    assert "- as it is" in capsys.readouterr().out


def test_where_no_share_is_known_time_is_printed_and_what_is_missing() -> None:
    known, unknown = Weighing("g", option()), Weighing("g", option(None), unknown="the share: nobody counts")
    assert expectation(plain(known)) == "expected: saves 12.5% of its time for 3.2 ms, 1.0 MiB moved"
    assert expectation(plain(unknown)) == (
        "expected: saves 750.0 ms for 3.2 ms, 1.0 MiB moved; not known: the share: nobody counts"
    )
    assert expectation(plain(Weighing("g", unknown="all of it"))) == "expected: not known: all of it"


def test_a_loss_is_no_saving_and_what_changes_nothing_costs_nothing() -> None:
    assert effect_of(plain(replace(option(-0.02), saved_ns=-1e6))) == "adds 2.0%"
    assert effect_of(plain(option(0.0001))) == "saves nothing"
    assert price_of(plain(option(moved=0))) == "nothing"


def test_vcpus_of_an_agent_from_before_are_printed_without_figures() -> None:
    assert vcpus_expectation({"vcpu_ids": [0], "unknown": "of before"}) == NOT_WEIGHED


def test_what_no_trial_measured_is_said_to_be_unknown() -> None:
    lines = list(effect_lines(plain(EFFECT)))
    assert "LAR by pages: 0.50; the last plan that moved something expected: 0.75" in lines
    assert "LAR by counters: 0.25" in lines
    assert list(effect_lines(plain(EFFECT)))[-1] == "cycles an instruction takes, after / before: 0.90"
    assert list(effect_lines(plain(EFFECT) | {"cost_ratio": None}))[-1] == NO_TRIAL


def test_the_schema_has_what_is_printed() -> None:
    schema = msgspec.json.decode(Path("vmplace/interfaces/schemas/why.json").read_bytes())["$defs"]
    assert {"Weighing", "Option", "EffectView", "ReplicaOutcome"} <= set(schema)
    assert {"weighing", "copies", "dropped_bytes", "vcpus"} <= set(schema["Decision"]["properties"])


def test_vcpus_that_get_their_cpus_back_need_no_expectation() -> None:
    loose = VcpuSummary("g", (0, 1), (1,), None, "an instruction takes 5% longer")
    decision = msgspec.to_builtins(Decision(3, 0.0, 0, (loose.reason,), vcpus=(loose,)))
    lines = [*decided_lines(decision)]
    assert lines == ["- an instruction takes 5% longer", "- vCPUs 0, 1 may run where they did before"]


def test_vcpus_that_are_gathered_are_weighed_with_the_memory_that_follows() -> None:
    option = Option(GATHER, 0, 0, 0, 2e6, 3e8, 0.1, nid=1)
    move = msgspec.to_builtins(VcpuSummary("g", (0,), (0, 1), 1, "", Weighing("g", option, ahead_s=3.0)))
    assert vcpus_expectation(move) == (
        "with the memory that follows, expected: saves 10.0% of its time for 2.0 ms"
    )
