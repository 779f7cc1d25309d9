"""KubeVirt's node hooks: virt-handler says before it starts, stops or migrates an instance on this node.

KubeVirt 1.9 (alpha, feature gate Plugins) calls ``NodeHookService.ExecuteNodeHook`` on a UNIX socket with
the hook's name and the instance as JSON.  Hooks report sooner than the watch; if they differ, the watch is
right.  The answer is always empty and comes at once: no hook may delay or stop a guest.
"""

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vmplace.cloud.kubernetes.node_state import NodeState
from vmplace.cloud.kubernetes.vmis import parse_vmi
from vmplace.cloud.kubernetes.watch import LABELS
from vmplace.extras import extra_module

LOG = logging.getLogger(__name__)
SERVICE, METHOD = "kubevirt.hooks.plugins.v1alpha1.NodeHookService", "ExecuteNodeHook"
POINT, VMI = 1, 2
"""Numbers of the request's fields: hookPoint, vmi."""
MOST_BYTES = 4 << 20
BEGINS = frozenset({"PreMigrationSource", "PreMigrationTarget"})
ENDS = frozenset({"PostMigrationTarget", "PostVMStop"})


def request_type() -> Any:
    """Return a message class that reads what vmplace needs of the request."""
    descriptor = extra_module("google.protobuf.descriptor_pb2", "kube")
    pool = extra_module("google.protobuf.descriptor_pool", "kube").DescriptorPool()
    factory = extra_module("google.protobuf.message_factory", "kube")
    file = descriptor.FileDescriptorProto(name="vmplace_node_hook.proto", package="vmplace", syntax="proto3")
    message = file.message_type.add(name="NodeHook")
    kinds = descriptor.FieldDescriptorProto
    message.field.add(name="point", number=POINT, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="vmi", number=VMI, type=kinds.TYPE_BYTES, label=kinds.LABEL_OPTIONAL)
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("vmplace.NodeHook"))


class NodeHooks:
    """Serves the socket at ``path``, which only root may open, until ``close``."""

    def __init__(self, path: Path, node: str, state: NodeState) -> None:
        grpc = extra_module("grpc", "kube")
        self._path, self._node, self._state = path, node, state
        handler = grpc.unary_unary_rpc_method_handler(
            self._executed, request_deserializer=request_type().FromString, response_serializer=bytes
        )
        limits = [("grpc.max_receive_message_length", MOST_BYTES)]
        self._server = grpc.server(ThreadPoolExecutor(2, "node-hooks"), options=limits)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        # Nobody else may open it, not even for the moment until its mode is set.
        before = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix:{path}")
        finally:
            os.umask(before)
        self._server.start()

    def close(self) -> None:
        """Stop serving and take the socket away."""
        self._server.stop(0.5).wait()
        self._path.unlink(missing_ok=True)

    def _executed(self, request: Any, _context: object) -> bytes:
        try:
            self._take(request.point, json.loads(request.vmi))
        except Exception as err:
            # The answer is empty in any case: virt-handler must go on.
            LOG.error("a hook was not understood: %s: %s", type(err).__name__, err)
        return b""

    def _take(self, point: str, raw: Any) -> None:
        vmi = parse_vmi(raw, self._node)
        if point in BEGINS:
            self._state.migrates(vmi.key)
        elif point in ENDS:
            self._state.migrates(vmi.key, is_over=True)
        if vmi.pods:
            self._state.put(LABELS[0], vmi)
        self._state.news.set()
