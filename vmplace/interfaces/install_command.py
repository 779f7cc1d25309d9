"""``vmplace install`` and ``vmplace uninstall``, for hosts without the Debian package."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

import vmplace
from vmplace.errors import DeniedError, VmplaceError
from vmplace.interfaces.completion_command import completion_code
from vmplace.interfaces.guest_views import Installed, Uninstalled
from vmplace.interfaces.installation import STATE, Changes, Installation, InstalledFile, Manifest
from vmplace.interfaces.options import NothingError, examples, json_option, print_json
from vmplace.outside import read_text

if TYPE_CHECKING:
    from vmplace.actuation.undo import UndoResult
    from vmplace.agent.config_sections import Config

PACKAGE = Path(vmplace.__file__).parent
HOOKS = (PACKAGE / "interfaces/qemu-hook", PACKAGE.parent / "libvirt-hooks/qemu.d/vmplace")
"""In an installed package, and in a checkout."""
UNITS = ("vmplace.service", "vmplace-metrics.service")
IN_UNIT = "/opt/vmplace/bin/vmplace"
HOOK_PYTHON = "/usr/bin/python3"
LINK = Path("/usr/local/bin/vmplace")
HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108
"""The unit's sandbox does not see these folders (ProtectHome, PrivateTmp)."""
STOP_S = 300.0
BOOTED = Path("/run/systemd/system")
"""This folder is there where systemd runs: sd_booted(3)."""


def _host_or_image(_context: click.Context, _option: click.Parameter, root: Path) -> Path:
    """Return "/" whatever it is called, such as "//": only there is anything undone before it is removed."""
    return Path("/") if root.samefile("/") else root


root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    callback=_host_or_image,
    default=Path("/"),
    help="Work on the files below this folder, as for an image; start and stop nothing.",
)


@click.command(epilog=examples("vmplace install\nvmplace install --start\nvmplace install --root ./image"))
@click.option("--start", is_flag=True, help="Start the agent now, and at each boot.")
@root_option
@json_option
def install(start: bool, root: Path, as_json: bool) -> None:
    """Install systemd units, libvirt's hook, settings, and completion of this vmplace on this host.

    The Debian package brings all of it; this is for other hosts, where vmplace was installed by pip.  Nothing
    is started without --start, which needs systemd.  Files that others made or changed are not written over.
    Run it again after an upgrade.  Only root may.
    """
    if start and root != Path("/"):
        raise click.UsageError("--start works on this host, not on an image")
    installation = Installation(root)
    _only_root(installation)
    if start and not BOOTED.is_dir():
        hint = "leave --start out, and have what starts services here run `vmplace agent --supervised`"
        raise VmplaceError("systemd does not run here to start the agent; nothing was installed", hint=hint)
    _no_package(installation)
    before = installation.manifest() or Manifest()
    changes = installation.changes(pieces(_command(), (root / "etc/libvirt").is_dir()), before.files)
    _refuse(changes)
    installation.put(changes, before, lambda: root == Path("/") and _group_made())
    _systemctl(root, "daemon-reload")
    if start:
        _systemctl(root, "enable", "--now", "vmplace")
    _report_installed(changes, as_json=as_json, started=start)


@click.command(epilog=examples("vmplace uninstall\nvmplace uninstall --keep-placement"))
@click.option("--keep-placement", is_flag=True, help="Leave memory and vCPUs where vmplace put them.")
@click.option("--purge", is_flag=True, help="Remove files that were changed since, too, such as settings.")
@root_option
@json_option
def uninstall(keep_placement: bool, purge: bool, root: Path, as_json: bool) -> None:
    """Stop the agent, undo what it did to guests, and remove what `vmplace install` installed.

    Guests run on.  If not all can be undone, nothing is removed: run it again.  Only root may.
    """
    installation = Installation(root)
    _only_root(installation)
    manifest = installation.manifest()
    if manifest is None:
        raise NothingError(
            "`vmplace install` installed nothing here",
            hint="a package: `vmplace undo`, then apt-get purge vmplace",
        )
    # Before the agent is stopped: with a mistake in them it would not start again.
    to_undo, notes = ((), ()) if keep_placement or root != Path("/") else _journals(quiet=as_json)
    _stop(installation, manifest)
    undone = _undone(to_undo, quiet=as_json)
    # A package that is there, too, goes on with journal and group.
    is_packaged = installation.packaged() is not None
    failed = "" if is_packaged else _group_removed(manifest)
    elsewhere = _state_elsewhere() if root == Path("/") else ()
    manifest = msgspec.structs.replace(manifest, group_made=bool(failed))
    # Settings that were changed may be the package's by now.
    removed = installation.remove(manifest, even_if_changed=purge and not is_packaged)
    if not is_packaged:
        installation.remove_state()
    _systemctl(root, "daemon-reload")
    left = (*map(str, removed.left), *elsewhere)
    found = Uninstalled(tuple(undone), tuple(map(str, removed.removed)), left, notes)
    if as_json:
        print_json(found)
        return
    for line in (*undone, *(f"removed {path}" for path in found.removed)):
        click.echo(line)
    why = "it may be that of the package" if is_packaged else "it was changed (--purge removes it)"
    for path in removed.left:
        click.echo(f"left, as {why}: {path}")
    for folder in elsewhere:
        click.echo(f"left, as settings name it: {folder}")
    if failed:
        click.echo(f"left, as it could not be removed: group vmplace ({failed})")
    click.echo(f"vmplace itself is still in {PACKAGE}; pip uninstall vmplace, or remove its environment.")


def pieces(command: Path, has_libvirt: bool) -> tuple[InstalledFile, ...]:
    """Return what belongs on a host whose vmplace is ``command``."""
    return tuple(_iter_pieces(command, has_libvirt))


def _iter_pieces(command: Path, has_libvirt: bool) -> Iterator[InstalledFile]:
    for name in UNITS:
        text = read_text(PACKAGE / "interfaces" / name).replace(IN_UNIT, str(command))
        yield InstalledFile(Path("/etc/systemd/system", name), text.encode())
    example = (PACKAGE / "agent/vmplace.toml.example").read_bytes()
    yield InstalledFile(Path("/etc/vmplace/vmplace.toml"), example, is_settings=True)
    completion = Path("/usr/local/share/bash-completion/completions/vmplace")
    yield InstalledFile(completion, completion_code("bash").encode())
    if command != LINK:
        yield InstalledFile(LINK, target=str(command))
    hook = next((path for path in HOOKS if path.exists()), None)
    if has_libvirt and hook is not None:
        # The system's own Python may be older than the hook, or missing.
        text = read_text(hook).replace(HOOK_PYTHON, shlex.quote(str(Path(sys.executable).resolve())))
        yield InstalledFile(Path("/etc/libvirt/hooks/qemu.d/vmplace"), text.encode(), 0o755)


def _only_root(installation: Installation) -> None:
    if os.geteuid() != 0 and installation.root == Path("/"):
        raise DeniedError("only root may do that", hint="sudo, or --root FOLDER for an image")


def _no_package(installation: Installation) -> None:
    if (unit := installation.packaged()) is not None:
        raise VmplaceError(
            f"a package of vmplace is installed ({unit})",
            hint="use that, or first: `vmplace undo`, then apt-get purge vmplace",
        )


def _command() -> Path:
    """Return the program that runs; raises VmplaceError for one that the unit could not run."""
    command = Path(sysconfig.get_path("scripts"), "vmplace")
    hint = "install it in an environment of its own: /usr/bin/python3 -m venv /opt/vmplace"
    if not re.fullmatch(r"[\w./+-]+", str(command)):
        raise VmplaceError(f"{command} cannot be named in a unit of systemd", hint=hint)
    # The interpreter, too: an environment links to one that may be somebody's own.
    for path in (command, command.resolve(), PACKAGE.resolve(), Path(sys.executable).resolve()):
        if str(path).startswith(HIDDEN):
            raise VmplaceError(f"systemd's sandbox for the agent hides {path}", hint=hint)
    if not command.exists():
        raise VmplaceError(f"{command} is not there", hint=hint)
    return command


def _refuse(changes: Changes) -> None:
    if changes.in_the_way:
        names = ", ".join(map(str, changes.in_the_way))
        raise VmplaceError(
            f"there already, and not by `vmplace install`: {names}", hint="compare and move them away"
        )


def _group_made() -> bool:
    """Make the group whose members may look, unless it is there."""
    if subprocess.run(["getent", "group", "vmplace"], capture_output=True, check=False).returncode == 0:
        return False
    _run("groupadd", "--system", "vmplace")
    return True


def _group_removed(manifest: Manifest) -> str:
    """Remove the group that was made; return what failed, empty if nothing did: all else is removed."""
    if not manifest.group_made:
        return ""
    try:
        _run("groupdel", "vmplace")
    except VmplaceError as err:
        return str(err)
    return ""


def _stop(installation: Installation, manifest: Manifest) -> None:
    paths = [Path("/etc/systemd/system", name) for name in UNITS]
    # Of a unit that somebody has removed, systemctl disables nothing and says so.
    units = [path.name for path in paths if str(path) in manifest.files and installation.at(path).exists()]
    if units:
        _systemctl(installation.root, "disable", "--now", *units)


def _systemctl(root: Path, *words: str) -> None:
    """Ask systemd, where it runs."""
    if root == Path("/") and BOOTED.is_dir():
        _run("systemctl", *words)


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=STOP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise VmplaceError(f"{' '.join(words)}: {err}", hint="run it by hand, then this again") from err
    if done.returncode:
        reported = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise VmplaceError(f"{' '.join(words)}: {reported[0]}", hint="run it by hand, then this again")


def _undone(journals: "Iterable[Config]", *, quiet: bool = False) -> list[str]:
    """Undo all; raises VmplaceError if something is left to do.

    What was done by then goes to standard error; if ``quiet``, the error has it.
    """
    from vmplace.agent.undo_lines import undo_lines
    from vmplace.agent.wakeup import Wakeup
    from vmplace.agent.without_agent import undo_without_agent
    from vmplace.interfaces.progress import undo_progress

    done: list[str] = []
    for config in journals:
        with closing(Wakeup()) as wakeup, undo_progress() as progress:
            wakeup.stop_on_signals()
            result = undo_without_agent(config, None, lambda: wakeup.stopping, progress)
        if not result.is_complete:
            lines, failed = undo_lines(result), "not all could be undone; nothing was removed"
            for line in () if quiet else lines:
                click.echo(line, err=True)
            raise VmplaceError(f"{failed}: {'; '.join(lines)}" if quiet else failed, hint=_cure(result))
        done += undo_lines(result)
    return done


def _cure(result: "UndoResult") -> str:
    from vmplace.actuation.undo import NO_ROOM

    if any(reason.startswith(NO_ROOM) for guest in result.guests for reason in guest.stuck):
        return (
            "free memory on that node and run it again; if it was as full before vmplace came, "
            "--keep-placement leaves the rest where it is"
        )
    return "run it again, or with --keep-placement"


def _state_elsewhere() -> tuple[str, ...]:
    """Return the folders of journal and recordings that settings name, and that are there."""
    from vmplace.agent.config import read_config

    try:
        config = read_config().config
    except VmplaceError:
        return ()
    named = {Path(config.state_dir), config.journal_path.parent}
    return tuple(sorted(str(one) for one in named if one != STATE and one.is_dir()))


def _journals(*, quiet: bool) -> "tuple[tuple[Config, ...], tuple[str, ...]]":
    """Return the settings by which to undo, and notes on them; unless ``quiet``, these are printed, too.

    Raises VmplaceError if nobody can tell where the journal is.
    """
    from vmplace.interfaces.act_commands import notes_on_settings, refuse_absent, settings_of_undo

    config, wrong = settings_of_undo(None, quiet=quiet)
    refuse_absent(config, wrong, "; or leave what vmplace did, if it did anything: --keep-placement")
    return _with_usual_journal(config), notes_on_settings(config, wrong)


def _with_usual_journal(config: "Config") -> "tuple[Config, ...]":
    """Return also the settings of a journal where it usually is: it is removed, whatever settings say now."""
    usual = STATE / "journal"
    if config.journal_path == usual:
        return (config,)
    return config, msgspec.structs.replace(config, journal=str(usual))


def _report_installed(changes: Changes, *, as_json: bool, started: bool) -> None:
    written = tuple(str(piece.path) for piece in changes.to_write)
    if as_json:
        print_json(Installed(written, tuple(map(str, changes.kept))))
        return
    for path in written:
        click.echo(f"written {path}")
    for kept in changes.kept:
        click.echo(f"kept as it is: {kept}")
    if "/etc/libvirt/hooks/qemu.d/vmplace" in written:
        click.echo(
            "libvirt looks for hooks when it starts: systemctl restart libvirtd, or virtqemud (guests run on)"
        )
    if not started:
        click.echo("next: vmplace doctor; vmplace plan; then systemctl enable --now vmplace")
