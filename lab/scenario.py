"""What is tried, on which host, with which guests, and what must come out?

A scenario is a TOML file (lab/scenarios holds those that come with vmplace); these are its types.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lab.workload import Workload, check_workload
from vmplace.errors import ConfigError, OutsideError, VmplaceError
from vmplace.outside import TOML_CURE, parse_toml

SCENARIOS = Path(__file__).parent / "scenarios"
ManagerName = Literal["none", "numad", "numad-advice", "kernel", "interleave", "vmplace-stock", "vmplace"]
Backing = Literal["anonymous", "memfd", "hugetlb", "locked"]
Positive = Annotated[int, msgspec.Meta(gt=0, le=1 << 20)]
VcpuIds = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=1023)], ...], msgspec.Meta(max_length=256)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
GuestName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9-]{0,30}$")]


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vNUMA cell: which of the guest's vCPUs, and how much memory."""

    vcpus: VcpuIds
    memory_mib: Positive


class Guest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One guest.  ``start_nids[i]`` is the node vCPU i is pinned to while memory is first touched;
    ``nids[i]`` the one the operator pins it to afterwards (none given: it stays).  ``floats``: afterwards all
    may run anywhere, and the host's scheduler says where.

    No memory policy is set: kernel balancing leaves memory with an explicit one alone, and a start that
    shuts one manager out is no comparison.

    ``cpu_percent`` of a CPU is what each vCPU may use, by the host's scheduler: a load that does not
    depend on how fast code is emulated.  Without ``huge_pages`` the host backs the guest by 4 KiB pages
    alone, which KVM replicates one by one.
    """

    name: GuestName
    start_nids: VcpuIds
    memory_mib: Positive
    workload: Workload
    nids: VcpuIds = ()
    floats: bool = False
    backing: Backing = "anonymous"
    huge_pages: bool = True
    cpu_percent: Positive | None = None
    cells: tuple[Cell, ...] = ()

    @property
    def vcpu_nids(self) -> tuple[int, ...]:
        """Return the node of each vCPU when the measurement begins."""
        return self.nids or self.start_nids


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long, in seconds of the emulated host's own clock.

    Windows are so many seconds of the guests' declared work (scenario_meter.py). A manager has come to
    rest when no page moved for ``quiet_s``, but it gets at least ``least_s`` and at most ``most_s``
    (scenario_rest.py says when more).
    ``cost_s`` is the length of each turn in which its cost is measured; 0: it is not. With ``dilation`` a
    last window of ``emulated_s`` is in emulated time, so many times slower than real time, and the guests
    work as fast as they can in it: it tells their run times.
    """

    settle_s: Seconds = 2.0
    before_s: Seconds = 4.0
    least_s: Seconds = 8.0
    quiet_s: Seconds = 5.0
    most_s: Seconds = 45.0
    after_s: Seconds = 4.0
    dilation: Annotated[float, msgspec.Meta(ge=1)] | None = None
    emulated_s: Seconds = 4.0
    cost_s: Seconds = 0.0


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What must come out, for every pair of ``managers`` and ``guests`` (none given: all guests).

    ``as_good_as`` compares by ``compare``, within ``tolerance``.  A guest that touches all its memory from
    all nodes alike is compared by MC imbalance: its LAR grows only where one node serves more than others.
    ``run_time`` is the emulated one, and its tolerance a share of the rival's.  ``fastest_of`` compares the
    mean over all guests with those managers', with the same tolerance.  ``forecast_within`` is how far the
    emulated run time, mean over all guests, may be from the simulator's forecast, as a share of it.  A
    negative tolerance asks for so much better.  ``declared_lines_within``: how far lines per touch may be
    from what follows from the declared pattern, as a share of that.
    """

    managers: tuple[ManagerName, ...]
    guests: tuple[GuestName, ...] = ()
    lar_before_max: float | None = None
    lar_after_min: float | None = None
    fetch_lar_before_max: float | None = None
    fetch_lar_after_min: float | None = None
    mc_imbalance_after_max: float | None = None
    host_mc_imbalance_after_max: float | None = None
    longest_move_call_ms_max: float | None = None
    cost_share_max: float | None = None
    declared_lines_within: float | None = None
    forecast_within: float | None = None
    intact: bool | None = None
    as_good_as: tuple[ManagerName, ...] = ()
    fastest_of: tuple[ManagerName, ...] = ()
    compare: Literal["lar", "mc_imbalance", "host_mc_imbalance", "run_time"] = "lar"
    tolerance: float = 0.02


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole scenario.  Guest number i (from 1) in the list is the meter's guest id i.

    ``agent_config`` is the text of the vmplace agent's configuration file.
    """

    name: GuestName
    topology: str
    guests: Annotated[tuple[Guest, ...], msgspec.Meta(max_length=256)]
    description: str = ""
    seed: int = 1
    managers: tuple[ManagerName, ...] = ("none", "vmplace")
    time: Timing = Timing()
    expect: tuple[Expectation, ...] = ()
    agent_config: str = ""

    def guest_id(self, name: str) -> int:
        """Return the meter's id of a guest; raises VmplaceError for a name that is not in the scenario."""
        for guest_id, guest in enumerate(self.guests, start=1):
            if guest.name == name:
                return guest_id
        known = ", ".join(guest.name for guest in self.guests)
        raise VmplaceError(f"scenario {self.name} has no guest '{name}'", hint=f"its guests: {known}")


def read_scenario(name_or_path: str) -> Scenario:
    """Return the scenario of a file, or of a name among those that come with vmplace."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = SCENARIOS / f"{name_or_path}.toml"
    try:
        text = path.read_text()
    except FileNotFoundError as err:
        known = ", ".join(sorted(known.stem for known in SCENARIOS.glob("*.toml")))
        raise VmplaceError(f"no scenario '{name_or_path}'", hint=f"a .toml file, or one of: {known}") from err
    return parse_scenario(text, source=str(path))


def parse_scenario(text: str, *, source: str) -> Scenario:
    """Return the scenario; raises ConfigError, which names the key, for anything it may not say."""
    try:
        scenario = msgspec.convert(parse_toml(text), Scenario)
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"not TOML: {err}", place=source, hint=TOML_CURE) from err
    except OutsideError as err:
        raise ConfigError(str(err), place=source, hint=TOML_CURE) from err
    except msgspec.ValidationError as err:
        what, _, where = str(err).partition(" - at ")
        place = f"{source}: {where.strip('`') or '$'}"
        raise ConfigError(what, place=place, hint="docs/scenarios.md has an example") from err
    _check(scenario, source)
    return scenario


def claims_of(expectation: Expectation) -> list[str]:
    """Return the keys by which something must come out."""
    silent = ("managers", "guests", "compare", "tolerance")
    keys = [name for name in expectation.__struct_fields__ if name not in silent]
    return [name for name in keys if getattr(expectation, name) not in (None, ())]


def check_on_nodes(scenario: Scenario, cpus: Mapping[int, tuple[int, ...]]) -> None:
    """Raise VmplaceError where a vCPU is to run on a node that has no CPU in the topology (nid -> CPUs)."""
    for guest in scenario.guests:
        for nid in sorted({*guest.start_nids, *guest.nids}):
            if not cpus.get(nid):
                usable = ", ".join(str(nid) for nid, ids in cpus.items() if ids)
                raise VmplaceError(
                    f"guest {guest.name} wants vCPUs on node {nid}, which has no CPU in {scenario.topology}",
                    hint=f"nodes with CPUs: {usable}",
                )


def _check(scenario: Scenario, source: str) -> None:
    names = [guest.name for guest in scenario.guests]
    for name in names:
        if names.count(name) > 1:
            place = f"{source}: $.guests"
            raise ConfigError(f"two guests are called '{name}'", place=place, hint="rename one of them")
    for i, guest in enumerate(scenario.guests):
        try:
            _check_guest(guest)
        except VmplaceError as err:
            place = f"{source}: $.guests[{i}] ({guest.name})"
            raise ConfigError(str(err), place=place, hint=err.hint) from err
    for i, expectation in enumerate(scenario.expect):
        if not claims_of(expectation):
            place, hint = f"{source}: $.expect[{i}]", "name what must come out, such as intact = true"
            raise ConfigError("it claims nothing", place=place, hint=hint)
        for name in set(expectation.guests) - set(names):
            place, hint = f"{source}: $.expect[{i}].guests", f"guests: {', '.join(names)}"
            raise ConfigError(f"there is no guest '{name}'", place=place, hint=hint)


def _check_guest(guest: Guest) -> None:
    vcpus = len(guest.start_nids)
    if not vcpus:
        raise VmplaceError("start_nids is empty", hint="one nid for each vCPU")
    if guest.nids and len(guest.nids) != vcpus:
        raise VmplaceError(f"nids has {len(guest.nids)} entries, start_nids {vcpus}", hint="one per vCPU")
    if guest.nids and guest.floats:
        raise VmplaceError("nids pins vCPUs that float", hint="leave nids or floats out")
    check_workload(guest.workload, vcpus=vcpus, memory_mib=guest.memory_mib)
    if not guest.cells:
        return
    if sorted(vcpu for cell in guest.cells for vcpu in cell.vcpus) != list(range(vcpus)):
        raise VmplaceError(
            "cells do not hold each vCPU exactly once",
            hint=f"distribute vCPUs 0 to {vcpus - 1} over the cells",
        )
    if sum(cell.memory_mib for cell in guest.cells) != guest.memory_mib:
        raise VmplaceError(
            "the cells' memory_mib do not add up to the guest's",
            hint=f"they must make {guest.memory_mib} MiB",
        )
