"""``vmplace-lab``, also ``vmplace lab``: build, boot and enter the emulated NUMA host."""

import sys
import time
from pathlib import Path

import click

from lab import cache, trees
from lab.build import build_all, patches_folder
from lab.console import attach
from lab.kernel import FLAVOURS, Flavour
from lab.machine import boot_host
from lab.package import build_package
from lab.patch_check import check_patches
from lab.progress import Progress
from lab.qemu_check import check_qemu_patches
from lab.scenario_commands import demo, run
from lab.selftests import (
    MORE_TIME,
    STRESS_CALLS,
    SelftestRun,
    result_table,
    run_selftests,
    settled,
    what_is_wrong,
)
from lab.selftests_intel import INTEL, run_selftests_on_intel
from lab.topology import read_topology, topology_names
from vmplace.interfaces.cli import run_command

TREES = {"host-root": trees.host_root, "managed-host": trees.managed_host, "packaging": trees.packaging}
TOPOLOGY = click.argument("topology", default="n4-full")


@click.group()
def lab() -> None:
    """Work with the lab: an emulated NUMA host with real KVM, libvirt and guests."""


def main() -> None:
    """Run the command line ``vmplace-lab``."""
    run_command(lab)


@lab.command()
@click.option("--json", "as_json", is_flag=True, help="print the paths as JSON")
def build(as_json: bool) -> None:
    """Build what the lab needs; what the cache has is not built again."""
    artifacts = build_all(Progress())
    parts = {name: str(path) for name, path in vars(artifacts).items() if path}
    if as_json:
        import json

        click.echo(json.dumps(parts, indent=1))
        return
    for name, path in parts.items():
        click.echo(f"{name:13} {path}")


@lab.command("deb")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/deb"), show_default=True)
def deb_command(out: Path) -> None:
    """Build the Debian package in a tree of Debian 13, and have lintian check it."""
    for path in build_package(Progress(), out):
        click.echo(path)


@lab.command("kernel-deb")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/deb-kernel"), show_default=True)
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="configure the kernel as in this file (.config, .xz or .gz); default: as Debian configures its own",
)
@click.option("--config-only", is_flag=True, help="only configure, and keep the configuration")
def kernel_deb_command(out: Path, config: Path | None, config_only: bool) -> None:
    """Build the patched kernel as Debian packages, to be installed beside the stock kernel.

    That takes hours with Debian's configuration, which has all drivers.  `make localmodconfig`, in a kernel's
    source on the host in question, writes one with that host's drivers only.
    """
    from lab.kernel_package import build_kernel_package

    patches = patches_folder("kvm-patches")
    made = build_kernel_package(Progress(), out, patches=patches, given=config, config_only=config_only)
    for path in made:
        click.echo(path)


@lab.command("tree")
@click.argument("name", type=click.Choice(sorted(TREES)))
def tree_command(name: str) -> None:
    """Build one of the lab's Debian trees, if it is not there, and print its path."""
    click.echo(TREES[name](Progress()))


@lab.command("control-plane")
def control_plane_command() -> None:
    """Build a Kubernetes API server, if it is not there, and print its folder; takes minutes (needs Go)."""
    from lab.control_plane import control_plane

    click.echo(control_plane(Progress()))


@lab.command("check-patches")
@click.option("--quick", is_flag=True, help="build only the directories that patches touch")
@click.option("--last", is_flag=True, help="build only with all patches applied")
def check_patches_command(quick: bool, last: bool) -> None:
    """Check the KVM patch series: it applies, checkpatch is silent, every step builds."""
    check_patches(Progress(), patches_folder("kvm-patches"), quick=quick, last_only=last)
    click.echo("the series is clean")


@lab.command("check-qemu-patches")
def check_qemu_patches_command() -> None:
    """Check the QEMU series: it applies, checkpatch finds no error, every step builds."""
    check_qemu_patches(Progress(), patches_folder("qemu-patches"))


@lab.command("selftests")
@click.option(
    *("-k", "--kernel", "kernels"), multiple=True, type=click.Choice(FLAVOURS), help="default: stock, patched"
)
@click.option("--only", default=".", show_default=True, help="only tests whose names match this expression")
@click.option("--on", "where", default="n2", show_default=True, help=f"a topology, or {INTEL} (in Bochs)")
@click.option("--limit", default=120, show_default=True, help="seconds for one test")
@click.option(
    "--stress-calls",
    default=STRESS_CALLS,
    show_default=True,
    help="calls of the series' stress test; in Bochs it makes few",
)
@click.option("--stress-light", is_flag=True, help="these have few pages each, and the guest mostly rests")
@click.option("--out", type=click.Path(path_type=Path), help="write the table of results to this file")
def selftests_command(  # noqa: PLR0913  (an argument per option)
    kernels: tuple[Flavour, ...],
    where: str,
    only: str,
    limit: int,
    stress_calls: int,
    stress_light: bool,
    out: Path | None,
) -> None:
    """Run the kernel's KVM selftests, and the series', on kernels of the lab.

    Tests that time out on one kernel alone, or are the series', run once more with ten times the time.
    The exit code is 1 if a kernel complains, a test of the series fails, or one of the kernel's own has not
    the same result on all.
    """
    progress, stress = Progress(), f"{stress_calls}{' light' * stress_light}"

    def tried(only: str, limit: int) -> list[SelftestRun]:
        return [
            run_selftests_on_intel(progress, kernel, only=only, limit_s=limit)
            if where == INTEL
            else run_selftests(progress, kernel, topology=where, only=only, limit_s=limit, stress=stress)
            for kernel in kernels or ("stock", "patched")
        ]

    runs = settled(tried(only, limit), lambda again: tried(again, MORE_TIME * limit))
    table = result_table(runs)
    if out:
        out.write_text(table)
    click.echo(table, nl=False)
    for sentence in (wrong := what_is_wrong(runs)):
        click.echo(sentence)
    sys.exit(1 if wrong else 0)


@lab.command()
def topologies() -> None:
    """List the machines that can be emulated."""
    for name in topology_names():
        click.echo(f"{name:20} {read_topology(name).description}")


@lab.command()
@TOPOLOGY
@click.option("--cold", is_flag=True, help="boot the kernel instead of restoring the snapshot")
@click.option("--meter", is_flag=True, help="load the meter plugin")
@click.option("--once", is_flag=True, help="end as soon as the host is up")
def boot(topology: str, cold: bool, meter: bool, once: bool) -> None:
    """Boot TOPOLOGY (default: n4-full) and keep it until Ctrl-C."""
    start = time.monotonic()
    with boot_host(topology, cold=cold, meter=meter) as host:
        click.echo(f"{topology} is up after {time.monotonic() - start:.1f} s; console log {host.console_log}")
        if not once:
            while host.is_running():
                time.sleep(0.5)


@lab.command()
@TOPOLOGY
@click.option("--cold", is_flag=True, help="boot the kernel instead of restoring the snapshot")
@click.option("--meter", is_flag=True, help="load the meter plugin")
def shell(topology: str, cold: bool, meter: bool) -> None:
    """Boot TOPOLOGY (default: n4-full) and open a root shell on its console (Ctrl-] ends it)."""
    with boot_host(topology, cold=cold, meter=meter) as host:
        click.echo("root shell of the emulated host; Ctrl-] ends it")
        attach(host.console_socket)


@lab.command()
@click.option("--all", "everything", is_flag=True, help="remove trees, kernel and images, too")
def clean(everything: bool) -> None:
    """Remove snapshots and leftovers from the cache."""
    for path in cache.clean(everything=everything):
        click.echo(f"removed {path}")


lab.add_command(run)
lab.add_command(demo)
