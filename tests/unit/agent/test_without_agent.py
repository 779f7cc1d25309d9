"""What an agent left behind is undone without one: within the budget, in parts if need be."""

import contextlib
import errno
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.unit.actuation.child_guest import guest_of, plan_of
from tests.unit.actuation.fake_kernel import PAGE, FakeKernel
from tests.unit.agent.slow_clock import SlowClock
from tests.unit.interfaces.test_json_schemas import errors
from tests.unit.nobody import holds_for_nobody, needs_nobody
from vmplace import apart
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import GuestIdentity, read_boot_id
from vmplace.actuation.journal import Journal, read_journal
from vmplace.actuation.mover import Mover
from vmplace.actuation.ownership import NumaBalancing
from vmplace.actuation.page_runs import BLOCK_PAGES, encode_pages
from vmplace.agent import config as agent_config
from vmplace.agent import sound_settings, without_agent
from vmplace.agent.config_sections import BudgetSection, Config
from vmplace.agent.host_calls import HostCalls
from vmplace.agent.undo_lines import undo_lines
from vmplace.agent.without_agent import give_back_without_agent, undo_without_agent
from vmplace.errors import ConfigError, JournalError, VmplaceError
from vmplace.held import HeldError
from vmplace.interfaces.act_commands import undo
from vmplace.interfaces.error_lines import error_line
from vmplace.interfaces.options import NothingError

BASE, NPAGES = 1 << 32, BLOCK_PAGES + 512


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        state_dir=str(tmp_path),
        socket=str(tmp_path / "run/control.sock"),
        budget=BudgetSection(mb_per_s=4),
    )


@pytest.fixture
def kernel(config: Config) -> FakeKernel:
    """A guest of 66 MiB that vmplace moved from node 0 to node 1."""
    moved = FakeKernel({BASE + i * PAGE: 0 for i in range(NPAGES)})
    with Journal(config.journal_path) as journal:
        plan, guests = plan_of(BASE, NPAGES, 1), {"db1": guest_of(os.getpid(), BASE, NPAGES)}
        Mover(journal, Budget(None), kernel=moved).apply(plan, guests)
    assert set(moved.nid_of.values()) == {1}
    return moved


def test_it_keeps_to_the_budget_of_moves_and_tells_how_far_it_is(config: Config, kernel: FakeKernel):
    clock, reported = SlowClock(), list[tuple[str, int, int]]()
    calls = HostCalls(kernel=kernel, clock=clock, sleep=clock.sleep)
    result = undo_without_agent(config, None, progress=lambda *far: reported.append(far), calls=calls)
    assert result.is_complete and set(kernel.nid_of.values()) == {0}
    # 69 MB at 4 MB/s, of which 4 MB are there at once.
    assert clock.slept_s == pytest.approx(16.3, abs=0.6)
    assert reported == [("db1", BLOCK_PAGES, NPAGES), ("db1", NPAGES, NPAGES)]


def test_pages_go_back_though_the_disk_of_the_journal_is_read_only(
    config: Config, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
):
    """open(2): EROFS for O_RDWR on a file system that was mounted, or remounted after errors, read-only."""
    before, opened = config.journal_path.read_bytes(), os.open

    def read_only(path: str | Path, flags: int, *words: int, **more: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *words, **more)

    monkeypatch.setattr(os, "open", read_only)
    clock = SlowClock()
    calls = HostCalls(kernel=kernel, clock=clock, sleep=clock.sleep)
    result = undo_without_agent(config, None, calls=calls)
    assert result.is_complete and set(kernel.nid_of.values()) == {0}
    assert any("nothing can be noted" in line for line in undo_lines(result))
    moves = len(kernel.calls)
    assert undo_without_agent(config, None, calls=calls).is_complete and len(kernel.calls) == moves
    with locked_elsewhere(config), pytest.raises(JournalError, match="in use by another vmplace"):
        undo_without_agent(config, None, calls=calls)
    assert config.journal_path.read_bytes() == before


@contextmanager
def locked_elsewhere(config: Config) -> Iterator[None]:
    """Let another process hold the journal's lock."""
    words = ["flock", "--no-fork", f"{config.journal_path}.lock", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeps:
        assert keeps.stdout is not None and keeps.stdout.read(1)
        yield


@pytest.mark.parametrize(
    ("total_mib", "free_mib", "cache_mib", "room_mib"),
    [
        # A node that had 1 % free, and a cache of files that nobody reads, which gives way.
        (100_000, 1000, 20, 520),
        (100_000, 400, 20, 0),
        # The kernel's watermarks are no share of a small node.
        (1000, 100, 0, 36),
    ],
)
def test_a_node_takes_its_pages_back_beyond_the_reserve_of_plans(
    tmp_path: Path, total_mib: int, free_mib: int, cache_mib: int, room_mib: int
):
    node = tmp_path / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("0\n")
    named = {"MemTotal": total_mib, "MemFree": free_mib, "Inactive(file)": cache_mib}
    lines = (f"Node 0 {name}: {mib << 10} kB\n" for name, mib in named.items())
    (node / "meminfo").write_text("".join(lines))
    machine = HostCalls(sysfs=tmp_path / "sys")
    assert machine.room_bytes(0) == room_mib << 20 and machine.room_bytes(1) is None


def test_it_fills_no_node(config: Config, kernel: FakeKernel):
    class Full(HostCalls):
        def room_bytes(self, nid: int) -> int | None:
            return max((32 << 20) - list(kernel.nid_of.values()).count(nid) * PAGE, 0)

    clock = SlowClock()
    result = undo_without_agent(config, None, calls=Full(kernel=kernel, clock=clock, sleep=clock.sleep))
    assert not result.is_complete and result.guests[0].restored == 32 << 8


@pytest.fixture
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("handlers")
def test_ctrl_c_ends_it_and_the_next_one_goes_on(
    config: Config, kernel: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock, moved = SlowClock(), len(kernel.calls)
    calls = HostCalls(kernel=kernel, clock=clock, sleep=clock.sleep)
    monkeypatch.setattr(without_agent, "HostCalls", lambda: calls)
    file = tmp_path / "vmplace.toml"
    file.write_text(f'state_dir = "{tmp_path}"\nsocket = "{config.socket}"\n')
    words = ["--config", str(file), "--socket", config.socket]

    def interrupted(call: int) -> None:
        if call == moved + 5:
            signal.raise_signal(signal.SIGINT)

    kernel.before_call = interrupted
    stopped = CliRunner().invoke(undo, words)
    assert "stopped before everything" in str(stopped.exception) and len(kernel.calls) == moved + 5
    assert set(kernel.nid_of.values()) == {0, 1}
    assert "moved back" in CliRunner().invoke(undo, words, catch_exceptions=False).output
    assert set(kernel.nid_of.values()) == {0}


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("has_journal", [True, False])
def test_a_guest_that_the_journal_does_not_know_is_no_success(
    config: Config, tmp_path: Path, request: pytest.FixtureRequest, has_journal: bool
):
    """docs/operate.md: exit code 3, as with an agent."""
    if has_journal:
        request.getfixturevalue("kernel")
    file = tmp_path / "vmplace.toml"
    file.write_text(f'state_dir = "{tmp_path}"\n')
    words = ["--config", str(file), "--socket", config.socket]
    done = CliRunner().invoke(undo, ["db7", *words])
    assert isinstance(done.exception, VmplaceError) and error_line(done.exception).exit_code == 3
    assert "no guest 'db7'" in str(done.exception)
    assert ("db1" if has_journal else "none") in str(done.exception.hint)
    assert done.output == ""


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    "mistake",
    [
        "no_such_key = 1",
        'policy = "nod"',
        "window_ms = -1",
        "[budget]\nmb_per_s = 0",
        "[guests.db1]\nx",
        "# caf\xe9",
    ],
    ids=["key", "policy", "value", "section", "no TOML", "no UTF-8"],
)
def test_a_mistake_in_the_settings_keeps_no_undo_from_the_journal_that_they_name(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mistake: str
):
    with Journal(config.journal_path):
        pass
    file = tmp_path / "vmplace.toml"
    file.write_text(f'state_dir = "{tmp_path}"\nsocket = "{config.socket}"\n{mistake}\n', encoding="latin-1")
    for module in (agent_config, sound_settings):
        monkeypatch.setattr(module, "DEFAULT_CONFIG", file)
    for words in ([], ["--settings"]):
        done = CliRunner().invoke(undo, [*words, "--socket", config.socket])
        assert done.exit_code == 0 and done.stdout.startswith("nothing to "), done.exception
        assert f"{file}:" in done.stderr and f"by the journal {config.journal_path}" in done.stderr


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("text", ["journal = 3\n", "#" * (2 << 20)], ids=["journal", "too long"])
def test_where_settings_do_not_tell_which_journal_an_absent_one_is_no_success(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
):
    (file := tmp_path / "vmplace.toml").write_text(text)
    for module in (agent_config, sound_settings):
        monkeypatch.setattr(module, "DEFAULT_CONFIG", file)
    monkeypatch.setattr(Config, "journal_path", tmp_path / "lib/journal")
    for words in ([], ["--settings"]):
        done = CliRunner().invoke(undo, [*words, "--socket", config.socket])
        assert "the settings may name another one" in str(done.exception) and done.stdout == ""


@pytest.mark.usefixtures("handlers")
def test_a_program_that_undoes_reads_of_a_mistake_in_the_settings_in_the_answer_alone(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (file := tmp_path / "vmplace.toml").write_text(f'state_dir = "{tmp_path}"\nno_such_key = 1\n')
    for module in (agent_config, sound_settings):
        monkeypatch.setattr(module, "DEFAULT_CONFIG", file)
    asked = ["--json", "--socket", config.socket]
    failed = CliRunner().invoke(undo, ["nosuch", *asked])
    assert isinstance(failed.exception, VmplaceError) and failed.stderr == ""
    with Journal(config.journal_path):
        pass
    failed = CliRunner().invoke(undo, ["nosuch", *asked])
    assert not isinstance(failed.exception, NothingError) and "may name another" in str(failed.exception)
    for words in ([], ["--settings"]):
        done = CliRunner().invoke(undo, [*words, *asked])
        reported = json.loads(done.stdout)
        assert done.stderr == "" and errors("undo", reported) == []
        assert f"{file}:" in reported["notes"][0] and str(config.journal_path) in reported["notes"][0]


@pytest.mark.usefixtures("handlers")
def test_no_guest_is_unknown_while_settings_may_name_another_journal(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (file := tmp_path / "vmplace.toml").write_text("journal = 3\n")
    for module in (agent_config, sound_settings):
        monkeypatch.setattr(module, "DEFAULT_CONFIG", file)
    monkeypatch.setattr(Config, "journal_path", tmp_path / "lib/journal")
    done = CliRunner().invoke(undo, ["db1", "--socket", config.socket])
    assert "the settings may name another one" in str(done.exception)


def test_a_mistake_in_a_section_leaves_its_other_settings(tmp_path: Path):
    (file := tmp_path / "vmplace.toml").write_text("[budget]\nmb_per_s = 50\nno_such_key = 1\n")
    found, wrong = sound_settings.sound_settings(file)
    assert found.budget.mb_per_s == 50 and wrong is not None


def test_a_named_file_that_is_no_toml_is_refused_as_it_may_name_any_journal(config: Config, tmp_path: Path):
    (tmp_path / "vmplace.toml").write_text(f'state_dir = "{tmp_path}\n')
    words = ["--config", str(tmp_path / "vmplace.toml"), "--socket", config.socket]
    assert isinstance(CliRunner().invoke(undo, words).exception, ConfigError)


@pytest.fixture
def taken(tmp_path: Path, config: Config) -> Path:
    """The /proc of a host whose NUMA balancing a killed agent had taken."""
    proc = tmp_path / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text(read_boot_id())
    (proc / "sys/kernel/numa_balancing").write_text("1\n")
    with Journal(config.journal_path, proc=proc) as journal:
        NumaBalancing(journal, proc=proc).update(1)
    assert (proc / "sys/kernel/numa_balancing").read_text() == "0"
    return proc


def test_what_a_killed_agent_took_of_the_kernel_is_given_back_without_its_guests(
    config: Config, taken: Path, tmp_path: Path
):
    reported = give_back_without_agent(config, taken, tmp_path / "sys")
    assert reported == (("kernel.numa_balancing=0->1: given back",), ())
    assert (taken / "sys/kernel/numa_balancing").read_text().strip() == "1"
    assert give_back_without_agent(config, taken, tmp_path / "sys") == ((), ())


def test_sysctls_are_given_back_by_a_journal_of_another_pid_namespace_and_its_guests_stay_in_it(
    config: Config, taken: Path, tmp_path: Path
):
    """As after the end of a container without hostPID: the sysctl is the host's all the same."""
    (taken / "self/ns").mkdir(parents=True)
    (taken / "self/ns/pid").touch()
    # A pid beyond the most that Linux has: no process has it here.
    there = GuestIdentity("db1", (1 << 22) + 1, 1, read_boot_id(), pid_namespace=7)
    with Journal(config.journal_path, proc=taken) as journal:
        one_page = np.array([BASE], np.uint64), np.array([1], np.uint16), np.array([0])
        journal.record_pages(there, encode_pages(*one_page))
    with pytest.raises(JournalError, match="another PID namespace") as refused:
        undo_without_agent(config, None, calls=HostCalls(proc=taken))
    assert "vmplace undo --settings" in str(refused.value.hint)
    reported = give_back_without_agent(config, taken, tmp_path / "sys")
    assert reported == (("kernel.numa_balancing=0->1: given back",), ())
    assert (taken / "sys/kernel/numa_balancing").read_text().strip() == "1"
    assert [one.identity for one in read_journal(config.journal_path).guests.values()] == [there]


def left_by_a_killed_agent(tmp_path: Path) -> Path:
    """Make DAMON's files as a killed agent leaves them, and its mark; return where they are."""
    kdamonds, mark = tmp_path / "sys/kernel/mm/damon/admin/kdamonds", tmp_path / "run/damon-kdamonds"
    (kdamonds / "0").mkdir(parents=True)
    mark.parent.mkdir()
    running = os.getpid()
    for name, value in {"nr_kdamonds": "1", "0/pid": str(running), "0/state": "on"}.items():
        (kdamonds / name).write_text(value)
    mark.write_text(f"1\n0 12 {running}\n")
    return kdamonds


def test_settings_are_given_back_once_a_killed_agent_has_let_go_of_its_lock(config: Config, tmp_path: Path):
    """The kernel frees its memory first, and systemd does not wait for that."""
    Journal(config.journal_path).close()
    keeps = subprocess.Popen(
        ["flock", "--no-fork", f"{config.journal_path}.lock", "sh", "-c", "echo; sleep 1"],
        stdout=subprocess.PIPE,
    )
    with keeps:
        assert keeps.stdout is not None and keeps.stdout.read(1)
        with pytest.raises(JournalError):
            Journal(config.journal_path)
        assert give_back_without_agent(config, Path("/proc"), tmp_path / "sys") == ((), ())


def test_a_sysctl_that_cannot_be_given_back_keeps_nothing_else(config: Config, taken: Path, tmp_path: Path):
    sysctl = taken / "sys/kernel/numa_balancing"
    sysctl.unlink()
    sysctl.mkdir()
    kdamonds = left_by_a_killed_agent(tmp_path)
    reported, failures = give_back_without_agent(config, taken, tmp_path / "sys")
    assert reported == ("DAMON watches nothing any more",) and (kdamonds / "0/state").read_text() == "off"
    assert len(failures) == 1 and "kernel.numa_balancing" in failures[0]
    # Still in the journal: the next time it may work.
    with Journal(config.journal_path, proc=taken) as journal:
        assert list(journal.contents().sysctls) == ["kernel/numa_balancing"]


def test_a_journal_that_cannot_be_read_keeps_damon_from_nobody(config: Config, tmp_path: Path):
    config.journal_path.write_text("something else\n")
    kdamonds = left_by_a_killed_agent(tmp_path)
    reported, failures = give_back_without_agent(config, Path("/proc"), tmp_path / "sys")
    assert reported == ("DAMON watches nothing any more",) and (kdamonds / "0/state").read_text() == "off"
    assert len(failures) == 1 and "not a journal" in failures[0] and "move it away" in failures[0]
    assert failures[0].startswith(f"{config.journal_path}: ")


@needs_nobody
@pytest.mark.parametrize("words", [(), ("db1",), ("--settings",)])
def test_who_may_not_look_at_the_journal_is_advised_to_be_root(config: Config, words: tuple[str, ...]):
    """Asked from the folder above, as folders of tests are for their user alone."""
    folder = Path(config.state_dir)
    (folder / "state").mkdir(mode=0o700)
    folder.chmod(0o755)
    settings = folder / "vmplace.toml"
    settings.write_text('state_dir = "/proc/self/cwd/state"\n')

    def names_the_cure() -> bool:
        asked = [*words, "--config", "vmplace.toml", "--socket", "none"]
        done = CliRunner().invoke(undo, asked)
        said = f"{done.exception} {getattr(done.exception, 'hint', '')} {done.output}"
        assert isinstance(done.exception, VmplaceError)
        return "run it" in said and "as root" in said and error_line(done.exception).error.code == "denied"

    with contextlib.chdir(folder):
        assert holds_for_nobody(names_the_cure)


def test_damon_is_left_to_an_agent_that_runs(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(without_agent, "DYING_S", 0.0)
    kdamonds = left_by_a_killed_agent(tmp_path)
    with Journal(config.journal_path), pytest.raises(JournalError, match="in use by another vmplace"):
        give_back_without_agent(config, Path("/proc"), tmp_path / "sys")
    assert (kdamonds / "0/state").read_text() == "on"


def test_what_is_given_back_is_reported_though_damon_waits_for_a_process(
    config: Config, taken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def held_up(path: Path, text: str, *, patience_s: float) -> None:
        raise HeldError

    left_by_a_killed_agent(tmp_path)
    monkeypatch.setattr(apart, "write", held_up)
    reported, failures = give_back_without_agent(config, taken, tmp_path / "sys")
    assert reported == ("kernel.numa_balancing=0->1: given back",)
    assert len(failures) == 1 and "a process that it watches blocks its own memory map" in failures[0]
