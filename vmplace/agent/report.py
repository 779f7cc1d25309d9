"""The state of the host and its guests, from what the loop remembers to what people are shown.  Pure."""

import contextlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace

from vmplace.actuation.result import ActuationResult, Copies, MoveOutcome, ReplicaOutcome
from vmplace.agent.roster import Roster
from vmplace.agent.state import AgentStatus, GuestStatus, NodeStatus, PlanSummary
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.model.metrics import TrafficMatrix, local_access_ratio, mc_imbalance
from vmplace.model.pressure import accesses_by_node, memory_pressure
from vmplace.model.traffic import estimated_traffic
from vmplace.policy.options import Weighing
from vmplace.policy.plan import Mode, VcpuMove
from vmplace.topology.domain_policy import CloudNames
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology

PAUSED = "all guests are paused until `vmplace resume`"
HELD = "it is held, since `vmplace pause` or `vmplace undo` of it, until `vmplace resume {}`"


def published(  # noqa: PLR0913 - what is shown of a host comes from as many places
    status: AgentStatus,
    roster: Roster,
    host: HostTopology,
    plan: PlanSummary,
    copies: Mapping[str, Copies],
    now_s: float,
) -> AgentStatus:
    """Return ``status`` with how each guest and the host stand at ``now_s`` of the agent's clock.

    Guests without copies have no bytes.
    """
    traffics: dict[str, TrafficMatrix | None] = {}
    guests: dict[str, GuestStatus] = {}

    def tell(guest: TrackedGuest) -> None:
        traffics[guest.name] = guest_traffic(guest, host)
        mine = copies.get(guest.name, Copies())
        guests[guest.name] = guest_status(
            guest, host, plan, traffics[guest.name], copies=mine, now_s=now_s, paused=status.paused
        )

    for guest in roster:
        try:
            tell(guest)
        except Exception as err:
            # Without figures of its pages, which are learnt anew; never in the others' way.
            guest.note(err)
            guest.let_go_of_pages()
            with contextlib.suppress(Exception):
                tell(guest)
    imbalance = host_imbalance(host, traffics.values())
    nodes = tuple(NodeStatus(n.nid, len(n.cpus), n.memory_bytes, n.free_bytes) for n in host.nodes)
    return replace(status, guests=guests, nids=host.nids, nodes=nodes, mc_imbalance_estimate=imbalance)


def guest_status(  # noqa: PLR0913 - what is shown of a guest comes from as many places
    guest: TrackedGuest,
    host: HostTopology,
    plan: PlanSummary,
    traffic: TrafficMatrix | None,
    *,
    copies: Copies,
    now_s: float,
    paused: bool,
) -> GuestStatus:
    """Return what is known of one guest; estimates are None until a window saw an access."""
    cpus = tuple(sorted({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus}))
    return GuestStatus(
        mode=guest.settings.mode.value,
        state=_state(guest, plan, copies.present_bytes, paused=paused),
        pid=guest.topology.pid,
        origin=guest.topology.origin,
        vcpu_nids=host.nids_of_cpus(cpus),
        memory_bytes=sum(ram.size_bytes for ram in guest.topology.ram),
        pages_by_node=guest.pages.pages_by_node() if guest.pages else None,
        hot_pages_by_node=guest.pages.pages_by_node(hot_only=True) if guest.pages else None,
        estimated_lar=local_access_ratio(traffic) if traffic else None,
        moved_bytes=guest.moved_bytes,
        replica_bytes=copies.present_bytes,
        collapsed_bytes=copies.collapsed_bytes,
        refused_bytes=dict(guest.refused_bytes),
        expected_lar=guest.expected_lar,
        cost_ratio=guest.cost_ratio,
        movability=bytes_by_movability(guest.topology),
        reasons=(
            *plan.reasons(guest.name),
            *held_back(guest),
            *filter(None, (guest.trial.summary,)),
            *(guest.decided.notes if guest.decided else ()),
        ),
        problem=guest.problem,
        memory_use=guest.memory_use,
        uuid=guest.topology.uuid,
        pressure_by_node=memory_pressure(host, traffic, guest.dram_per_us),
        names=guest.said.names if guest.said else CloudNames(),
        dram_accesses_by_node=accesses_by_node(traffic, guest.dram_per_us),
        counted_lar=guest.counted_lar(host, now_s),
    )


def held_back(guest: TrackedGuest, *, paused: bool = False) -> tuple[str, ...]:
    """Return why nothing of the guest may be changed just now, though its policy may let it.

    ``paused``: whether all guests are.
    """
    held = HELD.format(shlex.quote(guest.name)) if guest.held else None
    return tuple(filter(None, (PAUSED if paused else None, held, guest.waits_for)))


def guest_traffic(guest: TrackedGuest, host: HostTopology) -> TrafficMatrix | None:
    """Return the traffic that the guest's last window implies, or None before the first one."""
    return estimated_traffic(host, guest.topology, guest.pages) if guest.pages else None


def host_imbalance(host: HostTopology, traffics: Iterable[TrafficMatrix | None]) -> float | None:
    """Return the estimated imbalance of the memory controllers under all guests together."""
    total: TrafficMatrix | None = None
    for traffic in traffics:
        if traffic and traffic.nids == host.nids:
            total = total + traffic if total else traffic
    return mc_imbalance(total, host.memory_nids) if total else None


def bytes_by_movability(guest: GuestTopology) -> dict[str, int]:
    """Return the guest's memory in bytes by movability class."""
    found: dict[str, int] = {}
    for ram in guest.ram:
        found[ram.movability.value] = found.get(ram.movability.value, 0) + ram.size_bytes
    return found


def moves_line(outcome: MoveOutcome) -> str:
    """Return what became of a guest's moves, in words; zeroes are left out."""
    names = ("already", "busy", "pinned", "gone", "vetoed", "left")
    counts = {name: getattr(outcome, name) for name in names} | dict(outcome.refused)
    rest = "".join(f" {name.lower()}_pages={count}" for name, count in counts.items() if count)
    moved = f"guest={outcome.guest} moved_bytes={outcome.moved * PAGE_BYTES}"
    longest = (
        f"longest_call_ms={outcome.longest_call_ns / 1e6:.2f} cpu_ms={outcome.longest_call_cpu_ns / 1e6:.2f}"
    )
    return f"{moved}{rest} {longest}"


def copies_line(outcome: ReplicaOutcome) -> str:
    """Return what became of a guest's replications, in words."""
    counts = {"left": outcome.left} | dict(outcome.refused)
    rest = "".join(f" {reason.replace(' ', '_')}_pages={count}" for reason, count in counts.items() if count)
    return f"guest={outcome.guest} replicated_bytes={outcome.replicated * PAGE_BYTES}{rest}"


def vcpus_line(move: VcpuMove) -> str:
    """Return which vCPUs were tied to which node, or float again, and why."""
    vcpus, before = (",".join(map(str, ids)) for ids in (move.cpus, move.from_nids))
    after = "any" if move.nid is None else move.nid
    return f'guest={move.guest} vcpus={vcpus} nid={before}->{after} reason="{move.reason}"'


def expected_line(guest: str, weighing: Weighing | None, lar: float | None) -> str:
    """Return what a plan promised a guest, in words."""
    chosen = weighing.chosen if weighing else None
    unknown = weighing.unknown if weighing else "gain and price: nothing weighed them"
    figures = ""
    if chosen:
        figures = (
            f" expected_saved_ms={chosen.saved_ns / 1e6:.1f} expected_price_ms={chosen.price_ns / 1e6:.1f}"
        )
        figures += "" if chosen.saved_share is None else f" expected_saved_share={chosen.saved_share:.4f}"
    figures += "" if lar is None else f" expected_lar={lar:.2f}"
    return f"guest={guest}{figures}" + (f' not_known="{unknown}"' if unknown else "")


def result_lines(
    result: ActuationResult, plan: PlanSummary | None = None, lars: Mapping[str, float | None] | None = None
) -> tuple[str, ...]:
    """Return all that was done of a plan, what it promised, and what went wrong, in words.

    ``lars``: the share of local accesses that it promised, by guest.
    """
    vcpus = tuple(vcpus_line(move) for move in result.pinned)
    moves = tuple(moves_line(outcome) for outcome in result.outcomes)
    replicas = tuple(one for one in result.replicas if one.replicated or one.left or one.refused)
    copies = tuple(copies_line(outcome) for outcome in replicas)
    drops = tuple(f"guest={name} dropped_bytes={n * PAGE_BYTES}" for name, n in result.dropped.items() if n)
    weighings = {one.guest: one.weighing for one in result.pinned} | dict(plan.weighings if plan else {})
    touched = [one.guest for one in result.pinned] + [one.guest for one in result.outcomes]
    touched += [one.guest for one in replicas]
    promised = tuple(
        expected_line(name, weighings.get(name), (lars or {}).get(name)) for name in dict.fromkeys(touched)
    )
    return (*vcpus, *moves, *copies, *drops, *promised, *result.failures)


def _state(guest: TrackedGuest, plan: PlanSummary, replica_bytes: int, *, paused: bool) -> str:
    if guest.problem:
        return "failed"
    if guest.settings.mode is Mode.MANUAL:
        return "manual"
    if guest.is_migrating or guest.held:
        return "migrating" if guest.is_migrating else "held"
    if guest.pages is None:
        return "new"
    mine = plan.of(guest.name)
    # Copies are wanted in each plan for as long as they are of use: those that are there are no change.
    if not (mine.moves or mine.vcpu_moves or (mine.copies and not replica_bytes)):
        return "settled"
    waits = paused or guest.waits_for or guest.settings.mode is Mode.ADVISE
    return "advised" if waits else "moving"
