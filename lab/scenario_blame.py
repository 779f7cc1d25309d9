"""Who is why a step of a scenario failed: the manager, this machine, or somebody who ended the emulator?"""

from lab.errors import GoneError, LabError, LabTimeoutError, NothingJudgedError, TooSlowError
from lab.machine import LabHost
from lab.machine_share import FREE
from lab.scenario import ManagerName
from vmplace.errors import VmplaceError


def too_slow_for(err: LabTimeoutError, share: float) -> LabError:
    """Return the error itself, or, where others left little of the machine, that it was too slow."""
    return err if share >= FREE else TooSlowError(f"others used {1 - share:.0%} of it, and {err}")


def whose_doing(err: TooSlowError, manager: ManagerName, share: float) -> LabError:
    """Return the error itself, or, where others left a manager enough of the machine, that it is its doing.

    Without a manager guests could do their work on this machine, or it had not come this far.
    """
    if manager == "none" or share < FREE:
        return err
    return LabError(
        f"others left {share:.0%} of the machine, and under {manager} {err.why}",
        hint=f"see what {manager} did: a guest that it holds up does little work",
    )


def killed_for(err: VmplaceError, host: LabHost) -> NothingJudgedError | None:
    """Return that a signal ended the emulator, if that is why it does not answer; no manager is, then."""
    if (isinstance(err, GoneError) or not host.is_running()) and (killed := host.killed_by()):
        cure = f"dmesg tells whether memory ran out; else see the end of {host.emulator_log}"
        return NothingJudgedError(LabError(f"{killed} ended the emulator", hint=cure))
    return None
