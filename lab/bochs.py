"""How does a kernel run on an emulated Intel machine: VMX, EPT with accessed and dirty bits, two NUMA nodes?

The lab's other machines are AMD's: QEMU's TCG emulates no VMX.  Bochs does, on one thread.

1. GRUB, the kernel and an initramfs become a CD, as Bochs loads no kernel by itself.
2. Bochs boots it.  The serial console is a file, and all that is known of the machine.
3. The machine runs until it has said its last line; a panic and a long silence end it, too.

Known limits: the kernel splits the memory into nodes itself (numa=fake), a CPU each: no firmware tables, no
distances.  A second inside is INSTRUCTIONS_PER_S instructions of one CPU, whatever they take outside.
"""

import os
import pty
import shutil
import subprocess
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from lab import cache, trees
from lab.build import GIB, check_machine
from lab.errors import LabError
from lab.progress import Progress, log_path
from lab.toolbox import enter_command, run_in_tree, started

MEMORY_BYTES = GIB
# A second passes when its instructions are emulated: the fewer, the sooner a sleeping task wakes up.
INSTRUCTIONS_PER_S = 40_000_000
# It has accessed and dirty bits of EPT.  Skylake has page-modification logging, too, but Bochs 3.0 then takes
# the address of posted-interrupt descriptors for malformed; without those, tasks that slept did not wake up.
CPU_MODEL = "corei7_haswell_4770"
KERNEL_COMMAND_LINE = "console=ttyS0,115200 quiet panic=0 numa=fake=2 nowatchdog"
PANIC = "Kernel panic - not syncing"
RUN = Path("/run/lab")
CONFIG = f"""\
config_interface: textconfig
display_library: term
cpu: model={CPU_MODEL}, count=2:1:1, ips={INSTRUCTIONS_PER_S}, reset_on_triple_fault=0
memory: guest={MEMORY_BYTES >> 20}, host={MEMORY_BYTES >> 20}
romimage: file=/usr/share/bochs/BIOS-bochs-latest, options=fastboot
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path={RUN}/cd.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={RUN}/serial
speaker: enabled=1, mode=none
clock: sync=none
log: {RUN}/bochs.log
info: action=ignore
error: action=ignore
panic: action=fatal
"""
LEAVES_S = 10.0
"""So long its terminal is read after its end, where something keeps it open."""
GRUB = f"""\
set timeout=0
menuentry lab {{
	linux /kernel {KERNEL_COMMAND_LINE}
	initrd /initramfs
}}
"""
# Without a terminal Bochs has no display that needs neither X nor a TCP port.
START = f"TERM=linux exec bochs -f {RUN}/bochsrc"


def run_on_bochs(  # noqa: PLR0913 - what runs, and when it is over
    kernel: Path, initramfs: Path, progress: Progress, *, name: str, last_line: str, silence_s: float
) -> tuple[str, ...]:
    """Boot a kernel, let it run up to ``last_line`` and return the lines of its serial console.

    Raises LabError if the kernel panics, if it says nothing for ``silence_s`` (seconds outside), or if the
    machine ends before it has said that line.
    """
    check_machine(disk_bytes=GIB, memory_bytes=2 * MEMORY_BYTES)
    tree = trees.bochs_root(progress)
    with cache.in_use(), cache.run_folder() as run:
        serial, screen = (log_path(f"{name}-{run.name}.{kind}") for kind in ("console", "bochs"))
        _write_cd(tree, run, kernel, initramfs, screen)
        (run / "bochsrc").write_text(CONFIG)
        serial.touch()
        command = enter_command(tree, ["sh", "-c", START], binds={run: RUN, serial: RUN / "serial"})
        with (
            progress.step(f"{name}: run on Bochs", serial),
            _terminal(screen) as end,
            started(command, stdin=end, stdout=end, stderr=end) as process,
        ):
            _wait(process, serial, last_line, silence_s)
    return console_lines(serial)


@contextmanager
def _terminal(log: Path) -> Iterator[int]:
    """Yield a terminal's end for a process; what is written to it is appended to ``log``.

    script(1) now and then ceased to take what Bochs wrote, which then waited for ever.
    """
    master, end = pty.openpty()
    # Else a byte of what is drawn could stop the output (XOFF).
    tty.setraw(end)
    thread = Thread(target=_append, args=(master, log), daemon=True)
    thread.start()
    try:
        yield end
    finally:
        os.close(end)
        thread.join(LEAVES_S)
        os.close(master)


def _append(master: int, log: Path) -> None:
    """Take what is written to a terminal until nobody has it open any more, which Linux tells by EIO."""
    with log.open("ab", buffering=0) as file, suppress(OSError):
        while taken := os.read(master, 1 << 16):
            file.write(taken)


def console_lines(serial: Path) -> tuple[str, ...]:
    """Return the lines of a serial console's file, without the carriage returns."""
    return tuple(line.rstrip() for line in serial.read_text(errors="replace").splitlines())


def _write_cd(tree: Path, run: Path, kernel: Path, initramfs: Path, log: Path) -> None:
    cd = run / "cd"
    (cd / "boot/grub").mkdir(parents=True)
    (cd / "boot/grub/grub.cfg").write_text(GRUB)
    shutil.copy(kernel, cd / "kernel")
    shutil.copy(initramfs, cd / "initramfs")
    modules = "--install-modules=linux normal iso9660 biosdisk"
    command = ["grub-mkrescue", modules, "--fonts=", "--locales=", "--themes=", "-o", f"{RUN}/cd.iso"]
    run_in_tree(tree, [*command, f"{RUN}/cd"], binds={run: RUN}, log=log)


def _wait(process: "subprocess.Popen[bytes]", serial: Path, last_line: str, silence_s: float) -> None:
    size, heard = 0, time.monotonic()
    while last_line not in (lines := console_lines(serial)):
        if any(PANIC in line for line in lines):
            raise LabError("the kernel panicked on Bochs", hint=f"serial console: {serial}")
        if process.poll() is not None and lines == console_lines(serial):
            raise LabError("the machine on Bochs ended early", hint=f"serial console: {serial}")
        if (grown := serial.stat().st_size) != size:
            size, heard = grown, time.monotonic()
        if time.monotonic() - heard > silence_s:
            raise LabError(f"Bochs was silent for {silence_s:.0f} s", hint=f"serial console: {serial}")
        time.sleep(0.5)
