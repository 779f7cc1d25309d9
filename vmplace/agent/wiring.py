"""Build the parts that the loop drives on this host."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vmplace.actuation.replicator import can_replicate
from vmplace.agent.config_sections import Config
from vmplace.agent.discovered import Discovered
from vmplace.agent.discovery import CachedDiscovery
from vmplace.agent.notifying_actuator import notifying
from vmplace.agent.parts import Actuator, Parts
from vmplace.errors import UnsupportedHostError
from vmplace.extensions import extension
from vmplace.policy.registry import begun
from vmplace.sampling.guest_cost import GuestCost, PerfCost
from vmplace.sampling.registry import best_source
from vmplace.sampling.source import SourceSetup, nothing
from vmplace.topology.calibration import DEFAULT_PATH, read_calibrated_host
from vmplace.topology.domain_summaries import DomainSummaries
from vmplace.topology.guest_finder import GuestFinder, GuestScan
from vmplace.topology.guests_libvirt import ANSWER_S, Libvirt, find_libvirt
from vmplace.topology.memory_budget import affordable, guests_budget_bytes, needed_bytes
from vmplace.topology.numad import NumadWatch
from vmplace.topology.stated_guests import NAME as STATED_GUESTS
from vmplace.topology.stated_guests import StatedGuests
from vmplace.topology.sysfs import read_free_bytes

PIDS_NAMED = 5
MOST_NOTES = 100
"""Each is asked for with every status, and kept twice."""


def open_parts(
    config: Config, actuator: Actuator, beat: Callable[[], None] = nothing, *, libvirt_s: float = ANSWER_S
) -> Parts:
    """Return the parts for this host; raises UnsupportedHostError where nothing can be sampled.

    ``beat`` is called while a look at guests goes on; ``libvirt_s`` is how long libvirt may take to answer.
    """
    bandwidth_file = Path(config.state_dir) / DEFAULT_PATH.name
    host, uncalibrated = read_calibrated_host(bandwidth_file)
    # The directory of the socket is gone after a reboot, as is what a source has set up in the kernel.
    setup = SourceSetup(host, state_dir=Path(config.socket).parent, beat=beat)
    choice = best_source(setup, config.source)
    source = choice.source
    memory_bytes = sum(node.memory_bytes for node in host.nodes)
    finder, notes = guest_finder(config, beat, libvirt_s)
    stated = StatedGuests(Path(config.socket).parent / STATED_GUESTS)
    numad = NumadWatch()
    budget_bytes = guests_budget_bytes(memory_bytes, with_libvirt=finder.asks_libvirt)
    one_node = ("this host has one node: there is nothing to place",) if len(host.nids) < 2 else ()
    counters, unmeasured = guest_cost(config)
    sensing = tuple(f"source {source.name} is in use, not {reason}" for reason in choice.reasons)
    return Parts(
        discovery=CachedDiscovery(
            lambda: read_calibrated_host(bandwidth_file)[0],
            read_free_bytes,
            lambda: beside_numad(with_stated(looked(finder, budget_bytes), stated), numad),
            ask_again=finder.ask_again,
            has_news=lambda: finder.has_news,
        ),
        source=source,
        policy=begun(config.policy, earlier=actuator.ties()),
        policy_name=config.policy,
        actuator=notifying(actuator, source),
        notes=(
            *one_node,
            *((uncalibrated,) if uncalibrated else ()),
            *sensing,
            *unmeasured,
            *notes,
        ),
        replica_ratio=config.budget.replica_ratio if can_replicate() else 0.0,
        huge_replicas=can_replicate(huge=True),
        counters=counters,
        holds=finder.holds,
        summaries=DomainSummaries() if config.libvirt and has_libvirt() else None,
    )


def has_libvirt() -> bool:
    """Tell whether libvirt can be asked."""
    try:
        find_libvirt()
    except UnsupportedHostError:
        return False
    return True


def guest_finder(
    config: Config, beat: Callable[[], None] = nothing, libvirt_s: float = ANSWER_S
) -> tuple[GuestFinder, tuple[str, ...]]:
    """Return what finds guests, and why libvirt is not asked if it is not."""
    libvirt: Libvirt | None = None
    notes: tuple[str, ...] = ()
    if config.libvirt:
        try:
            libvirt = Libvirt(answer_s=libvirt_s)
        except UnsupportedHostError as err:
            notes = (f"guests are found without libvirt: {err}",)
    return GuestFinder(libvirt, beat=beat), notes


def guest_cost(config: Config) -> tuple[GuestCost | None, tuple[str, ...]]:
    """Return what tells whether moving helped, and why nothing does; raises if what was asked for lacks."""
    wanted = config.trial.counters
    if wanted == "meter":
        if (make := extension("vmplace.guest_cost", wanted)) is None:
            raise UnsupportedHostError(
                "the counters of an emulated host are not installed",
                hint='they come with vmplace-lab; counters = "auto" takes those of the CPU',
            )
        return make(config.trial.meter_guests), ()
    try:
        return (None if wanted == "off" else PerfCost()), ()
    except UnsupportedHostError as err:
        if wanted == "perf":
            raise
        return None, (f"no counters show whether moving memory helped a guest: {err}",)


def looked(finder: GuestFinder, budget_bytes: int) -> Discovered:
    """Return what a finder finds now; from the next time on it spares memory if that is short."""
    scan = finder.find()
    if needed_bytes(scan.guests) > budget_bytes:
        finder.spare()
    return found_of(scan, budget_bytes)


def found_of(scan: GuestScan, budget_bytes: int) -> Discovered:
    """Return a scan's guests, those that the agent can afford, and what a person should know of it."""
    guests, left = affordable(scan.guests, budget_bytes)
    pids: dict[str, list[int]] = {}
    for skip in scan.skipped:
        # What differs by the process alone is one thing to know, however many processes there are.
        reason = skip.reason if skip.pid is None else re.sub(rf"\b{skip.pid}\b", "N", skip.reason)
        pids.setdefault(reason, []).extend(() if skip.pid is None else (skip.pid,))
    skipped = tuple(f"{_pids_text(found)}{reason}" for reason, found in pids.items())
    problem = (scan.libvirt_problem,) if scan.libvirt_problem else ()
    # Those of libvirt first: anybody can start processes that each deserve a note.
    alone = [reason for guest, reason in sorted(left, key=lambda one: one[0].origin != "libvirt")]
    ours = sum(guest.origin == "libvirt" for guest, _ in left)
    notes = _bounded((*problem, *alone[:ours], *skipped, *alone[ours:]))
    return Discovered(guests, notes, scan.policies, scan.awaited, scan.migrating, bound=scan.bound)


def _bounded(notes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first notes, and how many there are besides."""
    if len(notes) <= MOST_NOTES:
        return notes
    return *notes[:MOST_NOTES], f"{len(notes) - MOST_NOTES} more notes on processes and guests are left out"


def with_stated(found: Discovered, stated: StatedGuests) -> Discovered:
    """Return what was found, with what an orchestrator says of its guests."""
    policies = stated.policies()
    return replace(
        found, notes=(*stated.notes, *found.notes), stated=policies, stated_migrating=stated.migrating()
    )


def beside_numad(found: Discovered, numad: NumadWatch) -> Discovered:
    """Return what was found, with a note on guests that a numad beside the agent may move."""
    return replace(found, notes=(*numad.notes(found.guests), *found.notes))


def _pids_text(pids: list[int]) -> str:
    """Return whom a reason is about: nobody, one process, or several of which a few are named."""
    if len(pids) < 2:
        return f"pid {pids[0]}: " if pids else ""
    named = ", ".join(map(str, pids[:PIDS_NAMED]))
    more = f" and {len(pids) - PIDS_NAMED} more" if len(pids) > PIDS_NAMED else ""
    return f"pids {named}{more}: "
