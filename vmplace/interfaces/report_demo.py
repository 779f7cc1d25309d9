"""The page of ``vmplace demo``: guests as they were recorded, and where a policy would have put them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vmplace.agent.config import LoadedConfig
from vmplace.agent.rehearsal import Rehearsal, budget_of, rehearse
from vmplace.agent.rehearsed_guest import RehearsedGuest
from vmplace.errors import RecordingError
from vmplace.interfaces.report_page import Section, Table, number
from vmplace.interfaces.report_recording import recording_sections
from vmplace.interfaces.traffic_picture import LEGEND, TrafficPicture, svg_of_traffic
from vmplace.model.described_memory import MIB
from vmplace.model.metrics import TrafficMatrix, mc_imbalance
from vmplace.model.traffic import estimated_traffic
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.registry import AUTO, begun
from vmplace.sampling.recording import RECORD_LONGER, iter_recording

ABOUT = (
    "Recorded on an emulated host with four NUMA nodes.  Its guests run on other nodes than the ones "
    "their memory was first touched on, as after a restart or a migration: most accesses cross the links "
    "between nodes.  vmplace watched which node touches which page, and how often each guest goes to memory; "
    "below is what its default policy would have moved.  On a host of yours: vmplace doctor, then "
    "vmplace plan."
)


@dataclass(frozen=True)
class Rehearsed:
    """A recording with a policy run over it: ``first`` and ``last`` are what the policy saw."""

    policy: str
    rehearsal: Rehearsal
    first: Snapshot
    last: Snapshot


def rehearsed(path: Path, config: LoadedConfig) -> Rehearsed:
    """Run the agent's default policy over the recording; raises RecordingError for one without a window.

    It may move as much as ``config`` lets the agent.
    """
    policy, seen = begun(AUTO), list[Snapshot]()

    def watched(snapshot: Snapshot) -> PlacementPlan:
        seen.append(snapshot)
        return policy(snapshot)

    events, budget_bytes = iter_recording(path), budget_of(config.config)
    result = rehearse(events, watched, lambda guest: config.rule(guest).settings, budget_bytes)
    if not seen:
        raise RecordingError(f"{path} holds no window", hint=RECORD_LONGER)
    return Rehearsed(AUTO, result, seen[0], seen[-1])


def demo_sections(path: Path, reported: Rehearsed) -> list[Section]:
    """Return the parts of the page."""
    _traffic, *heat = recording_sections(iter_recording(path))
    return [Section("What you see", ABOUT, tables=(guest_table(reported),)), traffic_section(reported), *heat]


def guest_table(reported: Rehearsed) -> Table:
    """Return a row for each guest: where it runs, where its memory is, what would change."""
    headings = ("guest", "runs on nodes", "memory on node: MiB", "LAR", "with vmplace", "moves, MiB", "why")
    views = sorted(reported.first.guests, key=lambda view: view.topology.name)
    rows = [_row(view, reported.rehearsal.guests[view.topology.name], reported.first) for view in views]
    caption = (
        "LAR: local access ratio, the share of accesses that stay on the node of the CPU (estimated).  "
        f"Policy: {reported.policy}."
    )
    return Table(headings, tuple(rows), caption)


def _row(view: GuestView, guest: RehearsedGuest, snapshot: Snapshot) -> tuple[str, ...]:
    cpus = {cpu: node.nid for node in snapshot.host.nodes for cpu in node.cpus}
    runs_on = sorted({cpus[cpu] for vcpu in view.topology.vcpus for cpu in vcpu.cpus if cpu in cpus})
    counts = view.pages.pages_by_node() if view.pages else {}
    memory = ", ".join(
        f"{nid}: {count * 4096 // MIB}" for nid, count in counts.items() if count * 4096 >= MIB
    )
    return (
        view.topology.name,
        ", ".join(map(str, runs_on)),
        memory,
        number(guest.lar_before),
        number(guest.lar_after),
        number(guest.moved_bytes / MIB, 0),
        "; ".join(guest.reasons),
    )


def traffic_section(reported: Rehearsed) -> Section:
    """Return who accesses whose memory, as recorded and with what the policy moved."""
    pictures = []
    for title, snapshot in (("as recorded", reported.first), ("with vmplace", reported.last)):
        traffic = total_traffic(snapshot)
        imbalance = mc_imbalance(traffic, snapshot.host.memory_nids)
        pictures.append(TrafficPicture(title, traffic.nids, traffic.accesses, imbalance))
    note = "Estimated: each page touched in the window counts once for the nodes of the guest's vCPUs.  "
    return Section("Who accesses whose memory", note + LEGEND, svg_of_traffic(pictures))


def total_traffic(snapshot: Snapshot) -> TrafficMatrix:
    """Return the estimated accesses of all guests together."""
    traffics = [
        estimated_traffic(snapshot.host, view.topology, view.pages) for view in snapshot.guests if view.pages
    ]
    return TrafficMatrix(traffics[0].nids, np.sum([one.accesses for one in traffics], axis=0))
