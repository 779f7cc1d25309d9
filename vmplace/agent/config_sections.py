"""Which keys does vmplace.toml have, with which values and defaults?  Keys of guests: guest_policy.py."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from vmplace.agent.guest_policy import GuestPolicy
from vmplace.outside import MOST_ID

FilePath = Annotated[
    str, msgspec.Meta(min_length=2, max_length=4095, pattern=r"^/[^\x00]*$", description="an absolute path")
]
SocketPath = Annotated[
    str,
    msgspec.Meta(
        min_length=2,
        max_length=102,
        pattern=r"^/[^\x00]*$",
        description="an absolute path of at most 102 characters",
    ),
]
"""unix(7): 107 bytes, of which the prefix "root-" of root's own socket takes five."""


class BudgetSection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``[budget]``: what moving pages may cost at most."""

    mb_per_s: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="the MB (10^6 bytes) moved per second, 1 to 100000")
    ] = 256
    call_ms: Annotated[
        float,
        msgspec.Meta(ge=0.1, le=20, description="the longest wanted call in ms, from 0.1 up to 20"),
    ] = 20
    replica_ratio: Annotated[
        float,
        msgspec.Meta(ge=0, le=0.9, description="the share of a node's free memory for replicas, 0 to 0.9"),
    ] = 0.25


class TrialSection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``[trial]``: how it is judged whether moving helped a guest."""

    counters: Annotated[
        Literal["auto", "perf", "meter", "off"],
        msgspec.Meta(description='"auto", "perf" (of the CPU), "meter" (of an emulated host) or "off"'),
    ] = "auto"
    meter_guests: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=0, le=MOST_ID)]],
        msgspec.Meta(description="the meter's numbers of guests, such as { web = 1 }"),
    ] = {}


class ReadingsSection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``[readings]``: accessed bits that are read before a window ends, which tells how hot pages are."""

    first_ms: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=10_000, description="the ms to the first reading, 1 to 10000, or 0: read once a window"
        ),
    ] = 6
    share: Annotated[
        float, msgspec.Meta(ge=0, le=0.5, description="the share of a CPU that it may take, 0 to 0.5")
    ] = 0.02


class ClockSection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``[clock]``: how the guests' time passes, beside the host's clock."""

    scale: Annotated[
        float,
        msgspec.Meta(
            ge=1,
            le=1_000_000,
            description="seconds in which guests do what real ones do in one, 1 to 1000000",
        ),
    ] = 1


class DecisionsSection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``[decisions]``: what planning for all guests, and telling people of them, may cost."""

    share: Annotated[
        float, msgspec.Meta(ge=0.01, le=1, description="the share of a CPU that it may take, 0.01 to 1")
    ] = 0.25


class MigrationSection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``[migration]``: what a guest takes along to another host."""

    summary_s: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=86_400, description="the seconds between two summaries in domains' XML, or 0: none"
        ),
    ] = 300


class GuestSection(GuestPolicy, forbid_unknown_fields=True, frozen=True):
    """``[guests."PATTERN"]``: the operator's word on guests by name, and by who vouches for the name."""

    origin: Annotated[
        Literal["any", "libvirt", "kvm"],
        msgspec.Meta(description='"libvirt" (libvirt tells the name), "kvm" (the guest does) or "any"'),
    ] = "any"


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The global settings; ``guests`` and ``flavours`` are checked section by section (``GuestRule``)."""

    window_ms: Annotated[
        int, msgspec.Meta(ge=20, le=60_000, description="the length of a sampling window in ms, 20 to 60000")
    ] = 1000
    shortest_window_ms: Annotated[
        int,
        msgspec.Meta(
            ge=20,
            le=60_000,
            description="the ms that a window is cut down to where looks are cheap, 20 to 60000",
        ),
    ] = 250
    longest_rest_ms: (
        Annotated[
            int,
            msgspec.Meta(
                ge=0,
                le=600_000,
                description="the longest pause between windows in ms, up to 600000; absent: as looks cost",
            ),
        ]
        | None
    ) = None
    source: Annotated[str, msgspec.Meta(description='how pages are sampled; "auto" = the best there is')] = (
        "auto"
    )
    policy: Annotated[str, msgspec.Meta(description='what decides: "auto", or "interleave", a control')] = (
        "auto"
    )
    numa_balancing: Annotated[
        Literal["auto", "take", "leave"],
        msgspec.Meta(
            description='"take" (off while guests are managed), "leave" or "auto" (off where it harms)'
        ),
    ] = "auto"
    mover: Annotated[
        Literal["auto", "syscall"],
        msgspec.Meta(description='"auto" (by a patched KVM, where it can) or "syscall" (move_pages)'),
    ] = "auto"
    on_leftover: Annotated[
        Literal["report", "undo"],
        msgspec.Meta(description='after a killed agent: "report" what it moved, or "undo" it'),
    ] = "report"
    libvirt: Annotated[bool, msgspec.Meta(description="true or false: ask libvirt for guests")] = True
    state_dir: FilePath = "/var/lib/vmplace"
    journal: FilePath | None = None
    socket: SocketPath = "/run/vmplace/control.sock"
    budget: BudgetSection = BudgetSection()
    readings: ReadingsSection = ReadingsSection()
    decisions: DecisionsSection = DecisionsSection()
    clock: ClockSection = ClockSection()
    trial: TrialSection = TrialSection()
    migration: MigrationSection = MigrationSection()
    defaults: GuestPolicy = GuestPolicy()
    guests: Annotated[
        dict[str, Any], msgspec.Meta(description='a table of sections such as [guests."db*"]')
    ] = {}
    flavours: Annotated[
        dict[str, Any], msgspec.Meta(description='a table of sections such as [flavours."m1.*"]')
    ] = {}

    @property
    def journal_path(self) -> Path:
        """Return where the journal is kept: in the state directory, or as configured."""
        return Path(self.journal or f"{self.state_dir}/journal")

    @property
    def lock_path(self) -> Path:
        """Return the file that only one agent can hold."""
        return Path(self.state_dir, "agent.lock")

    @property
    def standing_orders_path(self) -> Path:
        """Return where the orders are kept that hold until `vmplace resume`."""
        return Path(self.state_dir, "standing-orders.json")
