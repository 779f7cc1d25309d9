"""What can go wrong, as a person reads it: one sentence, and a hint with the cure."""


class VmplaceError(Exception):
    """Root of all errors that vmplace raises on purpose.

    ``str(error)`` is one sentence for the user; ``hint`` says what to do about it, or is None.  ``code`` is
    for programs: that of a class never changes.
    """

    code = "failed"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            # For tracebacks alone: commands print the hint themselves.
            self.add_note(hint)


class UnsupportedHostError(VmplaceError):
    """The host lacks a facility; callers fall back to the next one."""

    code = "unsupported-host"


class GuestGoneError(VmplaceError):
    """The guest's process ended; callers forget the guest and go on."""

    code = "guest-gone"


class OutsideError(VmplaceError, ValueError):
    """Data from outside is malformed: too long, not of its form, or out of range (outside.py)."""

    code = "bad-input"


class ConfigError(VmplaceError):
    """A file written by a person is wrong; ``place`` is ``file:line:column``."""

    code = "bad-config"

    def __init__(self, message: str, *, place: str, hint: str | None = None) -> None:
        super().__init__(f"{place}: {message}", hint=hint)
        self.place = place


class RecordingError(VmplaceError):
    """A recording cannot be read: not one of ours, another version, damaged or cut short."""

    code = "bad-recording"


class JournalError(VmplaceError):
    """The journal cannot be read or written; nothing may be moved without it."""

    code = "journal"
