"""The summary that migrates with a guest: which vCPUs use which guest frames, and how hot these are.

1. vCPUs that run on one node are a group; nodes are another host's, groups are the guest's own.
2. Frames in use are listed in runs: by which groups, whether they are written, how often they are touched.
3. It is small: runs of alike frames; where these are too many, 2 MiB blocks, in which what one group uses
   cannot be distinguished from what others do; the hottest where that is too much.

It comes from another host in the domain's XML, and everybody who may define domains may write one.  So it is
checked when it is read, and is only a hint where memory belongs, within what the guest's policy allows.
Limits: what nobody touched in the last windows is left out, nor what vCPUs do that run on several nodes.
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from vmplace.errors import OutsideError
from vmplace.model.page_rates import CODES, PER_OCTAVE
from vmplace.model.pages import GuestPages, RangePages
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.touched_pages import HUGE_PAGES, TouchedPages
from vmplace.model.use_fused import fused_use
from vmplace.sampling.page_arrays import Bools
from vmplace.topology.guest import MOST_VCPU_ID, PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology

VERSION = 1
MOST_RUNS = 2048
MOST_GROUPS = 31
MOST_TEXT = 64 << 10
"""Letters; MOST_RUNS runs take 40 KiB at the most."""
MOST_GFN = 1 << 40
"""x86 has 52 bits of physical address."""
LEAST_WINDOWS = 3
MAJORITY = 0.9

Numbers = npt.NDArray[np.int64]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
VcpuId = Annotated[int, msgspec.Meta(ge=0, le=MOST_VCPU_ID)]
Group = Annotated[tuple[VcpuId, ...], msgspec.Meta(min_length=1, max_length=MOST_VCPU_ID + 1)]
Frames = Annotated[int, msgspec.Meta(ge=0, le=MOST_GFN)]


class FrameRun(msgspec.Struct, frozen=True, array_like=True):
    """``npages`` frames after ``gap`` others.

    ``users``: a bit for each group that uses them.  ``rate``: how often, in the codes of page_rates.py.
    """

    gap: Frames
    npages: Annotated[int, msgspec.Meta(ge=1, le=MOST_GFN)]
    users: Annotated[int, msgspec.Meta(ge=1, lt=1 << MOST_GROUPS)]
    written: bool
    rate: Annotated[int, msgspec.Meta(ge=0, lt=CODES)]


class Handover(msgspec.Struct, frozen=True, array_like=True):
    """What was known of a guest at ``unix_s``, after it had been watched for ``known_s``."""

    version: Literal[1]
    unix_s: Seconds
    known_s: Seconds
    groups: Annotated[tuple[Group, ...], msgspec.Meta(max_length=MOST_GROUPS)]
    runs: Annotated[tuple[FrameRun, ...], msgspec.Meta(max_length=MOST_RUNS)]


def handover_text(handover: Handover) -> str:
    """Return it as text of letters that XML leaves as they are."""
    return base64.b64encode(msgspec.msgpack.encode(handover)).decode()


def parse_handover(text: str) -> Handover:
    """Parse such a text; raises OutsideError for any other."""
    if len(text) > MOST_TEXT:
        raise OutsideError(f"a placement summary of {len(text)} letters")
    try:
        received: Handover = msgspec.msgpack.decode(base64.b64decode(text, validate=True), type=Handover)
    except (binascii.Error, ValueError, msgspec.MsgspecError) as err:
        raise OutsideError(f"no placement summary: {err}") from err
    vcpus = [vcpu for group in received.groups for vcpu in group]
    if len(set(vcpus)) != len(vcpus):
        raise OutsideError("no placement summary: a vCPU is in two groups")
    if any(run.users >> len(received.groups) for run in received.runs):
        raise OutsideError("no placement summary: a run is used by a group that there is not")
    if sum(run.gap + run.npages for run in received.runs) > MOST_GFN:
        raise OutsideError("no placement summary: its frames are beyond any guest's")
    return received


def groups_of(host: HostTopology, guest: GuestTopology) -> dict[int, tuple[int, ...]]:
    """Return the ids of the vCPUs that run on one node alone, by that node, ascending."""
    groups: dict[int, tuple[int, ...]] = {}
    for vcpu in guest.vcpus:
        nids = host.nids_of_cpus(vcpu.cpus)
        if len(nids) == 1:
            groups[nids[0]] = (*groups.get(nids[0], ()), vcpu.vcpu_id)
    return dict(sorted(groups.items())[:MOST_GROUPS])


def handover_of(
    host: HostTopology, guest: GuestTopology, pages: GuestPages, *, unix_s: float, known_s: float
) -> Handover | None:
    """Return what to hand over, None while too little is known or the source does not see nodes."""
    groups = groups_of(host, guest)
    bit_of = {nid: 1 << number for number, nid in enumerate(groups)}
    bits = np.array([bit_of.get(nid, 0) for nid in pages.nids], np.int64)
    pieces = [piece for one in pages.ranges for piece in _pieces(one, bits)]
    if not groups or not pieces:
        return None
    runs = _few(_Runs.joined(pieces))
    return Handover(1, int(unix_s), int(known_s), tuple(groups.values()), tuple(runs.encoded()))


@dataclass(frozen=True)
class _Runs:
    """Runs of guest frames, ascending: ``key`` is 2 * users + written."""

    gfn: Numbers
    npages: Numbers
    key: Numbers
    rate: Numbers

    @classmethod
    def joined(cls, parts: "list[_Runs]") -> "_Runs":
        arrays = (
            np.concatenate([getattr(one, name) for one in parts]) for name in ("gfn", "npages", "key", "rate")
        )
        whole = cls(*arrays)
        return whole.of(np.argsort(whole.gfn, kind="stable"))

    def of(self, some: Numbers | Bools) -> "_Runs":
        return _Runs(self.gfn[some], self.npages[some], self.key[some], self.rate[some])

    def merged(self) -> "_Runs":
        """Return the same with neighbours that are alike as one."""
        if not len(self.gfn):
            return self
        goes_on = (self.gfn[:-1] + self.npages[:-1] == self.gfn[1:]) & (self.key[:-1] == self.key[1:])
        goes_on &= self.rate[:-1] == self.rate[1:]
        first = np.flatnonzero(np.append(True, ~goes_on))
        return _Runs(self.gfn[first], np.add.reduceat(self.npages, first), self.key[first], self.rate[first])

    def encoded(self) -> Iterator[FrameRun]:
        end = 0
        for gfn, npages, key, rate in zip(
            self.gfn.tolist(), self.npages.tolist(), self.key.tolist(), self.rate.tolist(), strict=True
        ):
            yield FrameRun(gfn - end, npages, key >> 1, bool(key & 1), rate)
            end = gfn + npages


def _pieces(one: RangePages, bits: Numbers) -> Iterator[_Runs]:
    """Yield the entries of a range that are in use by groups; ``bits[N]``: that of each node's group."""
    if one.ram.base_gfn is None or one.history < LEAST_WINDOWS or one.sampled:
        return
    pages = touched_pages(one)
    if pages is None:
        return
    users, written = _users(pages, bits)
    used: Numbers = np.flatnonzero((users > 0) & pages.exists & (pages.node_index >= 0))
    gfn = one.ram.base_gfn + (pages.hva_of(used) - one.ram.hva) // PAGE_BYTES
    rate = _octaves(pages)[used]
    yield _Runs(gfn, pages.sizes[used].astype(np.int64), 2 * users[used] + written[used], rate)


def _users(pages: TouchedPages, bits: Numbers) -> tuple[Numbers, Bools]:
    """Return which groups use each entry, its owner's or all that use its block; and if it is written."""
    use = fused_use(pages)
    seen = np.zeros(pages.entries, np.uint32)
    for node, bit in enumerate(bits.tolist()):
        seen |= np.where(pages.touches[node] > 0, np.uint32(bit), np.uint32(0))
    of_block = np.zeros(len(pages.blocks), np.uint32)
    np.bitwise_or.at(of_block, pages.block_of(np.arange(len(seen))), seen)
    alone = bits[np.maximum(use.owner, 0)]
    users = np.where(use.owner >= 0, alone, np.where(use.shared, pages.of_block(of_block), 0))
    return users.astype(np.int64), use.written


def _octaves(pages: TouchedPages) -> Numbers:
    """Return the rate of each entry's hottest user, to a factor of two; 0 where it is not known."""
    if pages.codes is None:
        return np.zeros(pages.entries, np.int64)
    fastest = pages.codes.max(axis=0).astype(np.int64)
    return np.where(fastest > 0, fastest // PER_OCTAVE * PER_OCTAVE + PER_OCTAVE // 2, 0)


def _few(runs: _Runs) -> _Runs:
    """Return at most MOST_RUNS runs."""
    few = runs.merged()
    if len(few.gfn) > MOST_RUNS:
        few = _by_block(runs).merged()
    if len(few.gfn) > MOST_RUNS:
        hottest = np.argsort(-few.rate, kind="stable")[:MOST_RUNS]
        few = few.of(np.sort(hottest))
    return few


def _by_block(runs: _Runs) -> _Runs:
    """Return a run for each 2 MiB of frames, as most are used, or as shared by all who use any; mean rate."""
    block, at = np.unique(runs.gfn // HUGE_PAGES, return_inverse=True)
    keys, kind = np.unique(runs.key, return_inverse=True)
    total = np.zeros((len(block), len(keys)), np.int64)
    np.add.at(total, (at, kind), runs.npages)
    whole = np.bincount(at, runs.npages, len(block))
    mean = np.bincount(at, runs.npages * runs.rate, len(block)) / np.maximum(whole, 1)
    most = total.argmax(axis=1)
    clear = total[np.arange(len(block)), most] >= MAJORITY * whole
    anybody = np.zeros(len(block), np.int64)
    np.bitwise_or.at(anybody, at, runs.key)
    size = np.maximum(HUGE_PAGES, whole.astype(np.int64) // HUGE_PAGES * HUGE_PAGES)
    rate: Numbers = mean.astype(np.int64) // PER_OCTAVE * PER_OCTAVE
    return _Runs(block * HUGE_PAGES, size, np.where(clear, keys[most], anybody), rate)
