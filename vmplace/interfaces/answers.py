"""What does the agent answer to each command on the control socket?"""

import shlex
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import msgspec

from vmplace.agent.clock import Clock, HostClock
from vmplace.agent.decided import Decided
from vmplace.agent.heat_strip import HeatStrip, heat_strips
from vmplace.agent.loop import Agent
from vmplace.agent.orders import Answer as OrderAnswer
from vmplace.agent.orders import Order, UnknownGuestError, Verb
from vmplace.agent.report import PAUSED, held_back
from vmplace.agent.state import GuestStatus, PlanSummary, StaySummary
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.errors import VmplaceError
from vmplace.interfaces.control import Answer, Peer
from vmplace.interfaces.fit_answers import advice_answer, fit_answer, movable_names
from vmplace.interfaces.guest_views import EffectView, KeyView, PolicyView, ShowView, WhyView
from vmplace.interfaces.look_budget import LookBudget, OverBudgetError
from vmplace.interfaces.policy_view import policy_view
from vmplace.interfaces.protocol import ACTS, Request, Response, refusal
from vmplace.model.pages import GuestPages
from vmplace.policy.fit import Flavour
from vmplace.topology.numad import names_guest

SIZED = frozenset({"fit", "advise", "make-room"})


class AgentAnswers:
    """Look at the agent from the server's thread; hand orders to the loop."""

    def __init__(self, agent: Agent, clock: Clock | None = None) -> None:
        self._agent = agent
        self._budget = LookBudget(clock or HostClock())

    def __call__(self, peer: Peer, request: Request) -> Answer:
        """Return the answer, or the future of one for orders."""
        if request.command in ACTS:
            if peer.uid != 0:
                message = f"only root may {request.command}; you are uid {peer.uid}"
                return refusal("denied", message, f"run `sudo vmplace {_words(request)}`")
            return self._ordered(request)
        try:
            return Response(True, data=self._look(request, peer.user))
        except OverBudgetError as err:
            return refusal("busy", str(err), err.hint)
        except UnknownGuestError as err:
            return refusal("guest", str(err), err.hint)

    def _look(self, request: Request, uid: int) -> Any:
        if request.command == "status":
            return msgspec.to_builtins(self._agent.status, str_keys=True)
        if request.command == "plan":
            return msgspec.to_builtins(self.plan(request.guest), str_keys=True)
        if request.command in SIZED:
            return self._sized(request, uid)
        if request.guest is None:
            hint = f"vmplace {request.command} GUEST; vmplace status lists them"
            raise VmplaceError(f"{request.command} needs the name of a guest", hint=hint)
        if request.command in {"why", "policy"}:
            look = self.why if request.command == "why" else self.policy
            return msgspec.to_builtins(look(request.guest), str_keys=True)
        shown = msgspec.to_builtins(self.show(request.guest, uid), str_keys=True)
        return shown if uid == 0 else without_addresses(shown)

    def _sized(self, request: Request, uid: int) -> Any:
        """Return what is known of a guest that is to come; raises OverBudgetError."""
        agent, flavour = self._agent, _flavour(request)
        answer = fit_answer if request.command == "fit" else advice_answer
        return self._budget.answer(
            uid,
            self._state(),
            (request.command, flavour),
            lambda: msgspec.to_builtins(answer(agent, flavour), str_keys=True),
        )

    def _state(self) -> object:
        """Return what answers follow from that are kept."""
        return self._agent.host, self._agent.status.windows, movable_names(self._agent)

    def show(self, name: str, uid: int = 0) -> ShowView:
        """Return all that is known of one guest; raises OverBudgetError, UnknownGuestError."""
        guest = self._agent.roster.get(name)
        status = self._agent.status.guests.get(name)
        if guest is None or status is None:
            raise UnknownGuestError(name, self._agent.roster.names())
        topology = guest.topology
        return ShowView(
            name=name,
            status=replace(status, reasons=(*self._paused(), *status.reasons)),
            windows=guest.pages.windows if guest.pages else 0,
            vcpus=topology.vcpus,
            cells=topology.cells,
            ram=topology.ram,
            # The loop may age the heat meanwhile: a picture half a window old is as good.
            strips=self._strips(guest.pages, name, uid) if guest.pages else (),
            decisions=tuple(guest.decisions)[-10:],
        )

    def _paused(self) -> tuple[str, ...]:
        return (PAUSED,) if self._agent.status.paused else ()

    def _strips(self, pages: GuestPages, name: str, uid: int) -> tuple[HeatStrip, ...]:
        """Return pictures of a guest's memory: of a large one, this goes through millions of pages."""
        strips: tuple[HeatStrip, ...] = self._budget.answer(
            uid, self._state(), ("show", name), lambda: heat_strips(pages)
        )
        return strips

    def plan(self, name: str | None) -> PlanSummary:
        """Return the last plan, or one guest's part of it; raises UnknownGuestError."""
        plan = self._agent.last_plan
        if name is None:
            return replace(plan, notes=self._paused()).with_stays(_held_back(self._agent.roster))
        guest = self._agent.roster.get(name)
        if guest is None:
            raise UnknownGuestError(name, self._agent.roster.names())
        return plan.of(name).with_stays(_held_back([guest], paused=self._agent.status.paused))

    def why(self, name: str) -> WhyView:
        """Return the decisions kept of one guest, newest last."""
        guest = self._agent.roster.get(name)
        if guest is None:
            raise UnknownGuestError(name, self._agent.roster.names())
        return WhyView(
            name=name,
            problem=guest.problem,
            notes=(
                *held_back(guest, paused=self._agent.status.paused),
                *(guest.decided.notes if guest.decided else ()),
                *(note for note in self._agent.status.notes if names_guest(note, name)),
            ),
            plan=self._agent.last_plan.of(name),
            decisions=tuple(guest.decisions),
            trial=guest.trial.summary,
            effect=_effect(self._agent.status.guests.get(name)),
            mode=_mode(name, guest.decided),
        )

    def policy(self, name: str) -> PolicyView:
        """Return what holds for one guest, and who said so."""
        guest = self._agent.roster.get(name)
        if guest is None or guest.decided is None:
            raise UnknownGuestError(name, self._agent.roster.names())
        return policy_view(name, guest.decided, guest.waits_for)

    def _ordered(self, request: Request) -> "Future[Response]":
        flavour = _flavour(request) if request.command in SIZED else None
        order = Order(cast(Verb, request.command), request.guest, flavour)
        response: Future[Response] = Future()

        def on_done(done: "Future[OrderAnswer]") -> None:
            err = done.exception()
            if isinstance(err, UnknownGuestError):
                response.set_result(refusal("guest", str(err), err.hint))
            elif err is not None:
                response.set_exception(err)
            else:
                response.set_result(Response(True, data=done.result()))

        order.answer.add_done_callback(on_done)
        self._agent.inbox.submit(order)
        return response


def _held_back(guests: Iterable[TrackedGuest], *, paused: bool = False) -> tuple[StaySummary, ...]:
    """Return a line of a plan for whatever keeps it from these guests."""
    return tuple(StaySummary(one.name, reason) for one in guests for reason in held_back(one, paused=paused))


def _mode(name: str, decided: Decided | None) -> KeyView | None:
    """Return the mode and who said so; None for a guest whose policy has a problem: that says all."""
    if decided is None or decided.problem is not None:
        return None
    return policy_view(name, decided).keys["mode"]


def _effect(status: GuestStatus | None) -> EffectView | None:
    if status is None:
        return None
    return EffectView(**{name: getattr(status, name) for name in EffectView.__struct_fields__})


def _words(request: Request) -> str:
    """Return the words of the command line that ask the same."""
    if request.command == "make-room":
        size = request.size
        return f"fit --make-room {f'{size.vcpus}:{size.memory_bytes >> 20}' if size else 'VCPUS:MIB'}"
    return request.command if request.guest is None else f"{request.command} {shlex.quote(request.guest)}"


def _flavour(request: Request) -> Flavour:
    """Return the size that a request names; raises VmplaceError for one that names none."""
    if request.size is None:
        words = "fit --make-room" if request.command == "make-room" else request.command
        raise VmplaceError(f"{request.command} needs a size", hint=f"vmplace {words} VCPUS:MIB")
    return Flavour(request.size.vcpus, request.size.memory_bytes)


def without_addresses(shown: dict[str, Any]) -> dict[str, Any]:
    """Return what ``show`` tells with offsets from the lowest address in place of addresses.

    Where QEMU's memory lies is what address space randomisation hides from whoever may only look.
    """
    lowest = min((ram["hva"] for ram in shown["ram"]), default=0)
    moved = {key: [one | {"hva": one["hva"] - lowest} for one in shown[key]] for key in ("ram", "strips")}
    return shown | moved
