"""What the lab can fail at."""

from pathlib import Path

from vmplace.errors import VmplaceError

RUN_AGAIN = "run it again: a nested guest hangs now and then under emulation"


class LabError(VmplaceError):
    """The lab cannot be built or booted, or a command in the emulated host failed."""

    exit_code = 6
    """Of the lab's commands: no verdict (0, 1), nor a machine that is too slow (5), nor one of vmplace's own
    (exit_codes.py)."""


class LabTimeoutError(LabError):
    """Something in the emulated host took longer than it may: it hangs, or this machine is too slow."""

    usual_hint = "end what else runs on this machine, and try again"


class LostTimersError(LabError):
    """The emulated host's Linux came up without the timers of some CPUs."""


class GoneError(LabError):
    """The emulator does not answer any more: it ended, or its machine hangs."""


class LabCommandError(LabError):
    """A command run for the lab ended with an error; its output is kept."""

    def __init__(self, what: str, *, returncode: int, output: str, log: Path | None = None) -> None:
        tail = "\n    ".join(output.strip().splitlines()[-8:])
        hint = f"full log: {log}" if log else None
        super().__init__(f"{what} ended with {returncode}:\n    {tail}", hint=hint)
        self.returncode = returncode
        self.output = output


class LostMemoryError(LabError):
    """A guest found memory that is not what it wrote."""


class BrokenManagersError(LabError):
    """No manager came to an end, and one of them broke: a claim that fails."""

    exit_code = 1


class TooSlowError(LabError):
    """This machine did not let the guests do their work: nothing can be said of who placed them."""

    exit_code = 5

    def __init__(self, why: str) -> None:
        super().__init__(
            f"this machine is too slow to judge: {why}",
            hint="end what else runs here, or wait for it, and try again",
        )
        self.why = why


class NothingJudgedError(TooSlowError):
    """The lab failed before a manager acted, under none, or as its emulator was killed: no manager is why."""

    def __init__(self, err: LabError) -> None:
        reported = f"nothing more is judged, as the lab failed, and no manager can be why: {err}"
        LabError.__init__(self, reported, hint=err.hint or RUN_AGAIN)
        self.why = str(err)
