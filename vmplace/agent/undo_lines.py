"""What an undo did, in words."""

from vmplace.actuation.undo import GuestUndo, UndoResult
from vmplace.topology.guest import PAGE_BYTES


def undo_lines(result: UndoResult) -> tuple[str, ...]:
    """Return what an undo did, in words."""
    guests = tuple(_undone_line(guest) for guest in result.guests)
    ended = tuple(f"{name}: it ended, there is nothing left of it to undo" for name in result.ended)
    damage = tuple(f"in the journal, {part}" for part in result.damage)
    done = (*guests, *ended, *result.sysctls, *result.failures) or ("nothing to undo",)
    return *done, *damage


def _undone_line(guest: GuestUndo) -> str:
    stuck = "".join(f", {count} pages would not move ({reason})" for reason, count in guest.stuck.items())
    restored = guest.restored * PAGE_BYTES / 2**20
    vcpus = f", {guest.vcpus} vCPUs given their CPUs back" if guest.vcpus else ""
    if guest.offline_cpus:
        vcpus += f" without CPUs {', '.join(map(str, guest.offline_cpus))}, which are offline"
    others = (
        f", {guest.others_vcpus} vCPUs were given other CPUs by somebody else and keep these"
        if guest.others_vcpus
        else ""
    )
    moved_on = guest.others_pages * PAGE_BYTES / 2**20
    others += f", {moved_on:.1f} MiB were moved on by somebody else and stay" if moved_on else ""
    return f"{guest.guest}: {restored:.1f} MiB moved back{vcpus}{others}{stuck}"
