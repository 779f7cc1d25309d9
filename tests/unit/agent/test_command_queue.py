"""Orders: whoever gives one is answered, and finds done what the answer says."""

from collections.abc import Callable

import pytest

from tests.unit.agent.agent_world import World, guest
from vmplace.agent.command_queue import CommandQueue
from vmplace.agent.config import LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.orders import Inbox, Order
from vmplace.agent.roster import Roster
from vmplace.errors import VmplaceError


def commands(changed: Callable[[], None] = lambda: None, *names: str) -> tuple[CommandQueue, Inbox, Roster]:
    """Return a commands, its inbox, and the guests of these names."""
    world = World([])
    roster, inbox = Roster(LoadedConfig(Config(), ())), Inbox(world.wakeup)
    roster.update([guest(name) for name in names], (0, 1))
    return CommandQueue(inbox, roster, world, changed), inbox, roster


def test_whoever_waits_when_the_agent_stops_is_answered():
    one, inbox, _ = commands()
    waiting, unread = Order("apply"), Order("undo")
    inbox.submit(waiting)
    one.serve()
    inbox.submit(unread)
    one.close()
    for order in (waiting, unread):
        with pytest.raises(VmplaceError, match="the agent stops"):
            order.answer.result(0)


@pytest.mark.parametrize("verb", ["pause", "resume", "undo"])
def test_a_change_is_reported_before_the_answer_is_given(verb: str):
    order, seen = Order(verb), []  # type: ignore[arg-type]
    one, inbox, _ = commands(lambda: seen.append((one.paused, order.answer.done())))
    inbox.submit(order)
    one.serve()
    assert seen == [(verb != "resume", False)] and order.answer.done()


def test_an_order_for_a_window_is_answered_once_by_the_next_report():
    one, inbox, _ = commands(lambda: None, "db1", "db2")
    order = Order("apply", "db1")
    inbox.submit(order)
    one.serve()
    assert one.waits_for_window and one.asked_to_move("db1") and not one.asked_to_move("db2")
    one.report(())
    assert order.answer.result(0) == ("nothing to move",)
    assert not one.waits_for_window and not one.asked_to_move("db1")


def test_resume_of_all_lets_go_of_guests_that_were_held_by_name():
    one, inbox, roster = commands(lambda: None, "db1", "db2")
    for order, held in ((Order("pause", "db1"), [True, False]), (Order("resume"), [False, False])):
        inbox.submit(order)
        one.serve()
        assert [tracked.held for tracked in roster] == held
