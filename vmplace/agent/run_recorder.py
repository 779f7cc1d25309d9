"""Record a run of the agent: what its windows saw, and the input of each decision.

A recording that cannot be written is given up with a warning: it must not stop the agent.
"""

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from vmplace.agent.parts import Parts
from vmplace.errors import OutsideError, RecordingError, cure_of_writing
from vmplace.model.pages import GuestPages
from vmplace.policy.gathering import EarlierTie
from vmplace.policy.plan import (
    Collapse,
    CostSample,
    GuestSettings,
    GuestView,
    NodeShares,
    PlacementPlan,
    Replication,
    Snapshot,
)
from vmplace.sampling.recording import Recorder
from vmplace.sampling.recording_frames import PlanFrame, PlannedGuest, RunFrame, TieFrame
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.domain_policy import Numatune
from vmplace.topology.guest import GuestTopology, Identity
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)
Policy = Callable[[Snapshot], PlacementPlan]
NOT_YET = {"gathers": False}
"""What recordings of earlier versions do not tell: nobody did it then."""


@dataclass(frozen=True)
class RecordedPolicy:
    """A policy whose plans are kept; a copy is the policy's own: what it is asked is no decision."""

    policy: Policy
    keep: Callable[[Snapshot, PlacementPlan], None]

    def __call__(self, snapshot: Snapshot) -> PlacementPlan:
        """Return the plan, and keep it."""
        plan = self.policy(snapshot)
        self.keep(snapshot, plan)
        return plan

    def __copy__(self) -> Policy:
        """Return a copy of the policy."""
        return copy(self.policy)


class RunRecorder:
    """Writes what a run sees and decides; ``acts``: its decisions are carried out."""

    def __init__(
        self,
        recorder: Recorder,
        policy_name: str,
        *,
        acts: bool,
        ties: Mapping[Identity, EarlierTie] | None = None,
    ) -> None:
        """``ties``: those of an earlier agent."""
        self._recorder: Recorder | None = recorder
        self.problem: RecordingError | None = None
        """Why nothing is kept any more."""
        self._write(lambda one: one.tell(RunFrame(policy_name, acts, _tie_frames(ties))))

    def add(self, guest: GuestTopology, batch: SampleBatch) -> None:
        """Keep a window of a guest."""
        self._write(lambda recorder: recorder.add(guest, batch))

    def begin(self, guest: GuestTopology, handover: str) -> None:
        """Keep that nothing is known of the guest's pages, but for what its last host handed over."""
        self._write(lambda recorder: recorder.begin_guest(guest, handover))

    def watching(self, policy: Policy) -> Policy:
        """Return the policy, of which each decision is kept."""

        def keep(snapshot: Snapshot, plan: PlacementPlan) -> None:
            self._write(lambda recorder: self._keep(recorder, snapshot, plan))

        return RecordedPolicy(policy, keep)

    def close(self) -> None:
        """End the recording."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            recorder.close()
        except OSError as err:
            # The file tries to write again as it is closed.
            reported = f"its file cannot be closed: {err.strerror}"
            self._give_up(RecordingError(reported, hint=cure_of_writing(err)))

    def _keep(self, recorder: Recorder, snapshot: Snapshot, plan: PlacementPlan) -> None:
        recorder.see_host(snapshot.host)
        for view in snapshot.guests:
            recorder.see_guest(view.topology)
        recorder.tell(plan_frame(snapshot, plan))

    def _write(self, step: Callable[[Recorder], None]) -> None:
        if self._recorder is None:
            return
        try:
            step(self._recorder)
        except RecordingError as err:
            self._give_up(err)
            self.close()

    def _give_up(self, err: RecordingError) -> None:
        if self.problem is None:
            self.problem = err
            LOG.warning('reason="the run is recorded no more: %s"', err)


def recording_run(
    parts: Parts, path: Path, *, acts: bool, overwrite: bool = False
) -> tuple[Parts, RunRecorder]:
    """Return the parts of an agent whose run is kept in ``path``, and what ends that.

    Raises RecordingError if the file exists or cannot be written.
    """
    recorder = Recorder(path, parts.discovery.host(), overwrite=overwrite)
    kept = RunRecorder(recorder, parts.policy_name, acts=acts, ties=parts.actuator.ties())
    return replace(parts, policy=kept.watching(parts.policy), begins=kept.begin, sampled=kept.add), kept


def _tie_frames(ties: Mapping[Identity, EarlierTie] | None) -> tuple[TieFrame, ...]:
    return tuple(TieFrame(*who, dict(one.before), dict(one.since)) for who, one in (ties or {}).items())


def ties_of(frame: RunFrame) -> Mapping[Identity, EarlierTie]:
    """Return the ties of an earlier agent that a run began with."""
    return {(one.pid, one.start_time): EarlierTie(one.before, one.since) for one in frame.ties}


def costs_of(planned: PlannedGuest) -> tuple[CostSample, ...]:
    """Return the samples of a guest's cost that a decision was made with."""
    waits = (*planned.waits, *(None for _ in planned.costs))
    return tuple(
        CostSample(*sample)._replace(waits=one) for sample, one in zip(planned.costs, waits, strict=False)
    )


def shares_of(planned: PlannedGuest) -> NodeShares | None:
    """Return which nodes made its accesses."""
    return None if planned.node_shares is None else NodeShares(*planned.node_shares)


def plan_frame(snapshot: Snapshot, plan: PlacementPlan) -> PlanFrame:
    """Return what is kept of a decision."""
    guests = tuple(
        PlannedGuest(
            view.topology.name,
            _settings(view.settings),
            _plain(view.dram_per_us),
            _plain(view.cpus),
            float(view.known_s),
            tuple((float(one.at_s), float(one.cost), float(one.accesses)) for one in view.costs),
            view.may_change,
            tuple(_plain(one.waits) for one in view.costs),
            tuple(view.numatune.nids.items()),
            view.move_bytes,
            view.copied_bytes,
            view.copies_wait,
            _plain(view.lar),
            None if view.node_shares is None else (view.node_shares.whole, view.node_shares.newest),
        )
        for view in snapshot.guests
    )
    return PlanFrame(
        float(snapshot.now_ns),
        snapshot.window_s,
        snapshot.budget_bytes,
        snapshot.replica_ratio,
        snapshot.huge_replicas,
        guests,
        digest(plan),
    )


def snapshot_of(
    frame: PlanFrame,
    host: HostTopology,
    known: dict[str, tuple[GuestTopology, GuestPages | None]],
) -> Snapshot:
    """Return what a decision was made with; raises OutsideError if the recording does not hold it."""
    views = []
    for one in frame.guests:
        if one.name not in known:
            raise OutsideError(f"a decision about guest {one.name[:60]!r}, of which it holds nothing")
        topology, pages = known[one.name]
        settings, dram_per_us = settings_of(one), one.dram_per_us
        view = GuestView(topology, pages, settings, dram_per_us=dram_per_us, cpus=one.cpus)
        view = replace(view, known_s=one.known_s, costs=costs_of(one), may_change=one.may_change)
        view = replace(view, numatune=Numatune(dict(one.bound)), move_bytes=one.move_bytes)
        view = replace(view, copied_bytes=one.copied_bytes, copies_wait=one.copies_wait)
        views.append(replace(view, lar=one.lar, node_shares=shares_of(one)))
    return Snapshot(
        host,
        tuple(views),
        frame.budget_bytes,
        frame.replica_ratio,
        frame.huge_replicas,
        frame.now_ns,
        frame.window_s,
    )


def settings_of(guest: PlannedGuest) -> GuestSettings:
    """Return the guest's settings at a decision; raises OutsideError for what are none."""
    try:
        return msgspec.convert(NOT_YET | guest.settings, GuestSettings)
    except msgspec.ValidationError as err:
        raise OutsideError(f"settings that are none: {err}") from err


def digest(plan: PlacementPlan) -> int:
    """Return the CRC-32 of all that a plan changes, in its order."""
    crc = 0
    for part in _parts(plan):
        crc = zlib.crc32(part, crc)
    return crc


def _parts(plan: PlacementPlan) -> Iterable[bytes]:
    for move in plan.moves:
        yield move.guest.encode()
        for array in (move.hva, move.npages, move.from_nid, move.to_nid):
            yield np.ascontiguousarray(array).tobytes()
    changes: tuple[Replication | Collapse, ...] = (*plan.replications, *plan.collapses)
    for one in changes:
        nids = one.nids if isinstance(one, Replication) else ()
        yield f"{type(one).__name__} {one.guest} {nids}".encode()
        yield np.ascontiguousarray(one.hva).tobytes() + np.ascontiguousarray(one.npages).tobytes()
    for vcpus in plan.vcpu_moves:
        yield f"{vcpus.guest} {vcpus.nid} {sorted(vcpus.cpus.items())}".encode()


def _plain(figure: float | None) -> float | None:
    """Return a number of numpy's as one of Python's."""
    return None if figure is None else float(figure)


def _settings(settings: GuestSettings) -> dict[str, Any]:
    # When it may be changed is the agent's to keep; a plan does not ask.
    timeless = asdict(replace(settings, schedule=()))
    return timeless | {"mode": settings.mode.value}
