"""What do the kernel's tracepoints say of calls?  On lines as Linux 6.12 writes them."""

import subprocess
from pathlib import Path

import pytest

from lab.scenario_calls import (
    COLLAPSE,
    LONGEST,
    MOVE,
    NO_CALLS,
    OVERRUN,
    REPLICATE,
    START,
    TRACING,
    parse_longest,
)

TRACE = """\
# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
         vmplace-512     [003] .....   130.125000: sys_move_pages(pid: 1c2, nr_pages: 200, pages: 7f)
    CPU 0/KVM-tcg-77     [001] .....   130.126000: sys_migrate_pages(pid: 1c2, maxnode: 401, old_nodes: 1)
         vmplace-512     [002] .....   130.165500: sys_move_pages -> 0x0
    CPU 0/KVM-tcg-77     [001] .....   130.126500: sys_migrate_pages -> 0x12
         vmplace-512     [002] .....   130.300000: sys_move_pages -> 0x0
"""
ASKS = """\
   vmplace-apart-9  [003] .....   1.000000: sys_move_pages(pid: 1c2, nr_pages: 2, pages: 7f, nodes: 0, s: 7e)
   vmplace-apart-9  [003] .....   9.000000: sys_move_pages -> 0x0
"""
MOVES = """\
         vmplace-7  [003] .....   4.000000: sys_ioctl -> 0x0
         vmplace-7  [003] .....   5.000000: sys_ioctl(fd: 9, cmd: c010aefe, arg: 7f)
         vmplace-7  [003] .....   5.110000: sys_ioctl -> 0x0
         vmplace-7  [003] .....   9.000000: sys_ioctl -> 0x0
"""


def longest(tmp_path: Path, trace: str, overrun: int = 0) -> tuple[float | None, str]:
    (tmp_path / "trace").write_text(trace)
    for cpu in range(2):
        (tmp_path / f"per_cpu/cpu{cpu}").mkdir(parents=True)
        (tmp_path / f"per_cpu/cpu{cpu}/stats").write_text(
            f"entries: 9\noverrun: {cpu * overrun}\ndropped events: 0\n"
        )
    script = LONGEST.replace(TRACING, str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return parse_longest(done.stdout)


def test_a_calls_length_is_from_its_entry_to_its_exit_on_one_thread(tmp_path: Path):
    assert longest(tmp_path, TRACE)[0] == pytest.approx(40.5)


def test_calls_that_only_ask_do_not_count(tmp_path: Path):
    assert longest(tmp_path, ASKS) == (None, NO_CALLS)


def test_the_agents_moves_by_ioctl_count(tmp_path: Path):
    """Only exits are noted of its other ioctls."""
    assert longest(tmp_path, MOVES)[0] == pytest.approx(110.0)


def test_calls_that_the_buffer_lost_are_no_answer(tmp_path: Path):
    assert longest(tmp_path, TRACE, overrun=3) == (None, OVERRUN)


def test_the_traced_ioctls_are_those_that_move_copy_and_drop(tmp_path: Path):
    source, program = tmp_path / "numbers.c", tmp_path / "numbers"
    source.write_text(
        '#include <stdio.h>\n#include "kvm_placement.h"\nint main(void)\n{\n'
        'printf("%x %x %x", KVM_PLACEMENT_MOVE, KVM_PLACEMENT_REPLICATE, KVM_PLACEMENT_COLLAPSE);\n}\n'
    )
    subprocess.run(["gcc", "-I", "kvm-patches", str(source), "-o", str(program)], check=True, timeout=60)
    numbers = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout
    assert [int(number, 16) for number in numbers.split()] == [MOVE, REPLICATE, COLLAPSE]
    assert all(f"cmd == {number:#x}" in START for number in (MOVE, REPLICATE, COLLAPSE))


def test_no_calls_are_no_answer(tmp_path: Path):
    assert longest(tmp_path, TRACE[:60]) == (None, NO_CALLS)
