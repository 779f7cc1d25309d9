"""Which events of this CPU count, per thread, the accesses that memory served?

AMD: ls_dmnd_fills_from_sys (Zen 2: ls_refills_from_sys), loads and stores of the thread that memory of its
own node, or of another, filled; with MMIO, and without what prefetchers fill.  Intel servers:
mem_load_l3_miss_retired.local_dram and .remote_dram, loads only.  Elsewhere perf's generic node-loads, which
few CPUs have.

Memory on a node without CPUs.  AMD from Zen 4 on: extension memory (CXL) has a umask of its own, which tells
no nodes apart.  It counts as remote here, as it has a node of its own under Linux; where firmware makes it a
part of a node with CPUs, this is wrong.  AMD before: tables have neither such memory nor that umask.
Intel: persistent memory has events of its own from Cascade Lake to Sapphire Rapids
(mem_load_retired.local_pmm, mem_load_l3_miss_retired.remote_pmm), which say "local" both of a node's own
memory behind a cache of DRAM and of a node without CPUs; of CXL and of HBM no table says where loads go.
Neither is counted here (``misses_cpuless``).

Limits: with several nodes in a socket (NPS, SNC), Intel's tables do not say whether these events take the
others of the socket for local, and Zen 2's says "die" rather than node.

Source: tools/perf/pmu-events/arch/x86 of Linux 6.12, event 0x43: memory.json of amdzen2 and amdzen3, umasks
0x08 and 0x40; cache.json of amdzen4 and load-store.json of amdzen5, also 0x80 (alternate_memories); amdzen1
has no such event.  Event 0xd3, umasks 0x01 and 0x02 (and 0x10: remote_pmm): cache.json of skylakex,
cascadelakex, icelakex, sapphirerapids, emeraldrapids and graniterapids.  AMD's models by generation:
arch/x86/kernel/cpu/amd.c, bsp_init_amd.
"""

from collections.abc import Mapping
from pathlib import Path

from vmplace.errors import OutsideError
from vmplace.outside import lines, read_text, whole

RAW, HW_CACHE = 4, 3
"""linux/perf_event.h: PERF_TYPE_RAW and PERF_TYPE_HW_CACHE."""
ZEN_1_2, ZEN_3_4 = 0x17, 0x19
ZEN1 = (range(0x30), range(0x50, 0x60))
ZEN3 = (range(0x10), range(0x20, 0x60))
"""Models of these families; the others are Zen 2 and Zen 4."""
MOST_MODEL = 0x10E
"""Of a family; a model is 8 bits (arch/x86/lib/cpu.c)."""
GENERIC = {"dram": (HW_CACHE, 6)}
LOCAL, REMOTE = "dram local", "dram remote"
"""Of the own node, and of others; a CPU that does not tell them apart has other names."""
AMD_ZEN2 = {LOCAL: (RAW, 0x0843), REMOTE: (RAW, 0x4043)}
AMD_ZEN4 = {LOCAL: (RAW, 0x0843), REMOTE: (RAW, 0xC043)}
"""Zen 2 and 3, and those from Zen 4 on; umasks add up, as in perf's ls_any_fills_from_sys.dram_io_all."""
INTEL = {LOCAL: (RAW, 0x01D3), REMOTE: (RAW, 0x02D3)}
INTEL_SERVERS = frozenset({0x55, 0x6A, 0x6C, 0x8F, 0xCF, 0xAD, 0xAE})
"""Models of family 6: Skylake and Cascade Lake, Ice Lake, Sapphire, Emerald and Granite Rapids.

Haswell and Broadwell have such events with errata (HSM30, BDE70): their counts are not relied on.
"""


def dram_events(cpuinfo: Path = Path("/proc/cpuinfo")) -> Mapping[str, tuple[int, int]]:
    """Return perf's type and config of each event, by name; they add up to what memory served."""
    reported = _first_cpu(cpuinfo)
    family, model = (_number(reported.get(name, "0")) for name in ("cpu family", "model"))
    if reported.get("vendor_id") == "AuthenticAMD":
        return _amd_events(family, model)
    if reported.get("vendor_id") == "GenuineIntel" and family == 6 and model in INTEL_SERVERS:
        return INTEL
    return GENERIC


def misses_cpuless(events: Mapping[str, tuple[int, int]]) -> bool:
    """Tell whether accesses to memory on nodes without CPUs may be in none of these events."""
    return events == INTEL


def _amd_events(family: int, model: int) -> Mapping[str, tuple[int, int]]:
    def is_one_of(models: tuple[range, ...]) -> bool:
        return any(model in some for some in models)

    if family < ZEN_1_2 or (family == ZEN_1_2 and is_one_of(ZEN1)):
        return GENERIC
    return AMD_ZEN2 if family < ZEN_3_4 or (family == ZEN_3_4 and is_one_of(ZEN3)) else AMD_ZEN4


def _number(text: str) -> int:
    """Return a family or model; 0, which no CPU in question has, for what is none."""
    try:
        return whole(text, most=MOST_MODEL, what="family or model of the CPU")
    except OutsideError:
        return 0


def _first_cpu(cpuinfo: Path) -> dict[str, str]:
    try:
        text = read_text(cpuinfo)
    except (OSError, OutsideError):
        return {}
    first = lines(text.partition("\n\n")[0])
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)}
