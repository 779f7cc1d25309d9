"""Which events of this CPU count, per thread, the accesses that DRAM served?

AMD: ls_dmnd_fills_from_sys (Zen 2: ls_refills_from_sys), loads and stores of the thread that memory of its
own node, or of another, filled.  Intel servers: mem_load_l3_miss_retired.local_dram and .remote_dram, loads
only.  Elsewhere perf's generic node-loads, which few CPUs have.

Source: tools/perf/pmu-events/arch/x86 of Linux 6.12: amdzen2 to amdzen5 cache.json (0x43, umasks 0x08 and
0x40); skylakex, cascadelakex, icelakex, sapphirerapids and graniterapids cache.json (0xd3, umasks 0x01 and
0x02).
"""

from collections.abc import Mapping
from pathlib import Path

from vmplace.errors import OutsideError
from vmplace.outside import lines, read_text, whole

RAW, HW_CACHE = 4, 3
"""linux/perf_event.h: PERF_TYPE_RAW and PERF_TYPE_HW_CACHE."""
AMD_ZEN2 = 0x17
MOST_MODEL = 0x10E
"""Of a family; a model is 8 bits (arch/x86/lib/cpu.c)."""
GENERIC = {"dram": (HW_CACHE, 6)}
LOCAL, REMOTE = "dram local", "dram remote"
"""Of the own node, and of others; a CPU that does not tell them apart has other names."""
AMD = {LOCAL: (RAW, 0x0843), REMOTE: (RAW, 0x4043)}
INTEL = {LOCAL: (RAW, 0x01D3), REMOTE: (RAW, 0x02D3)}
INTEL_SERVERS = frozenset({0x55, 0x6A, 0x6C, 0x8F, 0xCF, 0xAD, 0xAE})
"""Models of family 6: Skylake and Cascade Lake, Ice Lake, Sapphire, Emerald and Granite Rapids.

Haswell and Broadwell have such events with errata (HSM30, BDE70): their counts are not relied on.
"""


def dram_events(cpuinfo: Path = Path("/proc/cpuinfo")) -> Mapping[str, tuple[int, int]]:
    """Return perf's type and config of each event, by name; they add up to what DRAM served."""
    reported = _first_cpu(cpuinfo)
    family, model = (_number(reported.get(name, "0")) for name in ("cpu family", "model"))
    if reported.get("vendor_id") == "AuthenticAMD" and family >= AMD_ZEN2:
        return AMD
    if reported.get("vendor_id") == "GenuineIntel" and family == 6 and model in INTEL_SERVERS:
        return INTEL
    return GENERIC


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
