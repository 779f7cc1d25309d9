"""What do VirtualMachineInstances say of this node's guests?  Pure; objects as the API server gives them.

1. Annotations ``vmplace.io/KEY``: keys and values of the policy.  KubeVirt copies those of a VirtualMachine's
   template to the instance.
2. ``status.activePods``: pod uid -> node.  During a migration there are two.
3. ``status.migrationState``: the guest leaves, or arrives, until that is completed or failed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from vmplace.topology.domain_policy import MAX_TEXT
from vmplace.topology.stated_guests import StatedGuest

PREFIX = "vmplace.io/"
MIGRATING_S = 30.0
"""For how long a guest is left alone after it was last heard that it migrates; heard again, longer."""


MOST_BYTES = 16 << 10
"""Of one instance's annotations as they are written: the file holds 250 instances, a node has 110 pods."""
TOO_LONG = (("annotations", "x" * (MAX_TEXT + 1)),)
"""What is written instead of more: a text that the agent takes for an error of that guest."""


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
    pods = _table(status.get("activePods")).items()
    state = _table(status.get("migrationState"))
    begun = bool(state.get("startTimestamp")) and not state.get("endTimestamp")
    return Vmi(
        str(meta.get("namespace", "")),
        str(meta.get("name", "")),
        _annotations(_table(meta.get("annotations"))),
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
    vmis = tuple(vmis)
    named = Counter(uid for vmi in vmis for uid in vmi.pods)
    found = []
    for vmi in vmis:
        until_s = max(now_s + MIGRATING_S if vmi.migrates else 0.0, leaving.get(vmi.key, 0.0))
        until_s = until_s if until_s > now_s else 0.0
        for uid in vmi.pods:
            # If two instances name a pod, it is not known which one has it: neither sets its policy.
            if uid in qemu and named[uid] == 1:
                by = f"VirtualMachineInstance {vmi.namespace}/{vmi.name}"
                found.append(StatedGuest(*qemu[uid], by, vmi.annotations, until_s, vmi.namespace, vmi.name))
    return tuple(sorted(found, key=lambda one: (one.pid, one.start_time)))


def _annotations(said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return key and text of those for vmplace, cut so that one tenant cannot fill the file for all."""
    mine = sorted(item for item in said.items() if item[0].startswith(PREFIX))
    found = tuple((key.removeprefix(PREFIX), str(text)) for key, text in mine)
    return found if len(msgspec.json.encode(found)) <= MOST_BYTES else TOO_LONG


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
