"""Why does the plan take back what it did to a guest, or leave what would pay for itself?"""

from vmplace.policy import guard
from vmplace.policy.affordable import Change
from vmplace.policy.host_view import GuestEvidence, HostView, NodeIndexes

UNDONE = "it lost time since pages were moved or copied, so they go back to where they were"
ALONE = "it lost time by an earlier change, so nothing is tried for a while"
NO_BUDGET = "moves would pay for themselves, but it may stake no more on them for now"
NO_ROOM = "moves would pay for themselves, but this plan has no room or budget for them"
WAITS = "its vCPUs are about to be tied to a node, and its memory follows them"


def held_back(
    view: HostView, change: Change, memory: guard.Memory, paid: NodeIndexes, places: NodeIndexes
) -> str:
    """Return why the guard has a guest's pages at ``places``; empty where it lets any change be.

    ``memory``: what it remembered of the guest before this plan.  ``paid``: the part of the change that its
    budget pays for.
    """
    guest = change.guest
    if _is_undone(view, guest, memory):
        return UNDONE if (places != guest.node).any() else ALONE
    if (places != guest.node).any() or not len(change.pages):
        return ""
    if view.now_ns < memory.alone_until_ns:
        return ALONE
    return NO_BUDGET if (paid == guest.node).all() else NO_ROOM


def _is_undone(view: HostView, guest: GuestEvidence, memory: guard.Memory) -> bool:
    rise = guard.measured_rise(memory, guest)
    is_misled = rise is not None and rise > guard.MEASURED_RISE
    return is_misled or guard.goes_back(memory, view.now_ns, guest.slowdown_bound)
