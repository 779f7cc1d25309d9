"""What one host tells the next of a guest's pages comes out there as it was declared here."""

import base64
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest

from tests.unit.agent.agent_world import HOST
from vmplace.errors import OutsideError
from vmplace.model.evidence import entries_of
from vmplace.model.handover import (
    MOST_RUNS,
    MOST_TEXT,
    FrameRun,
    Handover,
    handover_of,
    handover_text,
    parse_handover,
)
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import HISTORY_WINDOWS, GuestPages
from vmplace.model.prior_pages import known_for_s, prior_pages
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.use_fused import fused_use
from vmplace.policy.plan import GuestView, Snapshot
from vmplace.policy.plan_state import State
from vmplace.policy.policy_auto import Horizon, plan_auto
from vmplace.sampling.page_frames import block_count
from vmplace.sampling.sample import EarlyBits, NodeBits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu

NPAGES, NODES = 4096, 2
NOW_S = 1.7e9
CPU_OF_NID = {0: 0, 1: 2}
COVERAGE = SourceCoverage(accessed=True, written=True, accessor_nid=True)


@dataclass(frozen=True)
class Declared:
    """Which vCPU uses each page [P], -1 for none, 2 for both; and which are written [P]."""

    user: np.ndarray
    written: np.ndarray


def halves() -> Declared:
    """vCPU 0 uses some pages alone, vCPU 1 others, both some more; a few are used by nobody."""
    user = np.full(NPAGES, -1)
    user[:700], user[700:2048], user[2560:3072] = 0, 1, 2
    written = np.zeros(NPAGES, bool)
    written[600:800] = True
    return Declared(user, written)


def a_guest(*nids: int | None, hva: int = 1 << 40, base_gfn: int | None = 1000) -> GuestTopology:
    """Return a guest with a vCPU on each of these nodes; on None it may run anywhere."""
    cpus = [(0, 1, 2, 3) if nid is None else (CPU_OF_NID[nid],) for nid in nids]
    vcpus = tuple(Vcpu(at, 100 + at, mine) for at, mine in enumerate(cpus))
    ram = RamRange(hva, NPAGES, base_gfn, 4096, Movability.MOVABLE, "anonymous memory")
    return GuestTopology("db1", 7, 1, "libvirt", vcpus, (ram,))


def bits(rows: np.ndarray) -> np.ndarray:
    return np.packbits(rows, axis=1, bitorder="little").view(np.uint64)


def window(
    guest: GuestTopology, declared: Declared | None, *nids: int, nid: int = 0, early: bool = False
) -> SampleBatch:
    """Return a window in which each vCPU, on its node, touched all that it uses; memory is on ``nid``."""
    accessed = np.zeros((NODES + 1, NPAGES), bool)
    written = np.zeros((1, NPAGES), bool)
    if declared is not None:
        for vcpu, at in enumerate(nids):
            accessed[at] |= np.isin(declared.user, (vcpu, 2))
        written[0] = declared.written
    read = (EarlyBits(10**6, bits(accessed)),) if early else ()
    (ram,) = guest.ram
    sample = RangeSample(
        ram,
        np.any(accessed, axis=0, keepdims=True)[0].astype(np.uint8),
        np.full(NPAGES, nid, np.int8),
        np.zeros(block_count(ram), np.uint8),
        NodeBits(bits(accessed), bits(written), read),
    )
    return SampleBatch(guest.name, "test", COVERAGE, 0, 10**9, HOST.nids, (sample,))


def watched(
    guest: GuestTopology, declared: Declared, *nids: int, windows: int = 4, early: bool = False
) -> GuestPages:
    pages: GuestPages | None = None
    for _ in range(windows):
        pages = absorbed(pages, window(guest, declared, *nids, early=early))
    assert pages is not None
    return pages


def handed_over(declared: Declared, *nids: int, early: bool = False) -> Handover:
    guest = a_guest(*nids)
    pages = watched(guest, declared, *nids, early=early)
    reported = handover_of(HOST, guest, pages, unix_s=NOW_S, known_s=300.0)
    assert reported is not None
    return parse_handover(handover_text(reported))


@pytest.mark.parametrize("hva", [1 << 40, (1 << 41) + 7 * 4096])
@pytest.mark.parametrize("early", [False, True])
def test_each_page_is_its_vcpus_on_the_other_host(hva: int, early: bool):
    declared = halves()
    handover = handed_over(declared, 0, 1, early=early)
    # There the vCPUs run the other way round, and the memory is elsewhere in QEMU.
    there = a_guest(1, 0, hva=hva)
    first = window(there, None, early=early)
    prior = prior_pages(handover, HOST, there, first)
    assert prior is not None
    pages = touched_pages(absorbed(prior, first).ranges[0])
    assert pages is not None
    use, order = fused_use(pages), np.arange(pages.entries)
    page = (pages.hva_of(order) - hva) // 4096
    owner, written, shared = (np.zeros(NPAGES, int) for _ in range(3))
    for at, size, one in zip(page, pages.sizes, order, strict=True):
        if 0 <= at < NPAGES:
            owner[at : at + size], written[at : at + size] = use.owner[one], use.written[one]
            shared[at : at + size] = use.shared[one]
    assert (owner[declared.user == 0] == 1).all()
    assert (owner[declared.user == 1] == 0).all()
    assert (shared[declared.user == 2] == 1).all()
    assert (written[declared.written] == 1).all()
    assert (written[2560:3072] == 0).all()


def test_a_first_plan_moves_what_is_handed_over_and_nothing_without():
    there = a_guest(0, 1)
    # All of it is on node 0 at first.
    first = window(there, halves(), 0, 1)
    handover = handed_over(halves(), 0, 1)
    moved = {}
    for name, before in (("with", prior_pages(handover, HOST, there, first)), ("without", None)):
        view = GuestView(there, absorbed(before, first), known_s=300.0 if before else 0.0)
        plan, _ = plan_auto(Snapshot(HOST, (view,), now_ns=1e9), State(), Horizon())
        moved[name] = sum(int(move.npages.sum()) for move in plan.moves)
        assert all((move.to_nid == 1).all() for move in plan.moves)
    assert moved["with"] >= 1348 and moved["without"] == 0


def test_it_fades_like_what_was_seen():
    there = a_guest(0, 1)
    quiet = window(there, None)
    pages = prior_pages(handed_over(halves(), 0, 1), HOST, there, quiet)
    sums = []
    for _ in range(HISTORY_WINDOWS):
        pages = absorbed(pages, quiet)
        entries = entries_of(pages, 1.0)
        sums.append(float(entries.heat.sum()) if entries else 0.0)
    assert sums[0] > 0 and sums == sorted(sums, reverse=True) and sums[-1] == 0


def test_who_else_uses_a_page_counts_from_the_first_window_on():
    declared = halves()
    there = a_guest(0, 1)
    first = window(there, Declared(np.where(declared.user == 0, 1, -1), declared.written), 0, 1)
    pages = absorbed(prior_pages(handed_over(declared, 0, 1), HOST, there, first), first)
    touched = touched_pages(pages.ranges[0])
    assert touched is not None
    both = touched.hva_of(np.arange(touched.entries)) < (1 << 40) + 500 * 4096
    assert (fused_use(touched).owner[both] == -1).all()


@pytest.mark.parametrize("nids", [(None, None), (None, 0)])
def test_vcpus_without_a_node_say_nothing(nids: tuple[int | None, ...]):
    handover = handed_over(halves(), 0, 1)
    there = a_guest(*nids)
    prior = prior_pages(handover, HOST, there, window(there, None))
    entries = entries_of(prior, 1.0) if prior else None
    if nids == (None, None):
        assert prior is None
        assert handover_of(HOST, there, watched(there, halves(), 0, 1), unix_s=0, known_s=0) is None
    else:
        # What vCPU 1 uses alone is listed, what vCPU 0 does is not.
        assert entries is not None and set(np.flatnonzero(entries.heat.sum(axis=0))) == {0}


def test_a_handover_of_nothing_is_none():
    there = a_guest(0, 1)
    assert prior_pages(Handover(1, 0, 0, ((0,),), ()), HOST, there, window(there, None)) is None


def test_frames_without_numbers_are_not_reported():
    guest = a_guest(0, 1, base_gfn=None)
    assert handover_of(HOST, guest, watched(guest, halves(), 0, 1), unix_s=0, known_s=0) is None
    there = a_guest(0, 1, base_gfn=None)
    prior = prior_pages(handed_over(halves(), 0, 1), HOST, there, window(there, None))
    assert prior is not None and entries_of(prior, 1.0).heat.sum() == 0  # type: ignore[union-attr]


def test_few_windows_are_not_reported():
    guest = a_guest(0, 1)
    assert handover_of(HOST, guest, watched(guest, halves(), 0, 1, windows=2), unix_s=0, known_s=0) is None


def test_a_scattered_pattern_stays_small():
    ram = RamRange(1 << 40, 1 << 20, 0, 4096, Movability.MOVABLE, "anonymous memory")
    guest = replace(a_guest(0, 1), ram=(ram,))
    chance = np.random.default_rng(3)
    accessed = np.zeros((NODES + 1, ram.npages), bool)
    accessed[0] = chance.random(ram.npages) < 0.5
    accessed[1] = ~accessed[0]
    sample = RangeSample(
        ram,
        np.ones(ram.npages, np.uint8),
        np.zeros(ram.npages, np.int8),
        np.zeros(block_count(ram), np.uint8),
        NodeBits(bits(accessed), bits(chance.random((1, ram.npages)) < 0.5)),
    )
    batch = SampleBatch(guest.name, "test", COVERAGE, 0, 10**9, HOST.nids, (sample,))
    pages: GuestPages | None = None
    for _ in range(3):
        pages = absorbed(pages, batch)
    assert pages is not None
    reported = handover_of(HOST, guest, pages, unix_s=NOW_S, known_s=1)
    assert reported is not None and len(reported.runs) <= MOST_RUNS
    assert len(handover_text(reported)) <= MOST_TEXT
    largest = Handover(
        1, 1 << 40, 1 << 40, ((0,),) * 31, (FrameRun(1 << 28, 1 << 28, (1 << 31) - 1, True, 255),) * MOST_RUNS
    )
    assert len(handover_text(largest)) <= MOST_TEXT


@pytest.mark.parametrize(
    ("age_s", "known_s"), [(0, 300), (-30, 290), (600, 150), (3601, 0), (-3601, 0), (1e12, 0)]
)
def test_what_is_old_counts_less(age_s: float, known_s: float):
    handover = Handover(1, int(NOW_S), 300, ((0,),), ())
    assert known_for_s(handover, NOW_S + age_s) == pytest.approx(known_s, rel=0.01)


def test_nobody_is_known_for_longer_than_ten_minutes():
    assert known_for_s(Handover(1, int(NOW_S), 1 << 40, ((0,),), ()), NOW_S) == 600


WRONG: tuple[object, ...] = (
    (1, 0, 0, [[0]], [[0, 0, 1, False, 0]]),
    (1, 0, 0, [[0]], [[0, 1, 2, False, 0]]),
    (1, 0, 0, [[0]], [[0, 1, 0, False, 0]]),
    (1, 0, 0, [[0]], [[-1, 1, 1, False, 0]]),
    (1, 0, 0, [[0]], [[0, 1, 1, False, 256]]),
    (1, 0, 0, [[0]], [[0, 1, 1, 1, 0]]),
    (1, 0, 0, [[0]], [[1 << 40, 1 << 40, 1, False, 0]]),
    (1, 0, 0, [[0], [0]], []),
    (1, 0, 0, [[]], []),
    (1, 0, 0, [[1 << 20]], []),
    (1, 0, 0, [[n] for n in range(32)], []),
    (1, 0, 0, [[0]], [[0, 1, 1, False, 0]] * (MOST_RUNS + 1)),
    (1, float("nan"), 0, [[0]], []),
    (2, 0, 0, [[0]], []),
    (1, 0, 0),
    {"version": 1},
)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_no_agent_writes_is_refused(wrong: object):
    with pytest.raises(OutsideError):
        parse_handover(base64.b64encode(msgspec.msgpack.encode(wrong)).decode())


@pytest.mark.parametrize("text", ["", "é", "AAAA", "A" * 100_000, "=" * 8, "\0"])
def test_what_is_no_text_of_an_agent_is_refused(text: str):
    with pytest.raises(OutsideError):
        parse_handover(text)


def test_runs_of_any_length_are_taken_without_harm():
    there = a_guest(0, 1, hva=(1 << 40) + 4096)
    chance = np.random.default_rng(4)
    for _ in range(50):
        runs = tuple(
            FrameRun(
                int(chance.choice((0, 1, 511, 1 << 30))),
                int(chance.choice((1, 512, 4000, 1 << 30))),
                1,
                True,
                9,
            )
            for _ in range(chance.integers(1, 9))
        )
        prior = prior_pages(Handover(1, 0, 0, ((0,),), runs), HOST, there, window(there, None, early=True))
        assert prior is not None
        touched = np.zeros(NPAGES, bool)
        end = 0
        for run in runs:
            start, end = end + run.gap, end + run.gap + run.npages
            touched[max(start - 1000, 0) : max(end - 1000, 0)] = True
        assert prior.ranges[0].seen[0].accessed.set_bits(NODES + 1)[0] == touched.sum()
