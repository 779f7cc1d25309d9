"""The policy of a guest: one model for vmplace.toml, for domain XML and for Nova's extra specs.

Every key is optional.  ``merged`` takes each key from the first place that states it, at last from the
defaults of ``GuestSettings``.  docs/policy-reference.md is generated from this model (policy_reference.py).
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from vmplace.policy.plan import GuestSettings, Mode
from vmplace.policy.schedule import FORM, parse_stretch

Nid = Annotated[int, msgspec.Meta(ge=0, le=1023)]
Nids = Annotated[tuple[Nid, ...], msgspec.Meta(min_length=1, max_length=1024)]
Technique = Literal["move", "interleave", "replicate", "gather", "vcpus"]
TECHNIQUES: tuple[Technique, ...] = ("move", "interleave", "replicate", "gather")


class GuestPolicy(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What one place states about a guest; None: that key is not stated."""

    mode: (
        Annotated[
            Literal["manual", "advise", "auto"],
            msgspec.Meta(description='"manual" (leave alone), "advise" (plan only) or "auto" (plan and act)'),
        ]
        | None
    ) = None
    priority: (
        Annotated[
            Literal["normal", "protected"],
            msgspec.Meta(description='"normal" or "protected" (the others give way)'),
        ]
        | None
    ) = None
    allowed_nids: (
        Annotated[
            Nids, msgspec.Meta(description="a list of nodes that may hold its memory", examples=[[0, 1]])
        ]
        | None
    ) = None
    preferred_nids: (
        Annotated[
            Nids,
            msgspec.Meta(
                description="a list of nodes that hold its memory as long as it has room there",
                examples=[[0]],
            ),
        ]
        | None
    ) = None
    techniques: (
        Annotated[
            tuple[Technique, ...],
            msgspec.Meta(
                min_length=1,
                max_length=5,
                description='a list of "move" (memory), "interleave" (shared memory), "replicate" (memory '
                'that is only read), "gather" and "vcpus" (both tie vCPUs that float to a node)',
            ),
        ]
        | None
    ) = None
    replica_mb: (
        Annotated[
            int,
            msgspec.Meta(
                ge=0, le=1 << 30, description="the MB (10^6 bytes) that all its copies may take, 0 = none"
            ),
        ]
        | None
    ) = None
    move_mb_per_s: (
        Annotated[
            int,
            msgspec.Meta(
                ge=1,
                le=100_000,
                description="the MB (10^6 bytes) of it moved per second, 1 to 100000, within [budget]",
            ),
        ]
        | None
    ) = None
    huge_pages: (
        Annotated[
            Literal["move", "leave"],
            msgspec.Meta(description='"move" (like small ones) or "leave" (neither moved nor copied)'),
        ]
        | None
    ) = None
    schedule: (
        Annotated[
            tuple[str, ...],
            msgspec.Meta(
                min_length=1,
                max_length=64,
                description=f"a list of times at which it may be changed, in the host's time: {FORM}",
            ),
        ]
        | None
    ) = None

    def stated(self) -> dict[str, object]:
        """Return the keys that are stated."""
        values = ((key, getattr(self, key)) for key in KEYS)
        return {key: value for key, value in values if value is not None}


NOTHING = GuestPolicy()
KEYS: tuple[str, ...] = GuestPolicy.__struct_fields__
GONE_KEYS = {"proximity": "policy auto decides how near to its users shared memory lies"}
"""Keys of earlier versions, and why they are not needed."""
DEFAULTS = GuestPolicy(mode="auto", priority="normal", techniques=TECHNIQUES, huge_pages="move")
"""What holds where nobody says anything; None = no limit."""


class ContradictionError(ValueError):
    """Two things that are said do not go together; ``key`` is where to mend it."""

    def __init__(self, key: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.key, self.hint = key, hint


def check(policy: GuestPolicy) -> None:
    """Raise ContradictionError for values that do not go together, or are not what they should be."""
    for text in policy.schedule or ():
        try:
            parse_stretch(text)
        except ValueError as err:
            raise ContradictionError(
                "schedule", f"schedule: {err}", f"schedule is a list of {FORM}"
            ) from None
    techniques = policy.techniques
    for needs in ("interleave", "gather"):
        if techniques and needs in techniques and "move" not in techniques:
            hint = f'add "move", or take "{needs}" out'
            raise ContradictionError("techniques", f'techniques: "{needs}" needs "move"', hint)
    preferred, allowed = set(policy.preferred_nids or ()), policy.allowed_nids
    if allowed is not None and (outside := sorted(preferred.difference(allowed))):
        nids = ", ".join(map(str, outside))
        hint = f"add {nids} to allowed_nids, or prefer others"
        raise ContradictionError("preferred_nids", f"preferred_nids {nids} are not among allowed_nids", hint)


def merged(policies: Sequence[GuestPolicy]) -> GuestPolicy:
    """Return, key by key, what the first says that says something; raises ContradictionError."""
    values: dict[str, object] = {}
    for policy in policies:
        values = policy.stated() | values
    whole = GuestPolicy(**values)  # type: ignore[arg-type]
    check(whole)
    return whole


def settings_of(policy: GuestPolicy) -> GuestSettings:
    """Return a checked policy as the loop and the policies read it."""
    whole = merged((policy, DEFAULTS))
    techniques = whole.techniques or ()
    return GuestSettings(
        Mode(whole.mode),
        _ordered(whole.allowed_nids),
        "vcpus" in techniques,
        whole.priority == "protected",
        moves="move" in techniques,
        interleaves="interleave" in techniques,
        replicates="replicate" in techniques,
        huge_pages=whole.huge_pages == "move",
        preferred_nids=_ordered(whole.preferred_nids),
        replica_bytes=None if whole.replica_mb is None else whole.replica_mb * 10**6,
        move_bytes_per_s=None if whole.move_mb_per_s is None else whole.move_mb_per_s * 1e6,
        schedule=tuple(parse_stretch(text) for text in whole.schedule or ()),
        gathers="gather" in techniques,
    )


def _ordered(nids: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return tuple(sorted(set(nids))) if nids else None
