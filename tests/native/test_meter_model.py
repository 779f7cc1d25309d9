"""The meter's C parts that need no emulator: cache model, identities, arguments."""

import ctypes
import random
import subprocess
from collections.abc import Iterator
from ctypes import byref, c_bool, c_char_p, c_int, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import pytest

from tests.native.test_memory_model import Model

METER = Path(__file__).parents[2] / "lab/meter"
SOURCES = (
    "cache.c",
    "region.c",
    "arguments.c",
    "memory_model.c",
    "model_arguments.c",
    "page_counts.c",
    "backings.c",
)
EINVAL = 22
UNKNOWN = 63

Dram = tuple[int, int, bool]


class Cache(ctypes.Structure):
    _fields_ = (
        ("entries", c_void_p),
        ("hands", c_void_p),
        ("recent", c_void_p),
        ("sets", c_uint32),
        ("ways", c_uint32),
    )


class Hierarchy(ctypes.Structure):
    _fields_ = (("private_cache", ctypes.POINTER(Cache)), ("shared_cache", ctypes.POINTER(Cache)))


class DramAccess(ctypes.Structure):
    _fields_ = (("line", c_uint64), ("guest", c_uint32), ("write", c_bool))


class Level(ctypes.Structure):
    _fields_ = (("bytes", c_uint32), ("ways", c_uint32))


class Machine(ctypes.Structure):
    _fields_ = (
        ("cpu_count", c_uint32),
        ("node_count", c_uint32),
        ("private_cache", Level),
        ("shared_cache", Level),
        ("nids", c_int32 * 16),
        ("cpu_nids", c_int32 * 64),
    )


class MemoryRange(ctypes.Structure):
    _fields_ = (("start", c_uint64), ("end", c_uint64), ("nid", c_int32), ("node_index", c_uint32))


class Arguments(ctypes.Structure):
    _fields_ = (
        ("shared_path", c_char_p),
        ("pages_path", c_char_p),
        ("ram_path", c_char_p),
        ("range_count", c_uint32),
        ("ranges", MemoryRange * 64),
        ("machine", Machine),
        ("model", Model),
    )


@pytest.fixture(scope="module")
def meter(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Compile the meter's parts and return them loaded."""
    library = tmp_path_factory.mktemp("meter") / "meter.so"
    sources = [METER / name for name in SOURCES]
    flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, "-o", library, *sources], check=True, timeout=60)
    loaded = ctypes.CDLL(str(library))
    loaded.vmp_cache_touch.restype = loaded.vmp_region_add_exit.restype = c_bool
    loaded.vmp_region_is_exit.restype = c_bool
    loaded.vmp_region_map.restype = c_void_p
    loaded.vmp_region_run.restype = c_uint32
    return loaded


class Caches:
    """The C model of one CPU's caches."""

    def __init__(self, meter: ctypes.CDLL, private: tuple[int, int], shared: tuple[int, int]) -> None:
        self.meter, self.private, self.shared = meter, Cache(), Cache()
        assert meter.vmp_cache_init(byref(self.private), byref(Level(*private)), c_bool(False)) == 0
        assert meter.vmp_cache_init(byref(self.shared), byref(Level(*shared)), c_bool(True)) == 0
        self.hierarchy = Hierarchy(ctypes.pointer(self.private), ctypes.pointer(self.shared))

    def access(self, line: int, guest: int = 1, *, store: bool = False) -> list[Dram]:
        what = (c_uint64(line), c_uint32(guest), c_bool(store))
        if self.meter.vmp_cache_touch(byref(self.private), *what):
            return []
        ret = (DramAccess * 3)()
        count = self.meter.vmp_hierarchy_miss(byref(self.hierarchy), *what, ret)
        return [(one.line, one.guest, one.write) for one in ret[:count]]


class ReferenceCache:
    """One level, as cache.h words it: second chance, the hand stays behind what it replaced."""

    def __init__(self, size_bytes: int, ways: int) -> None:
        sets = size_bytes // 64 // ways
        self.lines: list[list[int | None]] = [[None] * ways for _ in range(sets)]
        self.touched: list[set[int]] = [set() for _ in range(sets)]
        self.dirty: dict[int, int] = {}
        self.hands = [0] * sets

    def touch(self, line: int) -> bool:
        at = line % len(self.lines)
        if line in self.lines[at]:
            self.touched[at].add(line)
            return True
        return False

    def insert(self, line: int) -> tuple[int, int] | None:
        """Replace; return (line, guest) of what was pushed out dirty."""
        at = line % len(self.lines)
        ways, touched = self.lines[at], self.touched[at]
        while (old := ways[self.hands[at]]) in touched:
            touched.discard(old)
            self.hands[at] = (self.hands[at] + 1) % len(ways)
        ways[self.hands[at]] = line
        self.hands[at] = (self.hands[at] + 1) % len(ways)
        return (old, self.dirty.pop(old)) if old is not None and old in self.dirty else None


class ReferenceCaches:
    def __init__(self, private: tuple[int, int], shared: tuple[int, int]) -> None:
        self.private, self.shared = ReferenceCache(*private), ReferenceCache(*shared)

    def access(self, line: int, guest: int, *, store: bool) -> list[Dram]:
        dram: list[Dram] = []
        if not self.private.touch(line):
            self._fill(line, guest, dram)
        if store:
            self.private.dirty[line] = guest
        return dram

    def _fill(self, line: int, guest: int, dram: list[Dram]) -> None:
        pushed = self.private.insert(line)
        if pushed and not self.shared.touch(pushed[0]):
            self._insert_shared(pushed[0], dram)
        if pushed:
            self.shared.dirty[pushed[0]] = pushed[1]
        if not self.shared.touch(line):
            dram.append((line, guest, False))
            self._insert_shared(line, dram)

    def _insert_shared(self, line: int, dram: list[Dram]) -> None:
        written = self.shared.insert(line)
        if written:
            dram.append((*written, True))


SMALL = ((4096, 4), (16384, 8))


@pytest.mark.parametrize("seed", range(8))
def test_cache_model_does_what_the_reference_does(meter: ctypes.CDLL, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    model, reference = Caches(meter, *SMALL), ReferenceCaches(*SMALL)
    for step in range(20000):
        line = rng.choice((rng.randrange(4), rng.randrange(40), rng.randrange(600), step % 3000))
        guest, store = rng.choice((1, 1, 1, 2, 63)), rng.random() < 0.3
        assert model.access(line, guest, store=store) == reference.access(line, guest, store=store), step


def test_what_fits_the_shared_cache_is_fetched_once(meter: ctypes.CDLL) -> None:
    caches = Caches(meter, (256 << 10, 8), (2 << 20, 16))
    lines = (2 << 20) // 64
    passes = [sum(len(caches.access(line)) for line in range(lines)) for _ in range(3)]
    assert passes == [lines, 0, 0]


def test_a_stream_of_stores_is_fetched_and_written_back(meter: ctypes.CDLL) -> None:
    caches = Caches(meter, (256 << 10, 8), (2 << 20, 16))
    dram = [one for line in range(1 << 18) for one in caches.access(line, 7, store=True)]
    assert sum(not write for _, _, write in dram) == 1 << 18
    # What is written, but not yet written back, fits in the caches.
    assert (1 << 18) - (2304 << 10) // 64 <= sum(write for _, _, write in dram) < 1 << 18
    assert {guest for _, guest, write in dram if write} == {7}


def test_a_write_back_counts_for_the_guest_that_wrote(meter: ctypes.CDLL) -> None:
    caches = Caches(meter, *SMALL)
    caches.access(0, 5, store=True)
    dram = [one for line in range(1, 4000) for one in caches.access(line, 9)]
    assert [one for one in dram if one[2]] == [(0, 5, True)]


@pytest.mark.parametrize(("size_bytes", "ways"), [(3 * 64 * 8, 8), (4096, 0), (64, 2), (64 * 300, 300)])
def test_an_impossible_cache_is_refused(meter: ctypes.CDLL, size_bytes: int, ways: int) -> None:
    assert meter.vmp_cache_init(byref(Cache()), byref(Level(size_bytes, ways)), c_bool(True)) == -EINVAL


@pytest.fixture
def region(meter: ctypes.CDLL, tmp_path: Path) -> Iterator[c_void_p]:
    address = meter.vmp_region_map(str(tmp_path / "shared").encode())
    assert address
    yield c_void_p(address)
    ctypes.CDLL(None).munmap(c_void_p(address), c_uint64(2 << 20))


def runs_as(meter: ctypes.CDLL, region: c_void_p, vmcb: int) -> int:
    guest: int = meter.vmp_region_run(region, c_uint64(vmcb))
    return guest


def test_a_vcpu_is_unknown_until_it_says_whose_it_is(meter: ctypes.CDLL, region: c_void_p) -> None:
    before = runs_as(meter, region, 0x5000)
    meter.vmp_region_identify(region, c_uint64(0x5000), c_uint32(3))
    assert (before, runs_as(meter, region, 0x5000), runs_as(meter, region, 0x6000)) == (UNKNOWN, 3, UNKNOWN)


def test_a_vcpu_that_falls_silent_is_forgotten(meter: ctypes.CDLL, region: c_void_p) -> None:
    meter.vmp_region_identify(region, c_uint64(0x5000), c_uint32(3))
    seen = [runs_as(meter, region, 0x5000) for _ in range(200_001)]
    meter.vmp_region_identify(region, c_uint64(0x5000), c_uint32(4))
    assert (seen[-2], seen[-1], runs_as(meter, region, 0x5000)) == (3, UNKNOWN, 4)


def test_hundreds_of_vcpus_are_kept_apart(meter: ctypes.CDLL, region: c_void_p) -> None:
    rng = random.Random(1)  # noqa: S311
    owners = {page << 12: 1 + i % 62 for i, page in enumerate(rng.sample(range(1, 1 << 20), 500))}
    for vmcb, guest in owners.items():
        meter.vmp_region_identify(region, c_uint64(vmcb), c_uint32(guest))
    assert {vmcb: runs_as(meter, region, vmcb) for vmcb in owners} == owners


def test_exits_are_learnt_once(meter: ctypes.CDLL, region: c_void_p) -> None:
    address = c_uint64(0xFFFFFFFF81000003)
    news = [meter.vmp_region_add_exit(region, address) for _ in range(2)]
    assert (news, meter.vmp_region_is_exit(region, address)) == ([True, False], True)
    assert not meter.vmp_region_is_exit(region, c_uint64(0))


def parse(meter: ctypes.CDLL, *arguments: str) -> tuple[int, Arguments]:
    ret, texts = Arguments(), (c_char_p * len(arguments))(*(one.encode() for one in arguments))
    return meter.vmp_arguments_parse(c_int(len(arguments)), texts, byref(ret)), ret


def test_arguments_describe_sparse_nodes_with_a_hole(meter: ctypes.CDLL) -> None:
    memory = "memory=0-0x80000000@5:0x100000000-0x180000000@5:0x180000000-0x200000000@2"
    status, parsed = parse(meter, "shared=/dev/shm/x", memory, "cpus=0:2:5", "private=64K/4", "llc=1M/8")
    machine = parsed.machine
    assert (status, parsed.shared_path, list(machine.nids[:3])) == (0, b"/dev/shm/x", [2, 5, -1])
    assert [(r.end, r.nid, r.node_index) for r in parsed.ranges[:3]] == [
        (0x80000000, 5, 1),
        (0x180000000, 5, 1),
        (0x200000000, 2, 0),
    ]
    assert list(machine.cpu_nids[:4]) == [0, 2, 5, -1]
    assert (machine.private_cache.bytes, machine.shared_cache.ways) == (65536, 8)


class PageCounts(ctypes.Structure):
    _fields_ = (("counts", ctypes.POINTER(c_uint32)), ("npages", c_uint64))


def test_accesses_count_for_their_page_and_cpu_and_those_in_a_hole_for_none(
    meter: ctypes.CDLL, tmp_path: Path
) -> None:
    path = tmp_path / "pages"
    memory = "memory=0-0x2000@0:0x100000000-0x100004000@1"
    _, parsed = parse(meter, "shared=/dev/shm/x", f"pages={path}", memory, "cpus=0:1")
    pages = PageCounts()
    found = meter.vmp_page_counts_map(str(path).encode(), ctypes.byref(parsed), ctypes.byref(pages))
    for cpu, address in [(0, 0x1FFF), (1, 0x100003000), (1, 0x100003FFF), (1, 0x2000), (0, 0x100004000)]:
        at = ctypes.byref(pages), ctypes.byref(parsed), c_uint32(cpu), c_uint64(address)
        meter.vmp_page_counts_add(*at)
    counts = np.fromfile(path, np.uint32).reshape(2, 6)
    assert (found, pages.npages, counts.tolist()) == (0, 6, [[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 2]])


@pytest.mark.parametrize(
    "wrong",
    [
        *["memory=0-@0", "memory=5-5@0", "memory=0-1@0:", "memory=0-1@-2", "cpus=", "cpus=0:x", "llc=2M"],
        *["llc=2G/16", "private=-1/8", "colour=blue", "shared=", "memory", ""],
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    meter: ctypes.CDLL, capfd: pytest.CaptureFixture[str], wrong: str
) -> None:
    status, _ = parse(meter, "shared=x", "memory=0-4096@0", "cpus=0", wrong)
    ctypes.CDLL(None).fflush(None)
    assert status == -EINVAL
    assert f"'{wrong}'" in capfd.readouterr().err


def test_too_many_cpus_or_ranges_are_refused(meter: ctypes.CDLL) -> None:
    ranges = "memory=" + ":".join(["0-1@0"] * 65)
    assert parse(meter, "shared=x", ranges, "cpus=0")[0] == -EINVAL
    assert parse(meter, "shared=x", "memory=0-1@0", "cpus=" + ":".join(["0"] * 65))[0] == -EINVAL


def test_a_region_of_another_version_is_emptied(meter: ctypes.CDLL, region: c_void_p) -> None:
    assert region.value
    words = (c_uint8 * (2 << 20)).from_address(region.value)
    meter.vmp_region_describe(region, byref(Machine(cpu_count=2)))
    words[8], words[4096] = 99, 7
    meter.vmp_region_describe(region, byref(Machine(cpu_count=2)))
    assert (words[8], words[4096]) == (4, 0)


class Backing(ctypes.Structure):
    _fields_ = (("start", c_size_t), ("end", c_size_t), ("node_index", c_uint32))


class Backings(ctypes.Structure):
    _fields_ = (("count", c_size_t), ("backings", Backing * 64))


MAPS = """\
7f0000000000-7f0080000000 rw-s 00000000 00:2a 3  /run/ram/node5
7f0080000000-7f0080001000 r--p 00000000 00:00 0
7f0090000000-7f00a0000000 rw-s 00000000 00:2a 4  /run/ram/node2
7f00b0000000-7f00c0000000 rw-s 00000000 00:2a 5  /run/ram/node3
7f00c0000000-7f00d0000000 rw-s 00000000 00:2a 6  /run/ram/node2.old
"""


def test_an_address_of_the_emulator_is_on_the_node_whose_file_is_mapped_there(meter: ctypes.CDLL) -> None:
    machine, found = Machine(node_count=2), Backings()
    machine.nids[:2] = (2, 5)
    libc = ctypes.CDLL(None)
    libc.fmemopen.restype = c_void_p
    maps = c_void_p(libc.fmemopen(MAPS.encode(), c_size_t(len(MAPS)), b"r"))
    meter.vmp_backings_read(maps, b"/run/ram/node", byref(machine), byref(found))
    addresses = (
        0x7F0000000000,
        0x7F007FFFFFFF,
        0x7F0080000000,
        0x7F0090000000,
        0x7F00B0000000,
        0x7F00C0000000,
    )
    nodes = [meter.vmp_backings_find(byref(found), c_void_p(address)) for address in addresses]
    assert nodes == [1, 1, -1, 0, -1, -1]
