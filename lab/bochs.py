"""How does a kernel run on an emulated Intel machine: VMX, EPT with accessed and dirty bits, two NUMA nodes?

The lab's other machines are AMD's: QEMU's TCG emulates no VMX.  Bochs does, on one thread.

1. GRUB, the kernel and an initramfs become a CD, as Bochs loads no kernel by itself.
2. Bochs boots it.  The serial console is a file, and all that is known of the machine.
3. The machine runs until it has said its last line; a panic and a long silence end it, too.

Known limits: the kernel splits the memory into nodes itself (numa=fake), a CPU each: no firmware tables, no
distances.  A second inside is INSTRUCTIONS_PER_S instructions of one CPU, whatever they take outside.
"""

import os
import re
import shutil
import subprocess
import termios
import time
import tty
from contextlib import ExitStack, suppress
from pathlib import Path

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
SCREEN = re.compile(rb'connected to screen "(/dev/pts/[0-9]+)"')
GRUB = f"""\
set timeout=0
menuentry lab {{
	linux /kernel {KERNEL_COMMAND_LINE}
	initrd /initramfs
}}
"""
# The only display that needs neither X nor a TCP port.
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
            screen.open("ab") as log,
            started(command, stdout=log, stderr=log) as process,
            ExitStack() as stack,
        ):
            _wait(process, _Screen(screen, stack), serial, last_line, silence_s)
    return console_lines(serial)


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


class _Screen:
    """The terminal that Bochs makes, draws on and names: when it is full, as nobody reads it, Bochs waits."""

    def __init__(self, log: Path, stack: ExitStack) -> None:
        self._log, self._stack = log, stack
        self._end: int | None = None

    def read(self) -> None:
        """Take what was drawn since the last time, and forget it."""
        # EAGAIN when all was taken; EIO or ENOENT when Bochs has ended, which tty tells in its own way.
        with suppress(OSError, termios.error):
            if self._end is None and (name := SCREEN.search(self._log.read_bytes())):
                self._end = os.open(name[1], os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
                self._stack.callback(os.close, self._end)
                # Lines are not waited for.
                tty.setraw(self._end)
            while self._end is not None and os.read(self._end, 1 << 16):
                pass


def _wait(
    process: "subprocess.Popen[bytes]", screen: _Screen, serial: Path, last_line: str, silence_s: float
) -> None:
    size, heard = 0, time.monotonic()
    while last_line not in (lines := console_lines(serial)):
        screen.read()
        if any(PANIC in line for line in lines):
            raise LabError("the kernel panicked on Bochs", hint=f"serial console: {serial}")
        if process.poll() is not None and lines == console_lines(serial):
            raise LabError("the machine on Bochs ended early", hint=f"serial console: {serial}")
        if (grown := serial.stat().st_size) != size:
            size, heard = grown, time.monotonic()
        if time.monotonic() - heard > silence_s:
            raise LabError(f"Bochs was silent for {silence_s:.0f} s", hint=f"serial console: {serial}")
        time.sleep(0.5)
