"""Where does each page belong, if all guests of the host are planned for together?

1. Pages are sorted by who uses them (``page_kinds.py``), as policy "nodes" does: to the node that alone uses
   them; copies of what nobody writes.  These have their place, whatever others do.
2. What then loads each node's memory is summed up: accesses to pages that have their place, copies (read on
   the reader's own node) and memory that cannot move.
3. Other shared pages, in groups that the same nodes use (model/group_touches.py), are placed by one plan for
   all guests on the host's memory system (``joint_spread.py``), on the nodes of their vCPUs.  With a
   proximity below 1, the share of the other nodes is policy "home"'s.
4. Groups that deviate little from the plan stay, and what it asks of pages beyond the budget or a node's room
   waits, as with policy "nodes".

Without a known bandwidth (``vmplace calibrate``, firmware's HMAT) there is no plan for all, and each guest is
looked at by itself, as policy "nodes" does.
What is assumed of rates: guests access memory in proportion to the DRAM accesses that samples of IBS count
(``GuestView.dram_per_us``); where these are not known of every guest, each page counts alike that a node
touched in a window.  Within a range, touches are weighed by rate (model/page_rates.py) where it is known.
A huge page counts as all its pages.
Limits: private pages stay with their node however crowded its memory is; guests in mode "manual" are not
sampled, and so load nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from vmplace.model.group_touches import (
    NO_GROUP,
    Groups,
    pages_by_group,
    shared_groups,
    touches_by_group,
)
from vmplace.model.host_memory import host_memory
from vmplace.model.metrics import Matrix
from vmplace.model.pages import RangePages
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.touched_pages import TouchedPages
from vmplace.model.traffic import vcpu_shares
from vmplace.policy import policy_home as home
from vmplace.policy import policy_nodes
from vmplace.policy.descent import PROTECTED_IMPORTANCE
from vmplace.policy.joint_spread import GuestLoad, JointSpread, SharedPart, joint_spread
from vmplace.policy.page_kinds import (
    Answer,
    PageKinds,
    iter_kinds,
    nids_of,
    plan_of,
    settled_answers,
    spread_wishes,
)
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.spread import weights_by_index
from vmplace.topology.guest import Movability
from vmplace.topology.host import HostTopology

LESS = 0.8
"""A node that gets less than this part of what it would get by bandwidth alone is worth a word."""


def plan(snapshot: Snapshot) -> PlacementPlan:
    """Return moves and replications within the snapshot's budgets."""
    system = host_memory(snapshot.host)
    if system is None:
        return policy_nodes.plan(snapshot)
    room = home.room_pages(snapshot.host)
    answers: list[Answer] = []
    surveys = []
    for guest in snapshot.guests:
        kinds = list(iter_kinds(snapshot, guest, room))
        sorted_out = [one for one in kinds if isinstance(one, PageKinds)]
        answers += [one for one in kinds if not isinstance(one, PageKinds)]
        for one in sorted_out:
            answers += settled_answers(snapshot, one, room)
        surveys.append(_surveyed(snapshot.host, guest, sorted_out))
    loads = _loads(surveys)
    spread = joint_spread(system, loads, np.maximum(weights_by_index(room, snapshot.host.nids), 0.0))
    for survey in surveys:
        answers += _spread(snapshot, survey, spread, room)
    return plan_of(answers, snapshot.budget_bytes)


@dataclass(frozen=True)
class _Shared:
    """One range's groups of shared pages, of which ``parts`` is the evidence, in their order."""

    pages: TouchedPages
    near: tuple[int, ...]
    group: Groups
    parts: tuple[SharedPart, ...]


@dataclass(frozen=True)
class _Survey:
    """One guest: touches [N, N] a window to what has its place, and what is shared."""

    guest: GuestView
    fixed: Matrix
    shared: tuple[_Shared, ...]

    @property
    def parts(self) -> tuple[SharedPart, ...]:
        """Return the parts of all ranges."""
        return tuple(part for one in self.shared for part in one.parts)


def _surveyed(host: HostTopology, guest: GuestView, sorted_out: list[PageKinds]) -> _Survey:
    found = {kinds.pages.ram.hva: kinds for kinds in sorted_out}
    fixed, shared = np.zeros((len(host.nids),) * 2), []
    for pages in guest.pages.ranges if guest.pages else ():
        kinds = found.get(pages.ram.hva)
        if kinds is None:
            fixed += _at_home(host, guest, pages)
        else:
            more, one = _sorted(host, kinds)
            fixed += more
            # Two bytes a page: kept only where there is something to place.
            shared += [one] if one.parts else []
    return _Survey(guest, fixed, tuple(shared))


def _sorted(host: HostTopology, kinds: PageKinds) -> tuple[Matrix, _Shared]:
    """Return the touches of what has its place, once all is there, and the groups of what is shared."""
    pages, nodes, allowed = kinds.pages, len(kinds.nids), home.allowed_nids(host, kinds.guest)
    groups = shared_groups(pages, kinds.rest)
    # First the pages by where they will be, then those that will be everywhere, then the groups.
    goes = np.array([kinds.nids.index(home.nearest(host, nid, allowed)) for nid in kinds.nids], np.int16)
    key = np.where(kinds.owner >= 0, goes[kinds.owner], pages.node_index.astype(np.int16))
    key = np.where(kinds.copied, np.int16(nodes), key)
    key = np.where(groups.of_page != NO_GROUP, nodes + 1 + groups.of_page, key).astype(np.int16)
    count = len(groups.users)
    asked = touches_by_group(pages, key, nodes + 1 + count)
    held = pages_by_group(pages, groups.of_page, count)
    near = home.near_nids(host, kinds.guest, pages.ram, allowed)
    may_hold = np.isin(host.nids, near)
    parts = tuple(
        SharedPart(_on_host(host, kinds.nids, touched), _on_host(host, kinds.nids, lies), may_hold)
        for touched, lies in zip(asked[nodes + 1 :], held, strict=True)
    )
    fixed = asked[:nodes].T + np.diag(asked[nodes])
    return _pairs_on_host(host, kinds.nids, fixed), _Shared(pages, near, groups.of_page, parts)


def _at_home(host: HostTopology, guest: GuestView, pages: RangePages) -> Matrix:
    """Return the touches [N, N] of a range that policy "home" places, or that cannot move."""
    nids = nids_of(guest)
    counts = pages.by_node(len(nids)).astype(np.float64)
    lies = _on_host(host, nids, counts / max(counts.sum(), 1.0))
    allowed = home.allowed_nids(host, guest)
    target = home.target_of(host, guest, pages.ram, allowed) if allowed else None
    if target is not None and pages.ram.movability is Movability.MOVABLE:
        lies = weights_by_index(target.weights, host.nids)
    return np.outer(_range_touches(host, guest, pages), lies)


def _range_touches(host: HostTopology, guest: GuestView, pages: RangePages) -> Matrix:
    """Return the touches a window of all pages by node [N]; without a history, those of the vCPUs' nodes."""
    nids = nids_of(guest)
    if pages.history and not pages.counted and pages.rate is None:
        return _on_host(host, nids, pages.touches_by_node())
    touched = touched_pages(pages)
    if touched is not None:
        everything = np.zeros(len(touched.heat), np.int16)
        return _on_host(host, nids, touches_by_group(touched, everything, 1)[0])
    hot = float(pages.by_node(len(nids), hot_only=True).sum())
    return hot * weights_by_index(vcpu_shares(host, guest.topology.vcpus), host.nids)


def _loads(surveys: list[_Survey]) -> list[GuestLoad]:
    """Return what the guests ask for, at rates that can be compared."""
    loads = [
        GuestLoad(
            one.guest.topology.name,
            one.fixed,
            one.parts,
            rate=0.0,
            vcpus=len(one.guest.topology.vcpus),
            importance=PROTECTED_IMPORTANCE if one.guest.settings.protected else 1.0,
        )
        for one in surveys
    ]
    counted = [one.guest.dram_per_us for one in surveys if one.guest.pages is not None]
    if None in counted:
        return [replace(load, rate=float(load.present.sum())) for load in loads]
    rates = [one.guest.dram_per_us or 0.0 for one in surveys]
    return [replace(load, rate=rate) for load, rate in zip(loads, rates, strict=True)]


def _spread(
    snapshot: Snapshot, survey: _Survey, spread: JointSpread, room: dict[int, float]
) -> Iterator[Answer]:
    """Yield what brings a guest's shared pages to where the plan for all has them."""
    guest = survey.guest
    shares = iter(spread.shares[guest.topology.name])
    allowed = home.allowed_nids(snapshot.host, guest)
    for one in survey.shared:
        base = home.target_of(snapshot.host, guest, one.pages.ram, allowed)
        for number in range(len(one.parts)):
            share = next(shares)
            if base is None:
                continue
            target = base if share is None else _target(snapshot.host, survey, one.near, base, share, spread)
            yield from spread_wishes(guest, one.pages, one.group == number, target, room)


def _target(  # noqa: PLR0913  (what a target is made of)
    host: HostTopology,
    survey: _Survey,
    near: tuple[int, ...],
    base: home.Target,
    share: Matrix,
    spread: JointSpread,
) -> home.Target:
    """Return the target with what is near the vCPUs as the plan has it, and in words why."""
    inside = sum(base.weights.get(nid, 0.0) for nid in near)
    planned = {nid: inside * float(share[host.nids.index(nid)]) for nid in near}
    name, why = survey.guest.topology.name, ""
    for nid in near:
        loader = spread.loader(host.nids.index(nid), but=name)
        if planned[nid] < LESS * base.weights.get(nid, 0.0) and loader is not None:
            why += f"; node {nid} has less, as {loader} loads its memory"
    weights = {**base.weights, **planned}
    parts = ":".join(f"{100 * weight:.0f}" for weight in weights.values())
    where = ", ".join(map(str, weights))
    return home.Target(
        weights, f"shared by its vCPUs, on nodes {where} {parts} in one plan for all guests{why}"
    )


def _on_host(host: HostTopology, nids: tuple[int, ...], by_node: Matrix) -> Matrix:
    """Return what is by index in ``nids`` by index in the host's nodes; those that are gone are left out."""
    return weights_by_index(dict(zip(nids, by_node.tolist(), strict=True)), host.nids)


def _pairs_on_host(host: HostTopology, nids: tuple[int, ...], pairs: Matrix) -> Matrix:
    """Return the same of pairs of nodes."""
    rows = np.stack([_on_host(host, nids, row) for row in pairs])
    both: Matrix = np.stack([_on_host(host, nids, column) for column in rows.T], axis=1)
    return both
