"""``vmplace kube``: tell Kubernetes what the agent knows of this node."""

import contextlib
import logging
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import click

from vmplace.cloud.kubernetes.features import feature_file
from vmplace.cloud.slow_state import SlowState
from vmplace.errors import VmplaceError, WrongUsageError
from vmplace.interfaces.agent_socket import socket_path
from vmplace.interfaces.client import ask
from vmplace.interfaces.options import FiniteRange, WholeSentences, examples, socket_option
from vmplace.model.pressure import node_pressure
from vmplace.whole_file import replace_file

LOG = logging.getLogger(__name__)
FOLDER = Path("/etc/kubernetes/node-feature-discovery/features.d")
EXPIRES_AFTER = 5
"""Intervals.  Labels stay while an agent restarts, and not much longer."""


@click.group(
    cls=WholeSentences,
    epilog=examples("vmplace kube features --interval 60\nvmplace kube agent --node $NODE_NAME"),
)
def kube() -> None:
    """Connect the agent of this node with Kubernetes: labels and annotations (docs/clouds/kubevirt.md)."""


@kube.command(
    "features",
    epilog=examples("vmplace kube features\nvmplace kube features --once --dir /tmp", needs_agent=True),
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), default=FOLDER, show_default=True
)
@click.option(
    "--interval", type=FiniteRange(min=1, max=3600), default=60.0, show_default=True, help="Seconds."
)
@click.option("--once", is_flag=True, help="Write the file once, and end; the file expires.")
@socket_option
def features(folder: Path, interval: float, once: bool, socket: Path | None) -> None:
    """Keep a feature file for Node Feature Discovery, which labels the node with it.

    It runs until it is stopped, and then removes the file.  While no agent answers, nothing is written, and
    the labels expire after five intervals.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    path = folder / "vmplace"
    if once:
        written(path, socket, SlowState(), interval)
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _keep(path, socket, interval, stop)
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@kube.command("agent", epilog=examples("vmplace kube agent --node worker-1 --kubeconfig admin.conf"))
@click.option(
    "--node", envvar="NODE_NAME", required=True, help="This node's name in the cluster.  [env: NODE_NAME]"
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Credentials for the API server.  [default: the pod's service account]",
)
@click.option(
    "--hooks",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Socket for KubeVirt's node hooks (1.9, alpha).  [default: none]",
)
@click.option(
    "--interval",
    type=FiniteRange(min=0.1, max=60),
    default=3.0,
    show_default=True,
    help="Seconds between two updates of the file.",
)
@socket_option
def agent(
    node: str, kubeconfig: Path | None, hooks: Path | None, interval: float, socket: Path | None
) -> None:
    """Use annotations of VirtualMachineInstances as the policies of this node's guests.

    It runs beside the agent, as root, until it is stopped.  It writes stated-guests.json beside the agent's
    socket, and the agent reads that file.
    """
    from vmplace.cloud.kubernetes.node_agent import serve

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    # lightkube's libraries since its 1.0.0.  Their lines have addresses and headers in them.
    for library in ("httpx2", "httpcore2"):
        logging.getLogger(library).setLevel(logging.ERROR)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if kubeconfig is not None:
        _check(kubeconfig)
    serve(node, kubeconfig, hooks, (socket or socket_path()).parent, interval, stop)


def _check(kubeconfig: Path) -> None:
    """Raise WrongUsageError for a file by which nobody can ask an API server: waiting does not mend it."""
    from vmplace.cloud.kubernetes.watch import ApiClient, CredentialsError

    try:
        ApiClient(kubeconfig).close()
    except CredentialsError as err:
        raise WrongUsageError(f"--kubeconfig: {err}", hint=err.hint) from err


def _keep(path: Path, socket: Path | None, interval: float, stop: threading.Event) -> None:
    state, problem = SlowState().asked_each(interval), None
    while not stop.is_set():
        try:
            state, reported = written(path, socket, state, interval), None
        except VmplaceError as err:
            reported = f"{err}" + (f" ({err.hint})" if err.hint else "")
        if reported and reported != problem:
            LOG.error("%s", reported)
        problem = reported
        stop.wait(interval)


def written(path: Path, socket: Path | None, state: SlowState, interval_s: float) -> SlowState:
    """Ask the agent, write the file, and return what is known now; raises VmplaceError."""
    status = ask("status", path=socket)
    nids = [int(nid) for nid in status["nids"]]
    if not nids:
        raise VmplaceError("the agent has not looked at the host yet", hint="it does within seconds")
    guests = (guest.get("pressure_by_node") for guest in status["guests"].values())
    pressure = node_pressure({int(nid): one for nid, one in (of or {}).items()} for of in guests)
    state = state.after(time.monotonic(), {nid: pressure.get(nid, 0.0) for nid in nids})
    state = replace(state, tight=state.tight & set(nids))
    text = feature_file(status["policy"], nids, state.tight, time.time() + EXPIRES_AFTER * interval_s)
    try:
        replace_file(path, text.encode())
    except OSError as err:
        hint = "is Node Feature Discovery here? it makes the folder; else --dir"
        raise VmplaceError(f"{path} cannot be written: {err.strerror}", hint=hint) from err
    return state
