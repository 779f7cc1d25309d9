"""What do ``sweep``, ``sweep-report`` and ``fleet-model`` print?  JSON schemas are made from these types."""

from typing import TypedDict

import msgspec

from vmplace.fleet.fleet_fit import FleetFlavour, SpareCapacityOverTime
from vmplace.fleet.fleet_model import FleetResult, FleetSetup


class Swept(msgspec.Struct, frozen=True):
    """``sweep``: rows in the file ``out``; ``skipped`` were there before, ``failed`` have no figures."""

    out: str
    rows: int
    skipped: int
    failed: int
    seconds: float


class GuestGain(TypedDict):
    """The policy that is best for one guest on one host; ``kind``: trace or recording."""

    kind: str
    recording: str
    guest: str
    host: str
    best_policy: str
    gain: float
    moved_bytes: int


class PolicyGain(TypedDict):
    """One policy over all rows of a kind."""

    kind: str
    policy: str
    rows: int
    mean_gain: float
    median_gain: float
    worst_gain: float
    share_gaining: float
    share_losing: float


class HostGain(TypedDict):
    """The policy that is best on one host; run times are of traces alone."""

    kind: str
    host: str
    best_policy: str
    mean_gain: float
    run_time_s: float | None
    none_run_time_s: float | None


class FailedRow(TypedDict):
    """A row without figures, and why."""

    recording: str
    host: str
    policy: str
    error: str


class SweepReport(TypedDict):
    """``sweep-report``: gains against policy "none", a table for each question."""

    guests: list[GuestGain]
    policies: list[PolicyGain]
    hosts: list[HostGain]
    failed: list[FailedRow]


class FleetFit(msgspec.Struct, frozen=True):
    """``fleet-model --fit``: the room for further guests of one flavour, without and with the strategy."""

    flavour: FleetFlavour
    threshold: float
    nobody: SpareCapacityOverTime
    watcher: SpareCapacityOverTime


class FleetModelled(msgspec.Struct, frozen=True):
    """``fleet-model``: the same guests without (``nobody``) and with the strategy (``watcher``).

    ``fit``: null without --fit.
    """

    setup: FleetSetup
    nobody: FleetResult
    watcher: FleetResult
    fit: FleetFit | None = None
