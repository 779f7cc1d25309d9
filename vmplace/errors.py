"""What can go wrong, as a person reads it: one sentence, and a hint with the cure."""

import errno
import os
from collections.abc import Sequence
from typing import ClassVar

_READING = {
    errno.ENOENT: "name a file that exists",
    errno.EACCES: "name a file that you may read, or use sudo",
    errno.EPERM: "name a file that you may read, or use sudo",
    errno.EISDIR: "name a file in this folder",
}
_WRITING = {
    errno.ENOENT: "make its folder first, or name a file in another one",
    errno.ENOTDIR: "a part of its path is a file: name a file in a folder",
    errno.EISDIR: "name a file in this folder",
    errno.EACCES: "name a file in a folder that you may write to, or use sudo",
    errno.EPERM: "name a file in a folder that you may write to, or use sudo",
    errno.ENOSPC: "free space on its disk, or name a file on another",
    errno.EDQUOT: "free space on its disk, or name a file on another",
}


class VmplaceError(Exception):
    """Root of all errors that vmplace raises on purpose.

    ``str(error)`` is one sentence for the user; ``hint`` says what to do about it, or is None.  ``code`` is
    for programs: that of a class never changes.  ``usual_hint`` is for errors of a class with one cure.
    """

    code = "failed"
    usual_hint: ClassVar[str | None] = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint or self.usual_hint
        if self.hint:
            # For tracebacks alone: commands print the hint themselves.
            self.add_note(self.hint)


class WrongUsageError(VmplaceError):
    """A command line is wrong, and it takes more than its parser to see that."""

    code = "usage"
    exit_code = 2


class DeniedError(VmplaceError):
    """Only root may do that."""

    code = "denied"


class UnsupportedHostError(VmplaceError):
    """The host lacks a facility; callers fall back to the next one."""

    code = "unsupported-host"


class GuestGoneError(VmplaceError):
    """The guest's process ended; callers forget the guest and go on."""

    code = "guest-gone"
    usual_hint = "`vmplace status` lists the guests that run"


class OutsideError(VmplaceError, ValueError):
    """Data from outside is malformed: too long, not of its form, or out of range (outside.py)."""

    code = "bad-input"
    usual_hint = "if a person wrote it, correct it there; else report it with what `vmplace doctor` prints"


class ConfigError(VmplaceError):
    """What a person wrote is wrong; ``place`` is ``file:line:column``, empty for what stands in no file."""

    code = "bad-config"

    def __init__(self, message: str, *, place: str, hint: str | None = None) -> None:
        super().__init__(f"{place}: {message}" if place else message, hint=hint)
        self.place = place

    @property
    def mistakes(self) -> tuple["ConfigError", ...]:
        """Return what is wrong, one by one."""
        return (self,)


class ConfigMistakesError(ConfigError):
    """Several things that a person wrote into one file are wrong."""

    def __init__(self, mistakes: Sequence[ConfigError]) -> None:
        reported = "; ".join(f"{one} ({one.hint})" if one.hint else str(one) for one in mistakes)
        super().__init__(reported, place="", hint="`vmplace policy validate FILE` lists them one by one")
        self.place = mistakes[0].place
        self._mistakes = tuple(mistakes)

    @property
    def mistakes(self) -> tuple[ConfigError, ...]:
        """Return them in their order."""
        return self._mistakes


class RecordingError(VmplaceError):
    """A recording cannot be read: not one of ours, another version, damaged or cut short."""

    code = "bad-recording"


class JournalError(VmplaceError):
    """The journal cannot be read or written; nothing may be moved without it."""

    code = "journal"


class JournalDeniedError(JournalError, DeniedError):
    """Only root may read or write the journal."""

    code = "denied"


class JournalInUseError(JournalError):
    """Another vmplace has the journal: what that one took is its own to give back."""


def only_root_may(err: OSError) -> bool:
    """Tell whether the kernel refused a call to this user alone; root may be refused by a disk, too."""
    return err.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0


def cure_of_reading(err: Exception) -> str:
    """Return the hint for a file that a person named, and that cannot be read."""
    if isinstance(err, UnicodeError):
        return "save it as text in UTF-8"
    return _READING.get(getattr(err, "errno", None) or 0, "name another file, or copy it here anew")


def cure_of_writing(err: Exception) -> str:
    """Return the hint for a file that a person named, and that cannot be written."""
    return _WRITING.get(getattr(err, "errno", None) or 0, "name another file")
