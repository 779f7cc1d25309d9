"""Typed stub of the C core.  Arrays must be C-contiguous and of exactly the stated item type.

Every function that waits on the kernel releases the GIL.  Failures raise OSError with the kernel's errno;
a buffer of another item type is a TypeError, buffers of different lengths are a ValueError.
"""

import mmap
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
I8: TypeAlias = npt.NDArray[np.int8]
F64: TypeAlias = npt.NDArray[np.float64]
U64: TypeAlias = npt.NDArray[np.uint64]
I32: TypeAlias = npt.NDArray[np.int32]

def learn_shares(likely: F64, pages: F64, shares: F64, rates: int, rounds: int) -> None:
    """Rounds of expectation and maximisation, in place: ``shares[K, rates]``, of each kind by itself.

    ``likely[rates, A]``: the chance of each of at most 64 answers at a rate; ``pages[K, A]``: how many pages
    gave it.  A kind without pages keeps its shares.  Shapes that do not fit raise ValueError.
    """

def touch_rate_count(codes: U8, shown: U64, counts: U64) -> None:
    """Add to ``counts[256, R + 1]`` how many pages have each code and answer.

    ``shown[R, words]``: a bit per page, 64 in a word, for each of R readings; a reading shows all that those
    before it did.  A page's answer is the first reading that showed it, or R.  Shapes that do not fit raise
    ValueError.
    """

def touch_rate_step(codes: U8, shown: U64, table: U8) -> None:
    """In place: ``codes[page] = table[codes[page], answer]``; ``table[256, R + 1]``."""

def queue_length(rho: F64, knee: float, load: F64, slope: F64) -> None:
    """Fill ``load`` with rho / (1 - rho), beyond the knee its tangent there, and ``slope`` with its slope."""

def place_traffic(heat: F64, places: I8, traffic: F64) -> None:
    """Add up ``heat[P, N]`` by node and by the page's place: ``traffic[N, N]`` is overwritten.

    ``places`` (int8): a node index; -1: not in memory, counts nowhere; -2: a copy on every node, counts as
    local.  Other places raise ValueError.
    """

def place_costs(heat: F64, places: I8, prices: F64, costs: F64) -> None:
    """Fill ``costs[P]`` with what the accesses ``heat[P, N]`` to each page cost at its place.

    ``prices[N, N]``: of an access by (node, place).  Copies are accessed locally; a page that is not in
    memory costs nothing.
    """

def place_cheapest(
    heat: F64, places: I8, prices: F64, memory: U8, move_price: F64, copy_price: F64, best: I8
) -> None:
    """Fill ``best`` with the place at which each page's accesses, and its way there, cost least.

    ``prices[N, N]``: of an access by (node, place); ``memory[N]``: 0 where no page can be.
    ``move_price[P]``: of a change of place; ``copy_price[P]``: of all copies of the page, infinite where it
    may have none.  A page with a row of zeros in ``heat``, and one that is not in memory, stays.  Of equal
    places the lowest is taken.
    """

def read_pagemap(fd: int, hva: int, entries: U64) -> int:
    """Fill ``entries`` (uint64, one per 4 KiB page from ``hva``) from an open /proc/PID/pagemap.

    Returns the number of entries read; fewer than asked means the address space ended (0: the process did).
    """

def folio_heads(kpageflags_fd: int, pfns: U64, heads: U64) -> None:
    """heads[i] = pfn of the head of the folio of frame ``pfns[i]`` (both uint64), by /proc/kpageflags.

    0 where the idle bitmap never answers (pfn 0, hugetlb).  A frame that is no guest's own (zero page,
    unplugged) is set to 0 in ``pfns``, too.  Fastest when ascending in runs.
    """

def idle_mark(bitmap_fd: int, pfns: U64) -> int:
    """Set the idle bit of the frames ``pfns`` (uint64; 0 = skip) in an open page_idle/bitmap.

    Needs no order, is fastest when ascending in runs.  Returns how many 64-frame words were written.
    """

def idle_collect(bitmap_fd: int, pfns: U64, accessed: U8) -> int:
    """accessed[i] = 1 where the idle bit of frame ``pfns[i]`` is clear (touched), else 0; 0 for pfn 0.

    Tails of a folio always read as touched: ask for heads.  Returns how many were touched.
    """

def drain_lru() -> None:
    """Make the kernel put lately faulted pages of all CPUs on the LRU, where the idle bitmap sees them."""

def move_pages(pid: int, hvas: U64, nids: I32, status: I32, all_owners: bool = False) -> int:
    """Move pages ``hvas`` (uint64) of process ``pid`` to ``nids`` (int32); see move_pages(2).

    ``status`` (int32) gets each page's node or -errno; entries the kernel did not reach keep their value.
    Pages that other processes map, too, move only with ``all_owners`` (MPOL_MF_MOVE_ALL, CAP_SYS_NICE).
    Returns the call's duration in ns; a positive return of the system call is not an error.
    """

def page_nids(pid: int, hvas: U64, status: I32) -> None:
    """Fill ``status`` (int32) with the node of each page, or -errno (-ENOENT: not present)."""

def measure_streams(
    cpus: I32, chased_mib: I32, only: I32, nids: I32, bytes_each: int, duration_ms: int, read_bytes: U64,
    spent_ns: U64,
) -> None:  # fmt: skip
    """Let a thread on each of ``cpus`` read memory of its own on all of ``nids`` in turn, all at once.

    Where ``chased_mib``, a power of two, is not 0 it reads a line of 64 bytes of so many MiB at a time, each
    after the one before: what it spends on a line is the latency of memory.  ``only``: the index of the one
    node that a thread reads, -1: all.  ``bytes_each``: memory of a thread that streams, on each node, at
    least 1 MiB.  Adds to ``read_bytes`` and ``spent_ns`` (CPU time), both by [CPU, node].  OSError: EINVAL
    for a CPU or node that this process may not use.
    """

def rows_alike(rows: U8, alike: U8) -> None:
    """Fill in which rows, as many as ``alike`` has items and all of one length, are of equal bytes: 1."""

Rows: TypeAlias = tuple[U8, U8, I32, U8, int]
"""``value``, ``mixed``, ``before``, ``detail`` and ``width`` of BlockRows (sampling/block_rows.py)."""

def rows_some(rows: Rows, which: U64, found: U8) -> None:
    """Fill ``found[n, width]`` with the rows ``which[n]``; IndexError for one that is not there."""

def rows_used(rows: Rows, which: U64, used: U8) -> int:
    """Fill in which of the rows are not of zeros: 1; return how many that are."""

def rows_bits(several: tuple[Rows, ...], which: U64, step: int, bits: I32) -> None:
    """Fill in how many bits are set in each ``step``-th byte of the rows ``which[n]``, the first included.

    Those of ``several`` are added up.
    """

def rows_kinds(several: tuple[Rows, ...], used: U8, uneven: U8) -> None:
    """Fill in which rows of bits are not of zeros, and which neither all set nor all clear, in any: 1."""

def windows_marks(
    windows: tuple[Rows, ...], blocks: int, plane: int, apart: U64, whole: U64, marks: U8
) -> bool:
    """Fill in a byte for each page of the blocks ``apart``, and then for each block ``whole``.

    Bit w is set where window w, of at most eight, has the page's bit, or any of the block's.  ``plane``: of
    the planes of ``blocks`` rows of 64 bytes; -1: of any.  Returns whether there is a bit.
    """

def placement_open(pid: int, vm_fd: int) -> int:
    """Return a new placement fd of the VM that is descriptor ``vm_fd`` of process ``pid``.

    ENOTTY: KVM is not patched.  EPERM: CAP_SYS_ADMIN and ptrace access are needed.  ESRCH: the process ended.
    """

def placement_info(
    fd: int,
) -> tuple[int, int, int, int, int, list[tuple[int, int, int, int, int, int]], list[tuple[int, int, int]]]:
    """Return (features, nodes, root_nodes, pinned_pages, vm_flags, slots, vcpus), see kvm_placement.h.

    A slot is (base_gfn, npages, hva, slot, flags, backing), a vCPU is (vcpu_id, tid, nid).
    """

def placement_roots(fd: int, nodes: int, populate: bool) -> int:
    """Give the nodes of bitmap ``nodes`` roots of their own (0: none); return the mappings copied."""

def placement_harvest(
    fd: int, gfn: int, npages: int, page: int, nids: I32, accessed: U64, written: U64, clear: bool
) -> bool:
    """OR what was touched in ``[gfn, gfn + npages)`` into bitmaps with a bit per page; gfn is bit ``page``.

    Both bitmaps have a row for each of ``nids`` and a last one for nodes that are not among them.  ``clear``
    takes the bits off and flushes TLBs.  Returns False if writes were not seen: dirty logging is on.
    """

def placement_replicate(fd: int, nodes: int, gfns: U64, npages: I32, done: I32, status: I32) -> int:
    """Replicate ranges of guest frames on the nodes of bitmap ``nodes``, or collapse them if that is 0.

    Per range, ``done`` gets the pages that are now as asked for, ``status`` why the first of the others is
    not (KVM_PLACEMENT_*, 0 = all are).  Returns how many ranges were handled: fewer after a signal.
    """

def placement_move(fd: int, gfns: U64, nids: I32, npages: I32, status: I32, flags: int) -> int:
    """Move guest frames ``gfns`` to ``nids``; ``flags`` are KVM_PLACEMENT_MOVE_*.

    Per frame, ``status`` gets KVM_PLACEMENT_* (0: it is there now), ``npages`` how many frames moved with it;
    entries that the kernel did not reach, after a signal, keep their values.  Returns the duration in ns.
    """

def placement_hints(fd: int, spans: U64, budget: int, period_ms: int, nr_entries: int) -> None:
    """Arm hint faults in ``spans`` (uint64, shape (n, 2): first guest frame, pages) at ``budget`` mappings/s.

    A mapping stays armed for ``period_ms``.  Records go to a ring of ``nr_entries``, which is mapped from
    the fd: 4096 + 32 * nr_entries bytes.  ``budget`` 0 takes all off.  EBUSY: another placement fd has some.
    """

def placement_drain(ring: mmap.mmap | U8, table: U64) -> tuple[int, int, int]:
    """Take records out of a mapped ring of hint faults into the rows of ``table``, from the front.

    ``table`` (uint64, shape (6, room)): guest physical address, time (ns of CLOCK_MONOTONIC), vCPU id, nid,
    flags, level (kvm_placement.h).  Returns how many that are, and so far: records that KVM had to drop for
    want of place, mappings armed.  EBADMSG: the ring was damaged; it is empty then.
    """

def perf_open(type: int, config: int, period: int, cpu: int) -> int:
    """Open a disabled sampling event on one CPU, for all its processes; see perf_event_open(2).

    Its samples have what ``perf_drain`` takes out of them.  Returns the descriptor, for mmap and ioctl.
    """

def perf_count(type: int, config: int, tid: int) -> int:
    """Open an event that counts one thread from now on, on whatever CPU it runs; see perf_event_open(2).

    Returns the descriptor.  24 bytes read from it are three uint64: the count, the ns that the event was
    wanted, and the ns of these that a counter of the hardware was free for it.
    """

def perf_drain(ring: mmap.mmap | U8, table: U64) -> tuple[int, int, int]:
    """Take samples out of the ring of an event of ``perf_open``: control page and 2^n pages, all mapped.

    Fills the rows of ``table`` (uint64, shape (5, room)) from the front, until they are full or the ring is
    empty, and frees the place of what was taken: physical address (0 = none), weight (latency in cycles, 0 =
    none), union perf_mem_data_src, tid, CPU.  Returns how many samples that are, how many the kernel had to
    drop for want of place, and how often it throttled the event.  EBADMSG: a record that cannot be; the ring
    is empty then.
    """

def perf_trace(config: int, tid: int) -> int:
    """Open an event that records each time a thread passes trace point ``config``; see perf_event_open(2).

    A record has the time (CLOCK_MONOTONIC) and what the trace point tells.  It goes to a ring that the kernel
    writes over, from its end to its front.  Map that to be read only; returns the descriptor.
    """

def perf_newest(ring: mmap.mmap | U8, content: U8) -> int:
    """Copy records out of the ring of an event of ``perf_trace``, the newest first; nothing is taken out.

    ``content`` is as long as the ring's data.  Returns how many bytes of it are good; the last record of them
    may be cut short.
    """
