"""Plan for all guests within a share of a CPU, and leave out guests for which the policy fails.

1. If the policy fails, it is asked for each guest alone.  Guests for which it fails are named and left out.
2. Decisions (plans, and the figures that people are shown) have a budget: a share of a CPU.  Unused time is
   saved, up to what the last decision took.  Until that much is saved, nothing new is decided.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

from vmplace.agent.clock import Clock
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.unneeded_copies import UnneededCopies
from vmplace.policy.vcpu_forecast import weighed_vcpus
from vmplace.policy.vcpu_ties import plan_vcpus, with_vcpus

Policy = Callable[[Snapshot], PlacementPlan]
Blame = Callable[[str, Exception], None]


def planned(policy: Policy, snapshot: Snapshot, blame: Blame, lone: UnneededCopies) -> PlacementPlan:
    """Return the plan; ``blame`` is called for guests that it is made without.

    ``lone``: what the last plan knew of guests on one node, and the next one is to know.
    Raises what the policy raises if it fails for all of them, or for none of them alone.
    """
    try:
        return _planned(policy, snapshot, lone)
    except Exception:
        # What the policy remembers is of plans that are carried out, not of these questions.
        sound = tuple(view for view in snapshot.guests if _is_planned(copy(policy), snapshot, view, blame))
        if len(sound) in (0, len(snapshot.guests)):
            raise
    return _planned(policy, replace(snapshot, guests=sound), lone)


def _planned(policy: Policy, snapshot: Snapshot, lone: UnneededCopies) -> PlacementPlan:
    vcpu_moves = plan_vcpus(snapshot)
    # Memory belongs where the vCPUs will be.
    after = with_vcpus(snapshot, vcpu_moves)
    plan = policy(after)
    return replace(
        plan,
        vcpu_moves=(*weighed_vcpus(snapshot, vcpu_moves), *plan.vcpu_moves),
        collapses=(*plan.collapses, *lone.drops(snapshot, after, plan.vcpu_moves)),
    )


def _is_planned(policy: Policy, snapshot: Snapshot, view: GuestView, blame: Blame) -> bool:
    try:
        _planned(policy, replace(snapshot, guests=(view,)), UnneededCopies())
    except Exception as err:
        blame(view.topology.name, err)
        return False
    return True


class CpuBudget:
    """CPU time for decisions: ``share`` of a CPU, in the long run; times in s and CPU ns of ``clock``."""

    def __init__(self, share: float, clock: Clock) -> None:
        self._share = share
        self._clock = clock
        self._saved_ns = self._price_ns = self._spent_ns = self._extra_ns = 0
        self._at_s = clock.monotonic()
        self.allows = True

    def begin(self, *, is_asked: bool) -> None:
        """Begin a window; ``allows`` then tells whether decisions can be paid for, or are asked for."""
        now_s = self._clock.monotonic()
        earned_ns = round((now_s - self._at_s) * 1e9 * self._share)
        self._at_s = now_s
        self._saved_ns = min(self._saved_ns, self._price_ns) + earned_ns
        self.allows = is_asked or self._saved_ns >= self._price_ns

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Charge what is done inside."""
        started_ns = self._clock.thread_cpu_ns()
        try:
            yield
        finally:
            self._spent_ns += self._clock.thread_cpu_ns() - started_ns

    def end(self) -> None:
        """End a window: what decisions took is their price from now on."""
        if self.allows:
            self._saved_ns, self._price_ns = self._saved_ns - self._spent_ns, self._spent_ns
        self._saved_ns -= self._extra_ns
        self._spent_ns = self._extra_ns = 0

    @contextmanager
    def charged_extra(self) -> Iterator[None]:
        """Charge what is done inside now and then, and is no part of the price of decisions."""
        started_ns = self._clock.thread_cpu_ns()
        try:
            yield
        finally:
            self._extra_ns += self._clock.thread_cpu_ns() - started_ns

    @property
    def note(self) -> str:
        """Return what is reported while the budget does not allow decisions."""
        cost_ms, wait_s = self._price_ns / 1e6, self._price_ns / 1e9 / self._share
        return (
            f"a decision takes {cost_ms:.0f} ms of CPU: one in {wait_s:.1f} s keeps within {self._share:.0%} "
            "of a CPU ([decisions] share)"
        )
