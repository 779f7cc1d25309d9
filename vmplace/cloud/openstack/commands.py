"""``vmplace openstack``: tell Nova and Placement what the agent knows of this host."""

import logging
import os
import signal
import socket
import threading
import time
import warnings
from pathlib import Path

import click

from vmplace.cloud.openstack.provider_config import ACTS, HERE, provider_config
from vmplace.cloud.slow_state import FREE_BELOW, HOLD_S, TIGHT_FROM
from vmplace.errors import VmplaceError
from vmplace.extras import extra_module
from vmplace.interfaces.options import FiniteRange, WholeSentences, examples, socket_option

CLOUD = click.option("--cloud", envvar="OS_CLOUD", help="Name in clouds.yaml.  [default: $OS_CLOUD]")
HOST = click.option("--host", help="This host's name in Placement.  [default: its full name]")
SHARE = FiniteRange(min=0.0, max=1.0)


@click.group(
    cls=WholeSentences,
    epilog=examples(
        "vmplace openstack provider-config > /etc/nova/provider_config/vmplace.yaml\n"
        "OS_CLIENT_CONFIG_FILE=/etc/vmplace/clouds.yaml vmplace openstack publish --cloud vmplace\n"
        "OS_CLIENT_CONFIG_FILE=/etc/vmplace/clouds.yaml vmplace openstack withdraw --cloud vmplace"
    ),
)
def openstack() -> None:
    """Publish traits of this host and of its NUMA nodes to OpenStack (docs/clouds/openstack.md)."""


@openstack.command("provider-config")
@click.option("--advise", is_flag=True, help="This host places a guest only if its flavour says so.")
def print_provider_config(advise: bool) -> None:
    """Print a provider.yaml for nova-compute; restart nova-compute to have it read."""
    click.echo(provider_config((HERE,) if advise else (HERE, ACTS)), nl=False)


@openstack.command(
    "publish",
    epilog=examples(
        "OS_CLIENT_CONFIG_FILE=/etc/vmplace/clouds.yaml vmplace openstack publish --cloud vmplace",
        needs_agent=True,
    ),
)
@CLOUD
@HOST
@click.option(
    "--interval", type=FiniteRange(min=1, max=3600), default=60.0, show_default=True, help="Seconds."
)
@click.option(
    "--tight-from",
    type=SHARE,
    default=TIGHT_FROM,
    show_default=True,
    help="A node is tight at this pressure.",
)
@click.option(
    "--free-below", type=SHARE, default=FREE_BELOW, show_default=True, help="It is free below this one."
)
@click.option(
    "--hold",
    type=FiniteRange(min=0, max=86400),
    default=HOLD_S,
    show_default=True,
    help="Seconds before a node's trait changes.",
)
@click.option("--once", is_flag=True, help="Publish the nodes as they are, and end.")
@socket_option
def publish(  # noqa: PLR0913 - an option each
    cloud: str | None,
    host: str | None,
    interval: float,
    tight_from: float,
    free_below: float,
    hold: float,
    once: bool,
    socket: Path | None,
) -> None:
    """Keep a provider for each NUMA node of this host in Placement, with a trait while it is tight.

    It runs until it is stopped, in a process of its own.  Secrets come from clouds.yaml alone.
    """
    _check_cloud(cloud)
    extra_module("tenacity", "openstack")
    from vmplace.cloud.openstack.publish import Publisher, providers
    from vmplace.cloud.slow_state import SlowState
    from vmplace.interfaces.client import ask

    if free_below > tight_from:
        raise VmplaceError(
            f"--free-below {free_below} is above --tight-from {tight_from}",
            hint=f"give a --free-below of at most {tight_from}",
        )
    # The library warns its own developers, on stderr.
    warnings.filterwarnings("ignore", module="openstack")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    # The libraries log requests, and with them tokens, at their lower levels.
    for name in ("keystoneauth", "openstack", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    publisher = Publisher(
        lambda: ask("status", path=socket),
        lambda: providers(cloud, _name(host)),
        interval,
        SlowState(tight_from=tight_from, free_below=free_below, hold_s=hold).asked_each(interval),
    )
    if once:
        publisher.publish(time.monotonic())
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    publisher.run(stop, time.monotonic)


@openstack.command("withdraw")
@CLOUD
@HOST
def withdraw(cloud: str | None, host: str | None) -> None:
    """Remove what `publish` made: do so before this host, or vmplace, is removed."""
    _check_cloud(cloud)
    extra_module("tenacity", "openstack")
    from vmplace.cloud.openstack.publish import providers

    count = providers(cloud, _name(host)).withdraw()
    click.echo(f"removed {count} providers of {_name(host)}")


def _check_cloud(cloud: str | None) -> None:
    """Raise an error of usage if nothing names a cloud, before libraries guess."""
    if cloud is None and "OS_AUTH_URL" not in os.environ:
        raise click.UsageError("name a cloud of clouds.yaml: --cloud NAME, or OS_CLOUD")


def _name(host: str | None) -> str:
    return host or socket.getfqdn()
