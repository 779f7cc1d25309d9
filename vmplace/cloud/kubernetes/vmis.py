"""What do VirtualMachineInstances say of this node's guests?  Pure; objects as the API server gives them.

1. Annotations ``vmplace.io/KEY``: keys and values of the policy.  KubeVirt copies those of a VirtualMachine's
   template to the instance.
2. ``status.activePods``: pod uid -> node.  During a migration there are two.
3. ``status.migrationState``: the guest leaves, or arrives, until that is completed or failed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vmplace.topology.stated_guests import StatedGuest

PREFIX = "vmplace.io/"
MIGRATING_S = 30.0
"""For how long a guest is left alone after it was last heard that it migrates; heard again, longer."""


@dataclass(frozen=True)
class Vmi:
    """One instance: its policy as key and text, its pods on this node, and whether it is on its way."""

    namespace: str
    name: str
    annotations: tuple[tuple[str, str], ...]
    pods: tuple[str, ...]
    migrates: bool

    @property
    def key(self) -> tuple[str, str]:
        """Return what no other instance has at this moment."""
        return self.namespace, self.name


def parse_vmi(raw: Mapping[str, Any], node: str) -> Vmi:
    """Return what an object says; what is not there, or is of another type, says nothing."""
    meta, status = _table(raw.get("metadata")), _table(raw.get("status"))
    annotations = _table(meta.get("annotations")).items()
    pods = _table(status.get("activePods")).items()
    state = _table(status.get("migrationState"))
    begun = bool(state.get("startTimestamp")) and not state.get("endTimestamp")
    return Vmi(
        str(meta.get("namespace", "")),
        str(meta.get("name", "")),
        tuple(
            (key.removeprefix(PREFIX), str(text))
            for key, text in sorted(annotations)
            if key.startswith(PREFIX)
        ),
        tuple(sorted(uid for uid, where in pods if where == node)),
        begun and not state.get("completed") and not state.get("failed"),
    )


def stated(
    vmis: Iterable[Vmi],
    qemu: Mapping[str, tuple[int, int]],
    leaving: Mapping[tuple[str, str], float],
    now_s: float,
) -> tuple[StatedGuest, ...]:
    """Return what to say to the agent; ``leaving``: until when hooks said that an instance migrates."""
    found = []
    for vmi in vmis:
        until_s = max(now_s + MIGRATING_S if vmi.migrates else 0.0, leaving.get(vmi.key, 0.0))
        for uid in vmi.pods:
            if uid in qemu:
                by = f"VirtualMachineInstance {vmi.namespace}/{vmi.name}"
                found.append(
                    StatedGuest(*qemu[uid], by, vmi.annotations, until_s if until_s > now_s else 0.0)
                )
    return tuple(sorted(found, key=lambda one: (one.pid, one.start_time)))


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
