"""Switch kernel NUMA balancing off while vmplace places guests, but where the kernel alone can place some.

If the source does not see nodes, vmplace cannot place a guest that runs on several of them.  Kernel NUMA
balancing can, as its hint faults see the node.  But its switch is one for the whole host (ownership.py), and
two placers can move the same pages to and fro.  So it stays on only if both want the same of every guest:
1. All vCPUs of a guest run on one node: its memory goes there, whoever moves it.
2. Or they run on several, and vmplace leaves its memory alone: no range belongs to one node (policy/home.py).
3. No policy limits nodes, moves or vCPUs, and no guest is held after an undo.
"""

from collections.abc import Sequence

from vmplace.agent.loop_state import LoopState
from vmplace.policy.home import allowed_nids, one_home
from vmplace.policy.plan import GuestView, Mode
from vmplace.policy.registry import AUTO
from vmplace.topology.guest import Movability
from vmplace.topology.host import HostTopology

LEFT_TO_KERNEL = (
    "kernel.numa_balancing stays as it is: {} run on several nodes, and the source does not see which of "
    "them touches a page; the kernel's hint faults do"
)


class BalancingSwitch:
    """Switches the kernel's balancing off while guests are managed, and gives it back otherwise."""

    def __init__(self, state: LoopState) -> None:
        self._state = state

    def own(self) -> None:
        """Take what must not interfere, as long as a guest is managed; give it back otherwise."""
        state = self._state
        managing = (
            any(guest.settings.mode is Mode.AUTO for guest in state.roster) and not state.commands.paused
        )
        state.left_to_kernel = frozenset()
        with state.notes.fenced("kernel NUMA balancing"):
            left = self._left_to_kernel() if managing else ()
            state.left_to_kernel = frozenset(left)
            if left:
                state.notes.add(LEFT_TO_KERNEL.format(", ".join(left)))
            state.notes.add(*state.parts.actuator.own(managing and not left))

    def _left_to_kernel(self) -> tuple[str, ...]:
        """Return the guests for which the kernel's balancing stays at work."""
        state = self._state
        is_known = state.parts.source.coverage.accessor_nid or state.parts.policy_name != AUTO
        if is_known or state.config.numa_balancing != "auto" or state.host is None:
            return ()
        # Memory that an order or an undo placed must stay; an order may move any guest.
        if state.commands.waits_for_window or any(guest.held for guest in state.roster):
            return ()
        return left_to_kernel(state.host, [guest.view for guest in state.roster])


def left_to_kernel(host: HostTopology, guests: Sequence[GuestView]) -> tuple[str, ...]:
    """Return the names of guests that kernel balancing alone places; none if it would undo what vmplace does.

    ``guests``: those whose source tells no nodes, with their settings.
    """
    placed = [guest for guest in guests if guest.settings.mode is Mode.AUTO]
    wide = [guest for guest in placed if _spans(host, guest)]
    if any(map(_has_limits, placed)) or any(_has_home(host, guest) for guest in wide):
        return ()
    return tuple(guest.topology.name for guest in wide)


def _has_limits(guest: GuestView) -> bool:
    said = guest.settings
    is_bound = said.allowed_nids is not None or said.preferred_nids is not None
    return is_bound or said.place_vcpus or not (said.moves and said.huge_pages)


def _has_home(host: HostTopology, guest: GuestView) -> bool:
    """Tell whether the guest's vCPUs alone say where some of its memory belongs: then vmplace moves that."""
    allowed = allowed_nids(host, guest)
    movable = (ram for ram in guest.topology.ram if ram.movability is Movability.MOVABLE)
    return bool(allowed) and any(one_home(host, guest, ram, allowed) for ram in movable)


def _spans(host: HostTopology, guest: GuestView) -> bool:
    cpus = tuple({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus})
    return len(host.nids_of_cpus(cpus)) > 1
