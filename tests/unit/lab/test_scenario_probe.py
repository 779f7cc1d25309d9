"""What the kernel of the emulated host says is read right."""

import subprocess
from pathlib import Path

from lab.scenario_calls import COPIED
from lab.scenario_probe import (
    moved_bytes,
    parse_process_time,
    parse_vcpu_cpus,
    parse_vmstat,
    progress_command,
)

# proc_pid_stat(5): fields 14, 15 are utime, stime in ticks of 10 ms; field 39 is the CPU.
STAT = (
    "{tid} ({comm}) S "
    + " ".join(str(i) for i in range(4, 14))
    + " 250 50 "
    + " ".join(str(i) for i in range(16, 39))
    + " {cpu} 0 0"
)


def test_vcpu_threads_are_distinguished_from_others_by_name() -> None:
    threads = [STAT.format(tid=9, comm="CPU 1/KVM", cpu=6), STAT.format(tid=8, comm="qemu (x) y", cpu=2)]
    assert parse_vcpu_cpus("\n".join(["guest web", *threads, "guest gone"])) == {"web": {1: 6}, "gone": {}}


def test_cpu_time_is_in_seconds() -> None:
    assert parse_process_time(STAT.format(tid=9, comm="a) b", cpu=0)).total_s == 3.0


def test_moved_bytes_are_the_kernels_pages() -> None:
    before, after = parse_vmstat("pgmigrate_success 10\nnr_dirty 3\n"), parse_vmstat("pgmigrate_success 12\n")
    assert moved_bytes(before, after) == 8192


def test_without_the_kernels_counter_moved_bytes_are_unknown() -> None:
    assert moved_bytes({}, {"pgmigrate_success": 1}) is None


def test_copies_are_progress_also_those_that_the_buffer_had_no_room_for(tmp_path: Path) -> None:
    def progress() -> list[str]:
        words = ["sh", "-c", progress_command(str(tmp_path))]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()

    # A kernel without the events: nothing is copied.
    assert progress()[-1] == "0"
    for cpu, (entries, overrun) in enumerate([(5, 0), (7, 90)]):
        folder = tmp_path / COPIED / "per_cpu" / f"cpu{cpu}"
        folder.mkdir(parents=True)
        # As Documentation/trace/ftrace.rst has it.
        (folder / "stats").write_text(
            f"entries: {entries}\noverrun: {overrun}\ncommit overrun: 3\nbytes: 9\n"
        )
    assert progress()[-1] == "102"
