"""What do ``show``, ``why`` and ``policy`` tell of a guest?  Their JSON schemas are made from these types."""

from collections.abc import Mapping
from typing import Any

import msgspec

from vmplace.agent.heat_strip import HeatStrip
from vmplace.agent.state import Decision, GuestStatus, PlanSummary
from vmplace.topology.guest import Cell, RamRange, Vcpu


class ShowView(msgspec.Struct, frozen=True):
    """``show``: all that is known of one guest; ``decisions``: the last ten.

    Whoever may only look gets offsets from the lowest address in place of ``hva``.
    """

    name: str
    status: GuestStatus
    windows: int
    vcpus: tuple[Vcpu, ...]
    cells: tuple[Cell, ...]
    ram: tuple[RamRange, ...]
    strips: tuple[HeatStrip, ...]
    decisions: tuple[Decision, ...]


class EffectView(msgspec.Struct, frozen=True):
    """What came of all that was done for a guest, so far.

    ``replica_bytes``: copies there are now; ``collapsed_bytes``: pages that lost theirs.  ``estimated_lar``
    is by pages, ``counted_lar`` by counters of the CPU.  ``cost_ratio``: cycles an instruction takes since
    its memory last moved, over those before; None where no trial is over.
    """

    moved_bytes: int
    refused_bytes: Mapping[str, int]
    replica_bytes: int
    collapsed_bytes: int
    vcpu_nids: tuple[int, ...]
    estimated_lar: float | None
    expected_lar: float | None
    cost_ratio: float | None
    counted_lar: float | None = None


class KeyView(msgspec.Struct, frozen=True):
    """A key of the policy: its value (None: no limit), and who said so."""

    value: Any
    said_by: str = msgspec.field(name="from")


class WhyView(msgspec.Struct, frozen=True):
    """``why``: what is planned for one guest, and the decisions kept, newest last.

    ``problem``: why it is left alone, or None.  ``trial``: the last verdict on its moves, empty without any.
    ``effect``: what came of it all, None before its first window.  ``mode``: what may be done, and who said
    so; None while the policy is not known.
    """

    name: str
    problem: str | None
    notes: tuple[str, ...]
    plan: PlanSummary
    decisions: tuple[Decision, ...]
    trial: str
    effect: EffectView | None = None
    mode: KeyView | None = None


class PolicyKey(msgspec.Struct, frozen=True):
    """One key of a policy: what it wants, and what holds where nobody states it."""

    wanted: str
    default: str


class PolicyKeys(msgspec.Struct, frozen=True):
    """``policy explain`` without a guest: all keys."""

    keys: dict[str, PolicyKey]


class PolicyView(msgspec.Struct, frozen=True):
    """``policy explain GUEST``: what holds.

    ``allowed_nids``: what is left after numatune's limits; None: every node with memory.
    """

    name: str
    mode: str
    allowed_nids: tuple[int, ...] | None
    keys: dict[str, KeyView]
    problem: str | None
    notes: tuple[str, ...]
    waits_for: str | None


class XmlPolicy(msgspec.Struct, frozen=True):
    """``policy get``: what a guest's XML says, ``flavour`` the extra specs of Nova's flavour in it."""

    name: str
    keys: dict[str, str]
    flavour: dict[str, str]


class SetPolicy(msgspec.Struct, frozen=True):
    """``policy set``: what the XML says now, and ``where``: live, config or both.

    Of both, ``keys`` are the running one's; ``next_start_keys`` the other's, null where they are the same.
    """

    name: str
    where: str
    keys: dict[str, str]
    next_start_keys: dict[str, str] | None


class PolicyProblem(msgspec.Struct, frozen=True):
    """A mistake, with its place, and the cure."""

    message: str
    hint: str | None


class CheckedPolicy(msgspec.Struct, frozen=True):
    """``policy validate``: ``notes`` are no mistakes."""

    valid: bool
    problems: tuple[PolicyProblem, ...]
    notes: tuple[str, ...]


class RelaxedPolicy(msgspec.Struct, frozen=True):
    """``policy apply``: whether <numatune> changed, or would with ``--dry-run``."""

    name: str
    changed: bool
    dry_run: bool


class Installed(msgspec.Struct, frozen=True):
    """``install``: files that were written, and those that were there and stay as they are."""

    written: tuple[str, ...]
    kept: tuple[str, ...]


class Uninstalled(msgspec.Struct, frozen=True):
    """``uninstall``: what was undone, in words; files removed, and what is left.

    These are files that somebody changed, and folders of state that settings name.  ``notes``: a mistake in
    vmplace.toml, and the journal that was undone by all the same.
    """

    undone: tuple[str, ...]
    removed: tuple[str, ...]
    left: tuple[str, ...]
    notes: tuple[str, ...] = ()
