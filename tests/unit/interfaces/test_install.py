"""``vmplace install`` writes what the manual lists, over nobody's files; ``uninstall`` leaves no trace."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.actuation.child_guest import child_guest
from tests.unit.interfaces.test_json_schemas import errors
from vmplace.actuation.journal import Journal
from vmplace.actuation.pinner import Pinner
from vmplace.actuation.undo import GuestUndo, UndoResult
from vmplace.agent import config as agent_config
from vmplace.agent import sound_settings, without_agent
from vmplace.agent.config import LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.wakeup import Wakeup
from vmplace.errors import DeniedError, VmplaceError
from vmplace.interfaces import install_command, installation
from vmplace.interfaces.cli import cli
from vmplace.interfaces.installation import Installation, InstalledFile, Manifest

CHECKOUT = Path(__file__).parents[3]
UNIT = "etc/systemd/system/vmplace.service"
SETTINGS = "etc/vmplace/vmplace.toml"
HOOK = "etc/libvirt/hooks/qemu.d/vmplace"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a root file system with libvirt, and a vmplace that its systemd could run."""
    monkeypatch.setattr(install_command, "HIDDEN", ())
    scripts = tmp_path / "opt/vmplace/bin"
    scripts.mkdir(parents=True)
    (scripts / "vmplace").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(scripts))
    root = tmp_path / "image"
    for folder in ("etc/libvirt", "etc/systemd/system", "usr/local/bin"):
        (root / folder).mkdir(parents=True)
    (root / "etc/hostname").write_text("host1\n")
    return root


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words, standalone_mode=False)


def tree(root: Path) -> dict[str, tuple[str, bytes]]:
    """Return all that is below a folder: kind and mode, and content."""
    found = {}
    for path in root.rglob("*"):
        content = str(path.readlink()).encode() if path.is_symlink() else b""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        found[str(path.relative_to(root))] = stat.filemode(path.lstat().st_mode), content
    return found


def installed(image: Path) -> dict[str, list[str]]:
    result = run("install", "--root", str(image), "--json")
    assert result.exception is None, result.exception
    reported: dict[str, list[str]] = json.loads(result.output)
    return reported


def test_an_image_gets_units_that_run_this_vmplace_settings_completion_and_the_hook(image: Path):
    reported = installed(image)
    unit = (image / UNIT).read_text()
    assert f"ExecStart={image.parent}/opt/vmplace/bin/vmplace agent --supervised\n" in unit
    assert (
        "/opt/vmplace/bin/vmplace metrics serve"
        in (image / "etc/systemd/system/vmplace-metrics.service").read_text()
    )
    example = CHECKOUT / "vmplace/agent/vmplace.toml.example"
    assert (image / SETTINGS).read_text() == example.read_text()
    python = str(Path(sys.executable).resolve())
    hook = (CHECKOUT / "libvirt-hooks/qemu.d/vmplace").read_text().replace("/usr/bin/python3", python)
    assert (image / HOOK).read_text() == hook
    assert f'\n{python} -IS "$0" "$@" ' in hook
    assert stat.S_IMODE((image / HOOK).stat().st_mode) == 0o755
    link = image / "usr/local/bin/vmplace"
    assert link.readlink() == image.parent / "opt/vmplace/bin/vmplace"
    code = image / "usr/local/share/bash-completion/completions/vmplace"
    assert subprocess.run(["bash", "-n", str(code)], check=False).returncode == 0
    assert f"/{UNIT}" in reported["written"]


def test_what_is_removed_leaves_the_tree_as_it_was(image: Path):
    before = tree(image)
    installed(image)
    assert tree(image) != before
    result = run("uninstall", "--root", str(image))
    assert result.exception is None, result.exception
    assert tree(image) == before


def test_what_install_writes_it_names(image: Path):
    reported = installed(image)
    assert errors("install", reported) == [] and len(reported["written"]) >= 5
    assert errors("install", {"written": reported["written"]})


def test_what_uninstall_removes_it_names(image: Path):
    written = installed(image)["written"]
    (image / SETTINGS).write_text('source = "idle"\n')
    reported = json.loads(run("uninstall", "--root", str(image), "--json").output)
    assert errors("uninstall", reported) == [] and reported["notes"] == []
    assert reported["left"] == [f"/{SETTINGS}"] and reported["undone"] == []
    assert sorted(reported["removed"] + reported["left"]) == sorted(written)


def test_a_host_without_libvirt_gets_no_hook(image: Path):
    (image / "etc/libvirt").rmdir()
    installed(image)
    assert not (image / "etc/libvirt").exists()


def test_a_second_time_nothing_changes(image: Path):
    installed(image)
    once = tree(image)
    assert installed(image)["written"] == []
    assert tree(image) == once


def test_after_an_upgrade_the_units_are_written_anew_and_settings_stay(
    image: Path, monkeypatch: pytest.MonkeyPatch
):
    installed(image)
    (image / SETTINGS).write_text('source = "idle"\n')
    (image / "opt2").mkdir()
    (image / "opt2/vmplace").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(image / "opt2"))
    reported = installed(image)
    assert f"ExecStart={image}/opt2/vmplace agent --supervised\n" in (image / UNIT).read_text()
    assert f"/{UNIT}" in reported["written"] and f"/{SETTINGS}" in reported["kept"]
    assert (image / "usr/local/bin/vmplace").readlink() == image / "opt2/vmplace"


@pytest.mark.parametrize("name", [UNIT, HOOK, "usr/local/bin/vmplace"])
def test_what_somebody_else_put_there_stops_it_before_it_begins(image: Path, name: str):
    (image / name).parent.mkdir(parents=True, exist_ok=True)
    (image / name).write_text("mine\n")
    before = tree(image)
    result = run("install", "--root", str(image))
    assert f"/{name}" in str(result.exception) and "move them away" in (result.exception.hint or "")  # type: ignore[union-attr]
    assert tree(image) == before


def test_what_was_changed_since_is_not_written_over_and_stays_when_the_rest_goes(image: Path):
    installed(image)
    (image / UNIT).write_text("[Unit]\nDescription=mine\n")
    assert f"/{UNIT}" in str(run("install", "--root", str(image)).exception)
    result = run("uninstall", "--root", str(image), "--json")
    assert json.loads(result.output)["left"] == [f"/{UNIT}"]
    assert (image / UNIT).exists() and not (image / HOOK).exists()


def test_settings_are_a_persons(image: Path):
    (image / SETTINGS).parent.mkdir()
    (image / SETTINGS).write_text('source = "idle"\n')
    assert f"/{SETTINGS}" in installed(image)["kept"]
    run("uninstall", "--root", str(image), "--purge")
    assert (image / SETTINGS).read_text() == 'source = "idle"\n'


def test_purge_removes_what_was_changed_since(image: Path):
    before = tree(image)
    installed(image)
    (image / SETTINGS).write_text('source = "idle"\n')
    run("uninstall", "--root", str(image), "--purge")
    assert tree(image) == before


def test_an_installation_that_was_cut_short_is_removed_whole(image: Path, monkeypatch: pytest.MonkeyPatch):
    before = tree(image)
    put = installation._put

    def cut(piece: InstalledFile, path: Path) -> None:
        if path.name == "vmplace-metrics.service":
            raise KeyboardInterrupt
        put(piece, path)

    monkeypatch.setattr(installation, "_put", cut)
    with pytest.raises(KeyboardInterrupt):
        Installation(image).put(
            Installation(image).changes(install_command.pieces(Path("/opt/vmplace/bin/vmplace"), True), {}),
            Manifest(),
            lambda: False,
        )
    monkeypatch.undo()
    assert (image / UNIT).exists()
    assert run("uninstall", "--root", str(image)).exception is None
    assert tree(image) == before


def test_nothing_is_installed_over_a_package(image: Path):
    unit = image / "usr/lib/systemd/system/vmplace.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    result = run("install", "--root", str(image))
    assert "a package of vmplace is installed" in str(result.exception)
    assert "vmplace undo" in (result.exception.hint or "")  # type: ignore[union-attr]


def test_what_pip_brought_is_removed_beside_a_package_that_keeps_journal_and_group(
    image: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its units in /etc come before those of the package."""
    asked: list[str] = []
    monkeypatch.setattr(install_command, "_run", lambda *words: asked.extend(words))
    installed(image)
    manifest = image / "etc/vmplace/installed.json"
    manifest.write_text(manifest.read_text().replace('"group_made":false', '"group_made":true'))
    for name in ("usr/lib/systemd/system/vmplace.service", "var/lib/vmplace/journal"):
        (image / name).parent.mkdir(parents=True)
        (image / name).touch()
    assert run("uninstall", "--root", str(image)).exception is None
    assert not (image / UNIT).exists() and not (image / "usr/local/bin/vmplace").is_symlink()
    assert (image / "var/lib/vmplace/journal").exists() and asked == []


def test_what_was_left_is_removed_by_purge_later(image: Path):
    before = tree(image)
    installed(image)
    (image / SETTINGS).write_text('source = "idle"\n')
    assert json.loads(run("uninstall", "--root", str(image), "--json").output)["left"] == [f"/{SETTINGS}"]
    again = json.loads(run("uninstall", "--root", str(image), "--purge", "--json").output)
    assert again["removed"] == [f"/{SETTINGS}"] and again["left"] == []
    assert tree(image) == before


def test_state_in_a_folder_of_ones_own_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "journals").mkdir()
    config = Config(state_dir=str(tmp_path), journal=f"{tmp_path}/journals/journal")
    monkeypatch.setattr("vmplace.agent.config.read_config", lambda: LoadedConfig(config))
    assert install_command._state_elsewhere() == (str(tmp_path), f"{tmp_path}/journals")


def test_folders_are_for_all_to_read_whatever_the_umask(image: Path):
    before = os.umask(0o077)
    try:
        installed(image)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((image / name).stat().st_mode) for name in ("etc/vmplace", "etc/libvirt/hooks")}
    assert modes == {0o755} and (image / SETTINGS).stat().st_mode & 0o044


@pytest.mark.parametrize("runs", [False, True])
def test_nothing_is_installed_to_be_started_where_systemd_does_not_run(
    image: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
):
    here, asked = Installation(image), list[tuple[str, ...]]()
    monkeypatch.setattr(install_command, "Installation", lambda _root: here)
    monkeypatch.setattr(install_command, "BOOTED", image if runs else image / "run/systemd/system")
    monkeypatch.setattr(install_command, "_run", lambda *words: asked.append(words))
    monkeypatch.setattr(install_command, "_group_made", lambda: False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    before = tree(image)
    done = run("install", "--start")
    assert (("systemctl", "enable", "--now", "vmplace") in asked) is runs
    if runs:
        assert done.exception is None and (image / UNIT).exists()
        return
    assert "systemd does not run here" in str(done.exception) and tree(image) == before
    assert "vmplace agent" in (done.exception.hint or "")  # type: ignore[union-attr]
    assert run("install").exception is None and (image / UNIT).exists()


def test_where_nothing_was_installed_there_is_nothing_to_remove(image: Path):
    result = run("uninstall", "--root", str(image))
    assert getattr(result.exception, "exit_code", None) == 3


@pytest.mark.parametrize("folder", ["/home/me/venv", "/root/venv", "/tmp/venv"])
def test_a_vmplace_that_the_sandbox_hides_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
):
    monkeypatch.setattr("sysconfig.get_path", lambda name: f"{folder}/bin")
    result = run("install", "--root", str(tmp_path))
    assert "hides" in str(result.exception) and "/opt/vmplace" in (result.exception.hint or "")  # type: ignore[union-attr]


def test_a_python_that_the_sandbox_hides_is_refused(image: Path, monkeypatch: pytest.MonkeyPatch):
    python = image / "home/me/python3"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(install_command, "HIDDEN", (f"{image}/home/",))
    monkeypatch.setattr("sys.executable", str(python))
    assert f"hides {python}" in str(run("install", "--root", str(image)).exception)


def test_a_full_disk_is_reported_and_what_was_begun_can_be_run_again(
    image: Path, monkeypatch: pytest.MonkeyPatch
):
    before = tree(image)
    replace = Path.replace

    def full(path: Path, target: Path) -> Path:
        if target.name == "vmplace-metrics.service":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        result = run("install", "--root", str(image))
    assert "vmplace-metrics.service: No space left" in str(result.exception)
    assert "run it again" in (result.exception.hint or "")  # type: ignore[union-attr]
    installed(image)
    assert run("uninstall", "--root", str(image)).exception is None
    assert tree(image) == before


def test_a_file_where_a_folder_belongs_stops_it_before_it_begins(image: Path):
    (image / "usr/local/share").touch()
    before = tree(image)
    assert "usr/local/share" in str(run("install", "--root", str(image)).exception)
    assert tree(image) == before


@pytest.mark.parametrize("text", ["{", '{"files": {"etc/passwd": "x"}}', '{"files": 3}', "\xff"])
def test_a_damaged_manifest_removes_nothing(image: Path, text: str):
    installed(image)
    (image / "etc/vmplace/installed.json").write_text(text)
    before = tree(image)
    assert "installed.json" in str(run("uninstall", "--root", str(image)).exception)
    assert tree(image) == before


@pytest.mark.parametrize("root", ["/", "//", "/proc/self/root"])
def test_only_root_installs_on_the_host(monkeypatch: pytest.MonkeyPatch, root: str):
    """Whatever it is called: an image has no guests, so nothing is undone before its journal goes."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for verb in ("uninstall", "install"):
        refused = run(verb, "--root", root).exception
        assert isinstance(refused, DeniedError) and "only root may" in str(refused)


def test_what_an_earlier_journal_holds_is_undone_before_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Settings name another place for it now."""
    monkeypatch.setattr(install_command, "STATE", tmp_path / "lib")
    config = LoadedConfig(Config(state_dir=str(tmp_path / "elsewhere")))
    monkeypatch.setattr(sound_settings, "read_config", lambda _path: config)
    monkeypatch.setattr(Wakeup, "stop_on_signals", lambda _self: None)
    with child_guest(8) as child:
        vcpu, before = child.guest.vcpus[0], os.sched_getaffinity(child.guest.vcpus[0].tid)
        with Journal(tmp_path / "lib/journal") as journal:
            Pinner(journal).pin(child.guest, vcpu, (min(before),))
        install_command._undone(install_command._journals(quiet=False)[0])
        assert os.sched_getaffinity(vcpu.tid) == before


def test_where_a_node_is_full_uninstall_tells_how_to_leave_memory_there(monkeypatch: pytest.MonkeyPatch):
    """`vmplace undo` prints the same reason (docs/operate.md)."""
    left = UndoResult((GuestUndo("db1", stuck={"no room on node 0: free memory there": 7}),))
    monkeypatch.setattr(without_agent, "undo_without_agent", lambda *_: left)
    monkeypatch.setattr(Wakeup, "stop_on_signals", lambda _self: None)
    with pytest.raises(VmplaceError) as refused:
        install_command._undone([Config()])
    assert "free memory on that node" in str(refused.value.hint)
    assert "--keep-placement leaves the rest where it is" in str(refused.value.hint)


def test_what_a_program_asked_to_remove_and_was_undone_in_part_is_in_the_error_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    left = UndoResult((GuestUndo("db1", stuck={"no room on node 0: free memory there": 7}),))
    monkeypatch.setattr(without_agent, "undo_without_agent", lambda *_: left)
    monkeypatch.setattr(Wakeup, "stop_on_signals", lambda _self: None)
    with pytest.raises(VmplaceError, match=r"nothing was removed: db1.*no room on node 0"):
        install_command._undone([Config()], quiet=True)
    assert capfd.readouterr().err == ""


def test_purge_leaves_the_settings_that_a_package_has_by_now(image: Path):
    """A conffile that `--force-confmiss` put there, or that was changed before the package came."""
    installed(image)
    (image / SETTINGS).write_text('source = "idle"\n')
    assert run("uninstall", "--root", str(image)).exception is None
    (unit := image / "usr/lib/systemd/system/vmplace.service").parent.mkdir(parents=True)
    unit.touch()
    done = run("uninstall", "--root", str(image), "--purge")
    assert (image / SETTINGS).read_text() == 'source = "idle"\n'
    assert f"left, as it may be that of the package: /{SETTINGS}" in done.output


def test_an_agent_is_not_stopped_if_nobody_can_tell_where_its_journal_is(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    installed(image)
    (settings := tmp_path / "vmplace.toml").write_text("journal = 3\n")
    for module in (agent_config, sound_settings):
        monkeypatch.setattr(module, "DEFAULT_CONFIG", settings)
    here = Installation(image)
    asked: list[str] = []
    monkeypatch.setattr(install_command, "Installation", lambda _root: here)
    monkeypatch.setattr(install_command, "_stop", lambda *_: asked.append("stopped"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(Config, "journal_path", tmp_path / "lib/journal")
    reported = run("uninstall").exception
    assert isinstance(reported, VmplaceError) and "settings may name another one" in str(reported)
    assert "--keep-placement" in str(reported.hint)
    assert asked == [] and (image / UNIT).exists()
    monkeypatch.setattr(install_command, "_systemctl", lambda *_: None)
    assert run("uninstall", "--keep-placement").exception is None
    assert asked == ["stopped"] and not (image / UNIT).exists()


def test_a_unit_that_somebody_removed_is_not_asked_for(image: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(install_command, "_systemctl", lambda _root, *words: asked.append(words))
    installed(image)
    (image / UNIT).unlink()
    assert run("uninstall", "--root", str(image)).exception is None
    assert ("disable", "--now", "vmplace-metrics.service") in asked


def test_a_link_to_a_hidden_folder_is_refused(image: Path, monkeypatch: pytest.MonkeyPatch):
    (image / "home/me").mkdir(parents=True)
    (image / "home/me/vmplace").touch()
    link = image / "opt-vmplace"
    link.symlink_to(image / "home/me")
    monkeypatch.setattr(install_command, "HIDDEN", (f"{image}/home/",))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(link))
    assert "hides" in str(run("install", "--root", str(image)).exception)


def test_a_group_that_cannot_be_removed_is_reported_and_all_else_is_removed(
    image: Path, monkeypatch: pytest.MonkeyPatch
):
    installed(image)
    manifest = image / "etc/vmplace/installed.json"
    manifest.write_text(manifest.read_text().replace('"group_made":false', '"group_made":true'))

    def refused(*words: str) -> None:
        raise VmplaceError(f"{words[0]}: it is somebody's primary group")

    monkeypatch.setattr(install_command, "_run", refused)
    result = run("uninstall", "--root", str(image))
    assert result.exception is None
    assert "somebody's primary group" in result.output and not (image / UNIT).exists()
