"""What runs beside the agent on a node of KubeVirt: two watches, one writer, and the hooks if wanted."""

import contextlib
import threading
from functools import partial
from pathlib import Path

from vmplace.cloud.kubernetes.node_hooks import NodeHooks
from vmplace.cloud.kubernetes.node_state import NodeState, StatedFile
from vmplace.cloud.kubernetes.pods import qemu_by_pod
from vmplace.cloud.kubernetes.watch import LABELS, ApiClient, Watch
from vmplace.extras import extra_module
from vmplace.topology.procfs import PROC
from vmplace.topology.stated_guests import NAME


def serve(  # noqa: PLR0913 - what an installation may differ in
    node: str,
    kubeconfig: Path | None,
    hooks: Path | None,
    folder: Path,
    interval_s: float,
    stop: threading.Event,
    proc: Path = PROC,
) -> None:
    """Run until ``stop`` is set; raises VmplaceError if a library is missing."""
    extra_module("lightkube", "kube")
    state = NodeState(LABELS)
    with contextlib.ExitStack() as stack:
        if hooks is not None:
            stack.callback(NodeHooks(hooks, node, state).close)
        for label in LABELS:
            watch = Watch(label, node, state, partial(ApiClient, kubeconfig), stop)
            # A watch may wait for the server for minutes: the process does not wait for it.
            threading.Thread(target=watch.run, name=label, daemon=True).start()
        StatedFile(folder / NAME, state, partial(qemu_by_pod, proc)).run(stop, interval_s)
