"""Undo, and restore kernel settings, while no agent runs."""

from collections.abc import Callable, Iterable
from pathlib import Path

from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import PROC
from vmplace.actuation.journal import Journal
from vmplace.actuation.ownership import restore_sysctl
from vmplace.actuation.undo import Progress, UndoResult, undo
from vmplace.agent.config_sections import Config
from vmplace.agent.host_calls import HostCalls, UndoAllowance
from vmplace.agent.orders import UnknownGuestError
from vmplace.errors import JournalDeniedError, JournalError, JournalInUseError, VmplaceError, only_root_may
from vmplace.sampling.damon_admin import DamonAdmin

DYING_S = 15.0
"""An agent that was killed lets go of its lock once the kernel has freed its memory: 0.2 s per GiB."""


def undo_without_agent(
    config: Config,
    guest: str | None,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress = lambda guest, done, total: None,
    calls: HostCalls | None = None,
) -> UndoResult:
    """Undo what the journal holds, within the budget of moves; raises JournalError if an agent runs.

    Once ``stop()``, or when this process is killed, the rest is in the journal for the next undo.  Raises
    UnknownGuestError for a guest that the journal does not know: nobody else knows names now.
    """
    if not _is_there(config.journal_path):
        _check_known(guest, ())
        return UndoResult()
    calls = calls or HostCalls()
    with Journal.for_undo(config.journal_path, proc=calls.proc) as journal:
        known = [one.identity for one in journal.without_pages().guests.values()]
        _check_known(guest, (one.name for one in known))
        return undo(
            journal,
            calls.proc,
            guests=None if guest is None else [one for one in known if one.name == guest],
            kernel=calls.kernel,
            stop=stop,
            allowance=UndoAllowance(Budget(config.budget.mb_per_s * 1e6), calls, stop),
            room=calls.room_bytes,
            progress=progress,
            sleep=calls.sleep,
        )


def _is_there(path: Path) -> bool:
    """Tell whether there is a journal; raises JournalError for who may not look."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as err:
        reported = f"the journal {path} cannot be read: {err.strerror}"
        if only_root_may(err):
            raise JournalDeniedError(reported, hint="run it as root") from err
        raise JournalError(reported, hint=f"look at {path.parent}") from err
    return True


def _check_known(guest: str | None, names: Iterable[str]) -> None:
    known = sorted(names)
    if guest is not None and guest not in known:
        raise UnknownGuestError(guest, tuple(known))


def give_back_without_agent(
    config: Config, proc: Path = PROC, sysfs: Path = Path("/sys")
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the kernel what a killed agent had taken of it; no guest is touched.

    Returns what was done and what failed, in words: one that fails keeps nothing else from being given back.
    Raises JournalInUseError if an agent runs, and does not end within DYING_S, JournalDeniedError for who is
    not root.
    """
    reported: list[str] = []
    failures: list[str] = []
    try:
        _give_sysctls_back(config.journal_path, proc, reported, failures)
    except (JournalDeniedError, JournalInUseError):
        raise
    except VmplaceError as err:
        failures.append(f"{err} ({err.hint})" if err.hint else str(err))
    try:
        if DamonAdmin.give_back(sysfs, Path(config.socket).parent):
            reported.append("DAMON watches nothing any more")
    except (OSError, VmplaceError, ValueError) as err:
        failures.append(f"DAMON cannot be given back: {err}")
    return tuple(reported), tuple(failures)


def _give_sysctls_back(path: Path, proc: Path, reported: list[str], failures: list[str]) -> None:
    """Give back the sysctls that the journal holds; raises JournalError."""
    if not _is_there(path):
        return
    with Journal.for_undo(path, proc=proc, patience_s=DYING_S, any_namespace=True) as journal:
        for taken in journal.without_pages().sysctls.values():
            try:
                reported.append(restore_sysctl(journal, taken, proc))
            except VmplaceError as err:
                failures.append(str(err))
