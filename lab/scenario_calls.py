"""How long was the longest call that moved or copied pages?  By the kernel's tracepoints, for all alike.

1. Calls are move_pages, migrate_pages and mbind; and the ioctls by which the agent moves pages, makes copies
   and drops them on a kernel with kvm-patches/.  Of all other ioctls nothing is noted.
2. move_pages without nodes only asks where pages are: it does not count.

Kernel balancing moves pages as tasks fault: it makes no calls.
"""

from lab.machine import LabHost

TRACING = "/sys/kernel/tracing"
_SYSCALLS = f"{TRACING}/events/syscalls"
COPIED = "instances/copies"
"""A buffer of its own: what KVM does to copies of guests' pages is counted there."""
CALLS = ("move_pages", "migrate_pages", "mbind", "ioctl")
MOVE, REPLICATE, COLLAPSE = 0xC010AEFE, 0xC018AEFC, 0xC018AEFD
"""KVM_PLACEMENT_MOVE and so on (kvm-patches/kvm_placement.h)."""
_EVENTS = " ".join(f"{_SYSCALLS}/sys_{end}_{call}" for call in CALLS for end in ("enter", "exit"))
_ENTERED = " || ".join(f"cmd == {number:#x}" for number in (MOVE, REPLICATE, COLLAPSE))
# An exit does not say of which ioctl: those of VMMs would fill the buffer.
_FILTERS = {"sys_enter_ioctl": _ENTERED, "sys_exit_ioctl": 'comm ~ "vmplace*" || comm ~ "python*"'}
_FILTER = "\n".join(
    f"[ ! -d {_SYSCALLS}/{event} ] || echo '{words}' >{_SYSCALLS}/{event}/filter || exit 1"
    for event, words in _FILTERS.items()
)
START = f"""mountpoint -q {TRACING} || mount -t tracefs tracefs {TRACING} || exit 0
echo 8192 >{TRACING}/buffer_size_kb; echo >{TRACING}/trace
{_FILTER}
for event in {_EVENTS}; do [ ! -d $event ] || echo 1 >$event/enable; done
mkdir -p {TRACING}/{COPIED}; echo 64 >{TRACING}/{COPIED}/buffer_size_kb
for event in replicate collapse; do
	one={TRACING}/{COPIED}/events/kvm_placement/kvm_placement_$event
	[ ! -d $one ] || echo 1 >$one/enable
done"""
# A line: "   python3-512     [003] .....   30.125: sys_move_pages(pid: ...", or "... sys_move_pages -> 0x0".
LONGEST = f"""awk '
match($0, /-[0-9]+ +\\[/) {{ tid = substr($0, RSTART + 1) + 0 }}
match($0, / [0-9]+\\.[0-9]+: sys_/) {{ at = substr($0, RSTART + 1) + 0 }}
/: sys_[a-z_]+\\(/ && !/ nodes: 0[,)]/ {{ began[tid] = at }}
/: sys_[a-z_]+ -> / && (tid in began) {{
	took = at - began[tid]; delete began[tid]; calls++
	if (took > longest) longest = took
}}
END {{ printf "%d %.6f ", calls, longest }}' {TRACING}/trace
cat {TRACING}/per_cpu/*/stats | awk '$1 == "overrun:" {{ lost += $2 }} END {{ print lost + 0 }}'
for event in {_EVENTS}; do [ ! -d $event ] || echo 0 >$event/enable; done"""
NO_TRACEPOINTS = "this kernel has no tracepoints of system calls"
OVERRUN = "its calls were more than the kernel's buffer holds"
NO_CALLS = "it made no call that moves pages"


def start_tracing(host: LabHost) -> None:
    """Have the kernel note each call that moves pages, and count what KVM does to copies, where it can."""
    host.run(START)


def longest_call_ms(host: LabHost) -> tuple[float | None, str]:
    """Return the longest call since then in ms, or None and why there is no answer."""
    if host.run(["test", "-d", _SYSCALLS], check=False).returncode:
        return None, NO_TRACEPOINTS
    return parse_longest(host.run(LONGEST).stdout)


def parse_longest(said: str) -> tuple[float | None, str]:
    """Return what "COUNT SECONDS LOST" says."""
    count, seconds, lost = said.split()
    if int(lost):
        return None, OVERRUN
    return (float(seconds) * 1e3, "") if int(count) else (None, NO_CALLS)
