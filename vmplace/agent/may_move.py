"""May anything of a guest move now?"""

from vmplace.agent.loop_state import LoopState
from vmplace.policy.plan import Mode


def may_move(state: LoopState, name: str) -> bool:
    """Tell whether the guest's policy, root's orders and its trial let its memory move."""
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
    if guest.held or guest.waits_for or state.commands.paused or guest.settings.mode is not Mode.AUTO:
        return False
    return state.rooms.is_making or state.trials.may_move(guest, state.clock.monotonic())
