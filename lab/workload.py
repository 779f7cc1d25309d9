"""What does a guest of a scenario do with its memory?

The declared pattern, and its text form: the words that lab/payload/pattern.c reads from the
guest's kernel command line (there with the prefix ``vmp.``) or from its arguments.
"""

import re
from typing import Annotated, Literal

import msgspec

from vmplace.errors import VmplaceError

Order = Literal["sequential", "random", "zipf"]
COMMAND_LINE_BYTES = 2048
"""x86's COMMAND_LINE_SIZE: the kernel drops what is beyond."""

_RANGE = re.compile(r"([0-9]{1,9})\+([1-9][0-9]{0,8})")
_VCPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


class Touch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stream of touches: each of ``vcpus`` makes ``rate`` touches per ms to ``ranges``.

    ``vcpus`` is "N" or "N-M"; a range is "OFFSET+LENGTH" in MiB of the arena; ``write_percent`` of the
    touches write; ``stride_bytes`` is a multiple of 64; in random and zipf order ``burst`` touches in
    a row stay in one 4 KiB page; ``phase`` None means in every phase.  zipf makes the
    start of the ranges the hottest.
    """

    vcpus: str
    ranges: tuple[str, ...]
    rate: float | Literal["max"] = 20.0
    order: Order = "random"
    write_percent: int = 0
    stride_bytes: int = 64
    burst: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 1
    phase: int | None = None

    def vcpu_ids(self) -> range:
        """Return the vCPUs; raises VmplaceError for text that is neither N nor N-M."""
        match = _VCPUS.fullmatch(self.vcpus)
        if not match:
            raise VmplaceError(f"vcpus '{self.vcpus}' is not N or N-M", hint="as 0, or 0-3")
        return range(int(match[1]), int(match[2] or match[1]) + 1)

    def range_ends_mib(self) -> tuple[int, ...]:
        """Return where each range ends; raises VmplaceError for text that is not OFFSET+LENGTH."""
        matches = [(text, _RANGE.fullmatch(text)) for text in self.ranges]
        for text, match in matches:
            if not match:
                raise VmplaceError(f"range '{text}' is not OFFSET+LENGTH in MiB", hint='e.g. "0+64"')
        return tuple(int(match[1]) + int(match[2]) for _, match in matches if match)

    def word(self) -> str:
        """Return the payload's word for this stream."""
        fields = [f"vcpu:{self.vcpus}", *(f"range:{text}" for text in self.ranges)]
        fields += [f"order:{self.order}", f"rate:{self.rate}"]
        fields += [f"write:{self.write_percent}"] if self.write_percent else []
        fields += [f"stride:{self.stride_bytes}"] if self.stride_bytes != 64 else []
        fields += [f"burst:{self.burst}"] if self.burst != 1 else []
        fields += [f"phase:{self.phase}"] if self.phase is not None else []
        return "touch=" + ",".join(fields)


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that a guest's payload does.

    It fills ``arena_mib`` of its memory (None: all that its kernel leaves) with checkable content, touches
    it as declared, and verifies ``verify_kib_per_s`` of it all the time.  ``run`` is a program with
    arguments that runs beside it (stress-ng is in the guests' larger initramfs).  ``calls`` a ms and vCPU are
    made of random functions of a library of ``library_mib`` (payload/library.h): of its code, not its data.
    """

    arena_mib: int | None = None
    touch: tuple[Touch, ...] = ()
    verify_kib_per_s: int = 512
    tick_ms: int = 50
    huge_pages: bool = True
    phases_ms: tuple[int, ...] = ()
    repeat_phases: bool = False
    run: tuple[str, ...] = ()
    library_mib: int = 0
    calls: Annotated[int, msgspec.Meta(ge=0)] = 0

    def words(self, *, guest_id: int, seed: int, wait: bool = False) -> tuple[str, ...]:
        """Return the payload's words, without prefix, in a stable order.

        With ``wait`` it fills its memory, and touches it only after the command "go".
        """
        words = [f"guest={guest_id}", f"seed={seed}", f"arena={self.arena_mib or 'max'}"]
        words += [f"verify={self.verify_kib_per_s}", f"tick={self.tick_ms}", f"huge={self.huge_pages:d}"]
        words += ["phases=" + ",".join(map(str, self.phases_ms))] if self.phases_ms else []
        words += [f"library={self.library_mib}", f"calls={self.calls}"] if self.library_mib else []
        words += ["wait=1"] if wait else []
        words += ["repeat=1"] if self.repeat_phases else []
        words += [touch.word() for touch in self.touch]
        words += ["run=" + ",".join(self.run)] if self.run else []
        return tuple(words)


def check_workload(workload: Workload, *, vcpus: int, memory_mib: int) -> None:
    """Raise VmplaceError, with the cure, where the pattern does not fit the guest."""
    arena_mib = workload.arena_mib
    if workload.calls and not workload.library_mib:
        raise VmplaceError(f"{workload.calls} calls of no library", hint="add library_mib")
    if arena_mib is not None and arena_mib + workload.library_mib > memory_mib - 32:
        raise VmplaceError(
            f"an arena of {arena_mib} MiB does not fit a guest of {memory_mib} MiB",
            hint="leave at least 32 MiB to the guest's kernel",
        )
    for touch in workload.touch:
        if not touch.vcpu_ids() or max(touch.vcpu_ids()) >= vcpus:
            hint = f"name some of 0 to {vcpus - 1}"
            raise VmplaceError(f"vcpus '{touch.vcpus}' are not among the guest's {vcpus} vCPUs", hint=hint)
        if max(touch.range_ends_mib(), default=memory_mib + 1) > (arena_mib or memory_mib):
            hint = f"end them at {arena_mib or memory_mib} MiB at the latest"
            raise VmplaceError(f"ranges {list(touch.ranges)} are not within the arena", hint=hint)
        if touch.stride_bytes % 64 or touch.stride_bytes < 64:
            hint = "64 is a cache line; take it, or 128, 192, ..."
            raise VmplaceError(f"stride_bytes {touch.stride_bytes} is not a multiple of 64", hint=hint)
        if touch.phase is not None and touch.phase >= len(workload.phases_ms):
            raise VmplaceError(f"phase {touch.phase} has no duration", hint="add it to phases_ms")
    for word in workload.run:
        if not word or set(word) & set(', \t\n"'):
            raise VmplaceError(
                f"run: '{word}' must have no comma, quote or white space",
                hint="give each argument a word of its own",
            )
