"""Who may only look sees all but what helps to attack a guest."""

import logging
import re
from dataclasses import replace

import msgspec
import pytest

from tests.unit.agent.agent_world import HVA, World, guest
from vmplace.agent.discovered import Discovered
from vmplace.agent.orders import Order
from vmplace.errors import VmplaceError
from vmplace.interfaces.agent_command import _PriorityFormatter
from vmplace.interfaces.answers import AgentAnswers
from vmplace.interfaces.control import Peer
from vmplace.interfaces.protocol import Request, Response, Size
from vmplace.interfaces.tables import print_plan
from vmplace.topology.numad import Numad, numad_note


@pytest.mark.parametrize(("uid", "hva"), [(0, HVA), (1000, 0)])
def test_addresses_of_a_guests_memory_are_for_root(uid: int, hva: int):
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    reported = AgentAnswers(agent)(Peer(1, uid, uid), Request("show", "db1"))
    assert isinstance(reported, Response)
    assert [one["hva"] for key in ("ram", "strips") for one in reported.data[key]] == [hva, hva]


def test_a_line_of_the_log_stays_a_line_and_moves_no_cursor():
    record = logging.LogRecord(
        "x", logging.INFO, "", 0, "guest=\x1b]0;pwned\x07\r\x85\u2028 ok\nnext", (), None
    )
    reported = _PriorityFormatter().format(record)
    assert reported == "<6>guest=\\x1b]0;pwned\\x07\\r\\x85\\u2028 ok\n<6>next"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("undo", "db1"), "undo db1"),
        (Request("apply", "db 1; id"), "apply 'db 1; id'"),
        (Request("pause"), "pause"),
        (Request("make-room", size=Size(4, 8192 << 20)), "fit --make-room 4:8192"),
        (Request("make-room"), "fit --make-room VCPUS:MIB"),
    ],
)
def test_an_order_that_is_refused_is_given_by_root_with_the_same_words(request_: Request, words: str):
    """Without the guest, root would order it for all of them."""
    reported = AgentAnswers(World([guest("db1")]).agent())(Peer(1, 1000, 1000), request_)
    assert isinstance(reported, Response) and reported.kind == "denied"
    assert reported.hint == f"run `sudo vmplace {words}`"


def test_an_order_without_a_size_names_the_command_that_has_one():
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    with pytest.raises(VmplaceError, match="make-room needs a size") as raised:
        AgentAnswers(agent)(Peer(1, 0, 0), Request("make-room"))
    assert raised.value.hint == "vmplace fit --make-room VCPUS:MIB"


@pytest.mark.parametrize(("name", "times"), [("db1", 1), ("db", 0)])
def test_why_tells_of_a_numad_that_may_move_the_guest(name: str, times: int):
    large = [replace(one, ram=(replace(one.ram[0], npages=1 << 18),)) for one in (guest("web"), guest("db1"))]
    note = numad_note(Numad(12), large)
    world = World([guest(name)])
    world.guests = lambda: Discovered(tuple(world.running), (note or "",))  # type: ignore[method-assign]
    agent = world.agent()
    agent.run(windows=1)
    assert note in agent.status.notes
    assert AgentAnswers(agent).why(name).notes.count(note or "") == times


def test_why_names_no_mode_of_a_guest_whose_policy_has_a_problem():
    world = World([guest("db1")])
    agent = world.agent()
    agent.run(windows=1)
    answers, tracked = AgentAnswers(agent), agent.roster.get("db1")
    assert tracked is not None and tracked.decided is not None and answers.why("db1").mode is not None
    tracked.decided = replace(tracked.decided, problem="mode: no such word")
    assert answers.why("db1").mode is None


@pytest.mark.parametrize(
    ("whose", "words"), [("db1", "it is held, .*resume db1"), (None, "all .* are paused")]
)
def test_a_pause_is_among_what_keeps_a_guest_where_it_is(whose: str | None, words: str):
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    answers = AgentAnswers(agent)
    shown = [answers.why("db1").notes, answers.plan("db1").stays, answers.show("db1").status.reasons]
    assert not any(re.search(words, str(one)) for one in shown)
    agent.inbox.submit(Order("pause", whose))
    agent.state.commands.serve()
    agent.run(windows=1)
    shown = [answers.why("db1").notes, answers.plan("db1").stays, answers.show("db1").status.reasons]
    assert [len(re.findall(words, str(one))) for one in shown] == [1, 1, 1]


def test_the_plan_of_all_guests_says_once_that_all_are_paused(capsys: pytest.CaptureFixture[str]):
    agent = World([guest("db1"), guest("web")]).agent()
    agent.run(windows=1)
    printed = []
    for order in ("pause", "resume"):
        agent.inbox.submit(Order(order, None))
        agent.state.commands.serve()
        agent.run(windows=1)
        print_plan(msgspec.to_builtins(AgentAnswers(agent).plan(None), str_keys=True))
        printed.append(capsys.readouterr().out.count("all guests are paused"))
    assert printed == [1, 0]
