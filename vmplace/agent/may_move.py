"""May anything of a guest move now?"""

from vmplace.agent.loop_state import LoopState
from vmplace.policy.plan import Mode


def may_move(state: LoopState, name: str) -> bool:
    """Tell whether the guest's policy, root's orders and its trial let its memory move."""
    if not may_change(state, name):
        return False
    if state.commands.asked_to_move(name) or state.rooms.is_making:
        return True
    guest = state.roster.get(name)
    return guest is not None and state.trials.may_move(guest, state.clock.monotonic())


def may_undo(state: LoopState, name: str) -> bool:
    """Tell whether what moved for the guest may be undone now; not where root just asked to move it."""
    return may_change(state, name) and not state.commands.asked_to_move(name)


def may_change(state: LoopState, name: str) -> bool:
    """Tell whether the guest's policy and root's orders let anything of it be changed now."""
    guest = state.roster.get(name)
    if guest is None or guest.settings.mode is Mode.MANUAL or guest.is_migrating:
        return False
    if guest.is_awaited:
        # libvirt has yet to report its policy.  That may forbid moves even on root's order (mode manual).
        return False
    if state.parts.holds(guest.topology):
        return False
    if state.commands.asked_to_move(name):
        return True
    is_held = guest.held or guest.waits_for is not None or state.commands.paused
    return not is_held and guest.settings.mode is Mode.AUTO
