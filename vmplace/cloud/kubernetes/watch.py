"""How are the instances of this node followed?  A list and a watch of the API server, for two labels.

1. KubeVirt labels an instance with its node, and with the node that it migrates to: a watch each.
2. A watch ends by itself after WATCH_S.  Then, as after each failure, the client is made anew: Kubernetes
   renews the token of a service account in its file, and a new kubeconfig needs no restart.
3. After a failure the wait doubles from FIRST_WAIT_S to LONGEST_WAIT_S.  Without the right to look, it
   begins at RIGHTS_WAIT_S: a server that just began refuses for a moment what it will allow.  A failure is
   logged once, with the cure, and again when it changes.  After watches that end well but early, it waits
   for EARLY_WAIT_S at most: nothing is heard in that time.
"""

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmplace.cloud.kubernetes.node_state import NodeState
from vmplace.cloud.kubernetes.vmis import parse_vmi
from vmplace.errors import VmplaceError, cure_of_reading
from vmplace.extras import extra_module

LOG = logging.getLogger(__name__)
LABELS = ("kubevirt.io/nodeName", "kubevirt.io/migrationTargetNodeName")
WATCH_S, CONNECT_S, READ_S = 300, 10.0, 330.0
FIRST_WAIT_S, RIGHTS_WAIT_S, EARLY_WAIT_S, LONGEST_WAIT_S = 1.0, 15.0, 30.0, 300.0
HELD_S = 10.0
"""A watch that held for so long, after its list, shows that the API server is well."""
PATH = "/apis/kubevirt.io/v1/virtualmachineinstances"
MOST_LINE = 8 << 20
"""Bytes of one event: etcd keeps no object of more than 1.5 MB."""
_CREDENTIALS = threading.Lock()
"""msgspec, by which lightkube reads them, crashes if two threads are the first to meet a nested type."""


class CredentialsError(VmplaceError):
    """A kubeconfig, or the service account of this pod, gives no way to the API server."""


class RightsError(VmplaceError):
    """The API server does not let this service account in, or not do this."""


@dataclass
class ApiClient:
    """Asks one API server for instances, by a kubeconfig or by the service account of this pod."""

    kubeconfig: Path | None = None

    def __post_init__(self) -> None:
        """Read the credentials; raises CredentialsError where they give no way in."""
        configs = extra_module("lightkube.config.kubeconfig", "kube")
        adapter = extra_module("lightkube.config.client_adapter", "kube")
        self._httpx = adapter.httpx
        try:
            if self.kubeconfig is not None:
                # lightkube's error for a file that is missing is none of the file system's.
                self.kubeconfig.open("rb").close()
            with _CREDENTIALS:
                config = (
                    configs.KubeConfig.from_file(self.kubeconfig)
                    if self.kubeconfig
                    else configs.KubeConfig.from_service_account()
                )
            timeout = self._httpx.Timeout(CONNECT_S, read=READ_S)
            self._http = adapter.Client(config.get(), adapter.ConnectionParams(timeout=timeout))
        except Exception as err:
            raise self._unusable(err) from None

    def _unusable(self, err: Exception) -> CredentialsError:
        if self.kubeconfig is None:
            hint = "give --kubeconfig, or run it in a pod with a service account"
            return CredentialsError(f"cannot connect to the API server: {_without_lines(err)}", hint=hint)
        if isinstance(err, OSError):
            reported = f"cannot be read: {err.strerror or err}"
            return CredentialsError(f"{self._file_of(err)} {reported}", hint=cure_of_reading(err))
        hint = f"name one with which `kubectl --kubeconfig {self.kubeconfig}` works"
        return CredentialsError(f"{self.kubeconfig} is no kubeconfig ({_without_lines(err)})", hint=hint)

    def _file_of(self, err: OSError) -> str:
        """Return which file an error is about: httpx opens those of certificates, and names none."""
        if err.filename is None:
            return f"a certificate or key that {self.kubeconfig} names"
        return str(err.filename)

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def listed(self, selector: str) -> tuple[list[Any], str]:
        """Return instances, and the version from which to watch; raises VmplaceError."""
        answer = self._answer({"labelSelector": selector})
        try:
            found = json.loads(answer.read())
            return list(found["items"]), str(found["metadata"]["resourceVersion"])
        except (ValueError, KeyError, TypeError) as err:
            hint = "see that the kubeconfig names the API server itself, not a page before it"
            raise VmplaceError(f"the API server's list is malformed: {err}", hint=hint) from err
        finally:
            answer.close()

    def iter_events(self, selector: str, version: str) -> Iterator[tuple[str, Any]]:
        """Yield type and object of what changes, until the watch ends; raises VmplaceError.

        The first is BEGUN, once the server lets it watch.
        """
        asked = {
            "labelSelector": selector, "watch": "true", "resourceVersion": version,
            "timeoutSeconds": str(WATCH_S),
        }  # fmt: skip
        answer = self._answer(asked)
        try:
            yield "BEGUN", {}
            for line in answer.iter_lines():
                if line and len(line) <= MOST_LINE:
                    event = json.loads(line)
                    yield str(event["type"]), event["object"]
        except (self._httpx.HTTPError, ValueError, KeyError, TypeError) as err:
            raise VmplaceError(f"the watch broke: {err}", hint="it goes on by itself") from err
        finally:
            answer.close()

    def _answer(self, asked: dict[str, str]) -> Any:
        try:
            answer = self._http.send(self._http.build_request("GET", PATH, params=asked), stream=True)
        except self._httpx.LocalProtocolError:
            # Its text has the header, and so the token.
            hint = "see the token in --kubeconfig: does it end with a line break?"
            raise RightsError("the token holds a character that no header may", hint=hint) from None
        except self._httpx.HTTPError as err:
            hint = "see that it runs; vmplace goes on by itself once it does"
            raise VmplaceError(f"the API server does not answer: {err}", hint=hint) from err
        if answer.status_code == 200:
            return answer
        answer.read()
        answer.close()
        raise _refusal(answer.status_code, _without_credentials(answer))


def _without_lines(err: Exception) -> str:
    """Return what was wrong with a kubeconfig; what a parser shows of its lines may be a token."""
    if mark := getattr(err, "problem_mark", None):
        return f"it is no valid YAML, line {mark.line + 1}"
    is_known = isinstance(err, OSError) or type(err).__module__.startswith("lightkube.")
    return str(err) if is_known else type(err).__name__


def _without_credentials(answer: Any) -> str:
    """Return the text of an answer; a page before the API server may print the request in it."""
    secret = answer.request.headers.get("Authorization", "").rpartition(" ")[2]
    return str(answer.text.replace(secret, "(hidden)") if secret else answer.text)


def _refusal(status: int, text: str) -> VmplaceError:
    """Return the error for an answer that is not 200."""
    try:
        reported = str(json.loads(text)["message"])[:300]
    except (ValueError, KeyError, TypeError):
        reported = text[:300]
    if status == 401:
        hint = "its token is not valid, or not any more: see the service account, or --kubeconfig"
        return RightsError(f"the API server does not know who asks: {reported}", hint=hint)
    if status == 403:
        hint = "apply vmplace's ClusterRole (kubernetes/base/rbac.yaml): list and watch"
        return RightsError(f"a right is missing: {reported}", hint=hint)
    if status == 404:
        return VmplaceError("the cluster has no VirtualMachineInstances", hint="is KubeVirt installed?")
    hint = "see the API server's log; vmplace asks again by itself"
    return VmplaceError(f"the API server answers {status}: {reported}", hint=hint)


@dataclass
class Watch:
    """Follows the instances of ``node`` by one label; ``connect`` makes a new client."""

    label: str
    node: str
    state: NodeState
    connect: Callable[[], ApiClient]
    stop: threading.Event
    clock: Callable[[], float] = time.monotonic
    _problem: str = ""
    _wait_s: float = 0.0
    _began_s: float | None = None
    _ends_early: bool = False

    def run(self) -> None:
        """Go on until stopped."""
        while not self.stop.is_set():
            self.step()
            # A random wait: else all nodes would ask at once when the server returns.
            self.stop.wait(self._wait_s * random.uniform(0.8, 1.2))  # noqa: S311

    def step(self) -> None:
        """Follow until the watch ends or breaks, and set how long to wait before the next."""
        self._began_s = None
        try:
            self.follow()
        except VmplaceError as err:
            self._fail(err)
        except Exception as err:
            # An unexpected exception of a library must not end the thread.
            self._fail(VmplaceError(f"{type(err).__name__}: {err}"))
        else:
            if not (self._has_held() or self._ends_early or self.stop.is_set()):
                LOG.warning(
                    "a watch ended early: while they do, news comes up to %g s late (is there a proxy?)",
                    EARLY_WAIT_S,
                )
                self._ends_early = True
            self._back_off(FIRST_WAIT_S, EARLY_WAIT_S)

    def _has_held(self) -> bool:
        return self._began_s is not None and self.clock() - self._began_s >= HELD_S

    def _back_off(self, least_s: float, most_s: float) -> None:
        """Wait longer each time, until a watch held for a while: each list costs the API server much."""
        before_s = 0.0 if self._has_held() else self._wait_s
        self._wait_s = min(max(2 * before_s, least_s), most_s)

    def follow(self) -> None:
        """List, then watch; raises VmplaceError."""
        client = self.connect()
        try:
            selector = f"{self.label}={self.node}"
            items, version = client.listed(selector)
            self.state.replace(self.label, (parse_vmi(one, self.node) for one in items))
            for kind, found in client.iter_events(selector, version):
                if kind == "BEGUN":
                    self._began_s = self.clock()
                    self._works()
                if not self._take(kind, found) or self.stop.is_set():
                    return
        finally:
            client.close()

    def _take(self, kind: str, found: Any) -> bool:
        """Take an event in; False if there is to be a new list."""
        if kind in ("ADDED", "MODIFIED"):
            self.state.put(self.label, parse_vmi(found, self.node))
        elif kind == "DELETED":
            self.state.drop(self.label, parse_vmi(found, self.node))
        # 410 Gone: the version is too old to go on from.
        return kind != "ERROR"

    def _works(self) -> None:
        if self._problem:
            LOG.warning("instances are followed again")
        self._problem = ""

    def _fail(self, err: VmplaceError) -> None:
        self._back_off(RIGHTS_WAIT_S if isinstance(err, RightsError) else FIRST_WAIT_S, LONGEST_WAIT_S)
        reported = f"{err}" + (f" ({err.hint})" if err.hint else "")
        if reported != self._problem:
            LOG.error("%s", reported)
        self._problem = reported
