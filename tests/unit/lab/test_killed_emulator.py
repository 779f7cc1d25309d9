"""Did a signal end the emulator, or did its machine go off?  By what unshare(1) 2.38 and QEMU 10 say."""

import subprocess
from pathlib import Path

import pytest

from lab import emulated_host
from lab.emulated_host import LabHost
from lab.emulator_end import ending_signal
from lab.errors import LabError
from lab.topology import read_topology

ENDS = (
    ("kill -KILL $$", "SIGKILL"),
    ("exit 139", "SIGSEGV"),
    ("exit 0", None),
    ("exit 1", None),
    ("exit 255", None),
    ("sleep 60", None),
)


UNSHARE = "unshare: sigprocmask unblock failed: Invalid argument\n"
QEMU = "qemu-system-x86_64: terminating on signal 15 from pid 4711 (earlyoom)\n"


@pytest.mark.parametrize(
    ("code", "said", "by"),
    [(1, UNSHARE, "SIGKILL"), (1, "no such CPU model", None), (0, QEMU, "SIGTERM"), (-11, "", "SIGSEGV")],
)
def test_the_last_words_tell_of_signals_that_the_code_hides(code: int, said: str, by: str | None):
    assert ending_signal(code, said) == by


@pytest.mark.parametrize(("script", "by"), ENDS)
def test_an_end_by_a_signal_is_known_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, by: str | None
):
    monkeypatch.setattr(emulated_host, "ENDS_S", 0.5 if by is None else 60.0)
    with subprocess.Popen(["sh", "-c", script]) as process:
        host = LabHost(process, read_topology("n4-full"), tmp_path, tmp_path)
        assert host.killed_by() == by
        process.kill()
        process.wait()
        with pytest.raises(LabError, match="the emulator ended"):
            _ = host.emulator_pid
