"""Providers for a host's NUMA nodes in Placement, as children of Nova's own provider, and their traits.

1. Each node is a provider ``HOST_vmplace_nodeN`` below the one that nova-compute made for HOST: Nova leaves
   alone what is not its own, as Neutron's providers for bandwidth show.  Its id follows from the parent's.
2. It has CLASS, more units of it than anybody asks for: Placement looks at traits of providers that give
   resources.  A flavour asks for one unit and forbids TIGHT.  Nothing of Nova's own classes is touched.
3. Each change carries the provider's generation.  After a lost race the change is read and tried once more.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from vmplace.errors import VmplaceError

NODE = "CUSTOM_VMPLACE_NODE"
"""Trait of each of our providers; only these are ever changed or removed."""
TIGHT = "CUSTOM_VMPLACE_NUMA_TIGHT"
CLASS = "CUSTOM_VMPLACE_PLACE"
UNITS = 10_000
MICROVERSION = "1.29"
"""That of OpenStack Rocky."""
TRIES = 5
T = TypeVar("T")


class ConflictError(Exception):
    """Somebody else changed the provider meanwhile."""


class NoHostError(VmplaceError):
    """Placement does not know the host (yet)."""


@dataclass(frozen=True)
class Child:
    """One of our providers as it is."""

    id: str
    nid: int
    generation: int


class NodeProviders:
    """The providers of one host's nodes; ``adapter`` is a keystoneauth1 adapter for Placement."""

    def __init__(self, adapter: Any, host: str) -> None:
        self._adapter, self.host = adapter, host

    def publish(self, nids: tuple[int, ...], tight: frozenset[int]) -> None:
        """Make the providers be those of ``nids``, and say which are tight; raises VmplaceError."""
        root = self._root()
        self._retried(lambda: self._ensure_names())
        there = self._children(root)
        for nid in nids:
            self._retried(lambda nid=nid: self._publish_node(root, nid, nid in tight))  # type: ignore[misc]
        self._remove_all([child for child in there if child.nid not in nids])

    def withdraw(self) -> int:
        """Remove all our providers of the host and return how many; raises VmplaceError."""
        children = self._children(self._root())
        self._remove_all(children)
        return len(children)

    def tight(self) -> frozenset[int]:
        """Return the nodes that Placement has for tight; raises VmplaceError."""
        children = self._children(self._root())
        return frozenset(child.nid for child in children if TIGHT in self._traits(child.id)[1])

    def _root(self) -> str:
        found = self._get("/resource_providers", name=self.host)["resource_providers"]
        if not found:
            hint = "name it as `openstack hypervisor list` does: --host NAME; nova-compute makes its provider"
            raise NoHostError(f"Placement knows no provider {self.host!r}", hint=hint)
        return str(found[0]["uuid"])

    def _children(self, root: str) -> list[Child]:
        prefix = f"{self.host}_vmplace_node"
        found = self._get("/resource_providers", in_tree=root)["resource_providers"]
        return [
            Child(one["uuid"], int(one["name"].removeprefix(prefix)), one["generation"])
            for one in found
            if one["name"].startswith(prefix) and one["name"].removeprefix(prefix).isdecimal()
        ]

    def _ensure_names(self) -> None:
        for trait in (NODE, TIGHT):
            self._call("PUT", f"/traits/{trait}")
        self._call("PUT", f"/resource_classes/{CLASS}")

    def _publish_node(self, root: str, nid: int, is_tight: bool) -> None:
        child = str(uuid.uuid5(uuid.UUID(root), f"vmplace:node{nid}"))
        name = f"{self.host}_vmplace_node{nid}"
        generation, present = self._provider(child, name, root)
        inventories = self._get(f"/resource_providers/{child}/inventories")["inventories"]
        if inventories.get(CLASS, {}).get("total") != UNITS:
            whole = {**inventories, CLASS: {"total": UNITS}}
            body = {"resource_provider_generation": generation, "inventories": whole}
            reported = self._call("PUT", f"/resource_providers/{child}/inventories", body)
            generation = reported["resource_provider_generation"]
        # Traits that others gave it stay.
        wanted = (present - {TIGHT}) | {NODE} | ({TIGHT} if is_tight else set())
        if wanted != present:
            body = {"resource_provider_generation": generation, "traits": sorted(wanted)}
            self._call("PUT", f"/resource_providers/{child}/traits", body)

    def _provider(self, child: str, name: str, root: str) -> tuple[int, set[str]]:
        """Return the generation and the traits of a provider, made if it is not there."""
        answer = self._adapter.get(f"/resource_providers/{child}", raise_exc=False)
        if answer.status_code == 404:
            self._call(
                "POST", "/resource_providers", {"uuid": child, "name": name, "parent_provider_uuid": root}
            )
        return self._traits(child)

    def _traits(self, child: str) -> tuple[int, set[str]]:
        reported = self._get(f"/resource_providers/{child}/traits")
        return reported["resource_provider_generation"], set(reported["traits"])

    def _remove_all(self, children: Sequence[Child]) -> None:
        """Remove providers; one that guests hold units of stays, without its trait, until they are gone."""
        in_use = [f"{self.host}_vmplace_node{child.nid}" for child in children if not self._is_removed(child)]
        if in_use:
            hint = "guests hold units of them: migrate these, and withdraw again"
            raise VmplaceError(f"in use: {', '.join(in_use)}", hint=hint)

    def _is_removed(self, child: Child) -> bool:
        """Remove a provider, or take its trait if it is in use."""
        answer = self._adapter.delete(f"/resource_providers/{child.id}", raise_exc=False)
        if answer.status_code == 409:
            self._retried(lambda: self._clear_tight(child.id))
            return False
        if answer.status_code != 404:
            _checked(answer)
        return True

    def _clear_tight(self, child: str) -> None:
        generation, present = self._traits(child)
        body = {"resource_provider_generation": generation, "traits": sorted(present - {TIGHT})}
        self._call("PUT", f"/resource_providers/{child}/traits", body)

    def _get(self, path: str, **query: str) -> dict[str, Any]:
        return self._answer(_checked(self._adapter.get(path, params=query, raise_exc=False)))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer = self._adapter.request(path, method, json=body, raise_exc=False)
        return self._answer(_checked(answer))

    @staticmethod
    def _answer(answer: Any) -> dict[str, Any]:
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def _retried(self, step: Callable[[], T]) -> T:
        """Do a step anew when somebody else was faster; raises VmplaceError after TRIES."""
        again = Retrying(
            retry=retry_if_exception_type(ConflictError),
            stop=stop_after_attempt(TRIES),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            reraise=True,
        )
        try:
            done: T = again(step)
            return done
        except ConflictError as err:
            hint = "somebody else changes the providers of this host all the time"
            raise VmplaceError(f"Placement refused a change {TRIES} times: {err}", hint=hint) from err


def _checked(answer: Any) -> Any:
    """Return a good answer; raises ConflictError, or VmplaceError with the cure."""
    if answer.status_code < 400:
        return answer
    if answer.status_code == 401:
        hint = (
            "the token is wrong or expired: give clouds.yaml a password or an application credential, "
            "which renew themselves"
        )
        raise RightsError("Placement does not accept the token (401)", hint=hint)
    if answer.status_code == 403:
        hint = "the user of clouds.yaml needs role admin or service in its project"
        raise RightsError("Placement says that this user may not (403)", hint=hint)
    errors = (answer.json() or {}).get("errors") if "json" in answer.headers.get("content-type", "") else None
    detail = (errors or [{}])[0].get("detail", "")[:300].strip()
    if answer.status_code == 409:
        raise ConflictError(detail)
    raise VmplaceError(f"Placement answers {answer.status_code}: {detail}", hint="see Placement's log")


class RightsError(VmplaceError):
    """The token expired or may not: trying again at once is of no use."""
