"""Publish the agent's state to Placement, from a process of its own.

1. Every ``interval_s`` the process asks the agent what guests take of each node, and turns that into traits,
   with hysteresis (slow_state.py).  It writes to Placement only when something changed, or every
   ``REFRESH_S``, in case somebody else changed Placement.
2. A failure is logged once, and again only when it differs.  After each failure of Placement, it is left
   alone for twice as long, up to ``SLOWEST_S``; the agent is asked all the same, as pressure must hold
   without a break.  The connection is made anew from clouds.yaml, so a new password needs no restart.
3. The agent notices none of this: it answers one question a minute.
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vmplace.cloud.openstack.placement import MICROVERSION, NodeProviders, RightsError
from vmplace.cloud.slow_state import SlowState
from vmplace.errors import VmplaceError
from vmplace.extras import extra_module
from vmplace.model.pressure import node_pressure

LOG = logging.getLogger(__name__)
REFRESH_S = 900.0
SLOWEST_S = 900.0
TIMEOUT_S = 20
Ask = Callable[[], Mapping[str, Any]]


def providers(cloud: str | None, host: str) -> NodeProviders:
    """Return the providers of ``host`` by clouds.yaml or OS_* variables; raises VmplaceError."""
    openstack = extra_module("openstack", "openstack")
    errors = extra_module("keystoneauth1.exceptions", "openstack")
    try:
        connection = openstack.connect(cloud=cloud, app_name="vmplace", api_timeout=TIMEOUT_S)
        adapter = _Adapter(connection, errors)
    except (errors.Unauthorized, errors.MissingRequiredOptions) as err:
        raise _not_let_in(err) from err
    except Exception as err:
        # What Keystone answers to a token that expired, asked for another by it.
        if isinstance(err, errors.NotFound) and "validate token" in str(err):
            raise _not_let_in(err) from err
        hint = f"see clouds.yaml ({_searched()}): openstack --os-cloud NAME resource provider list"
        raise VmplaceError(f"cannot connect to OpenStack: {_said(err)}", hint=hint) from err
    return NodeProviders(adapter, host)


def _searched() -> str:
    named = os.environ.get("OS_CLIENT_CONFIG_FILE")
    return named or "here, in ~/.config/openstack or in /etc/openstack; OS_CLIENT_CONFIG_FILE names another"


def _not_let_in(err: Exception) -> RightsError:
    hint = "see the password or application credential in clouds.yaml; a token alone cannot be renewed"
    return RightsError(f"Keystone does not let this user in: {_said(err)}", hint=hint)


def _said(err: Exception) -> str:
    """Return an error without what differs each time it comes: it is to be logged once."""
    return re.sub(r"\s*\(Request-ID: [^)]*\)", "", str(err))


class _Adapter:
    """keystoneauth's adapter, whose errors are reported with the cure."""

    def __init__(self, connection: Any, errors: Any) -> None:
        # The adapter knows its connection by a weak reference.
        self._connection, self._errors = connection, errors
        self._adapter = adapter = connection.placement
        adapter.default_microversion = MICROVERSION
        adapter.connect_retries = adapter.status_code_retries = 0

    def request(self, path: str, method: str, **options: Any) -> Any:
        """Return the answer; raises VmplaceError where there is none."""
        try:
            return self._adapter.request(path, method, timeout=TIMEOUT_S, **options)
        except (self._errors.Unauthorized, self._errors.MissingRequiredOptions) as err:
            raise _not_let_in(err) from err
        except self._errors.ClientException as err:
            hint = "see that Placement and Keystone run; it goes on by itself once they do"
            raise VmplaceError(f"Placement does not answer: {_said(err)}", hint=hint) from err

    def get(self, path: str, **options: Any) -> Any:
        """Return the answer to GET."""
        return self.request(path, "GET", **options)

    def delete(self, path: str, **options: Any) -> Any:
        """Return the answer to DELETE."""
        return self.request(path, "DELETE", **options)


@dataclass
class Publisher:
    """Keeps Placement as the agent says; ``connect`` makes a new connection."""

    ask: Ask
    connect: Callable[[], NodeProviders]
    interval_s: float
    state: SlowState
    wait_s: float = 0.0
    """For how long Placement is left alone after it failed."""
    _providers: NodeProviders | None = None
    _published: tuple[tuple[int, ...], frozenset[int]] | None = None
    _published_s: float = 0.0
    _again_s: float = 0.0
    _has_begun: bool = False
    _problem: str | None = None

    def run(self, stop: threading.Event, clock: Callable[[], float]) -> None:
        """Go on until stopped."""
        while not stop.is_set():
            self.step(clock())
            stop.wait(self.interval_s)

    def step(self, now_s: float) -> None:
        """Ask once, and tell Placement unless it is left alone."""
        try:
            nids = self._asked(now_s)
        except Exception as err:
            self._report(err)
            return
        if now_s < self._again_s:
            return
        try:
            self._tell(now_s, nids)
        except Exception as err:
            # Errors of any library below: none may end the process.
            self._providers = self._published = None
            self.wait_s = min(max(2 * self.wait_s, self.interval_s), max(SLOWEST_S, self.interval_s))
            self._again_s = now_s + self.wait_s
            self._report(err)
        else:
            if self._problem:
                LOG.warning("it works again: Placement knows what the agent says")
            self._problem, self.wait_s = None, 0.0

    def publish(self, now_s: float) -> None:
        """Ask the agent and tell Placement what changed; raises VmplaceError."""
        self._tell(now_s, self._asked(now_s))

    def _asked(self, now_s: float) -> tuple[int, ...]:
        """Return the host's nodes, once the state has what the agent says of them; raises VmplaceError."""
        status = self.ask()
        nids = tuple(int(nid) for nid in status["nids"])
        if not nids:
            # It has just begun: no nodes is no reason to remove their providers.
            raise VmplaceError("the agent has not looked at the host yet", hint="it does within seconds")
        guests = status["guests"].values()
        pressure = node_pressure(_numbers(guest.get("pressure_by_node")) for guest in guests)
        self.state = self.state.after(now_s, {nid: pressure.get(nid, 0.0) for nid in nids})
        return nids

    def _tell(self, now_s: float, nids: tuple[int, ...]) -> None:
        if self._providers is None:
            self._providers = self.connect()
        if not self._has_begun:
            # What was said before this process began holds until it is disproved.
            self.state = replace(self.state, tight=self.state.tight | self._providers.tight())
            self._has_begun = True
        wanted = (nids, self.state.tight & set(nids))
        if wanted != self._published or now_s - self._published_s >= REFRESH_S:
            self._providers.publish(*wanted)
            self._published, self._published_s = wanted, now_s

    def _report(self, err: Exception) -> None:
        """Log a failure, once until there is another."""
        known = err if isinstance(err, VmplaceError) else VmplaceError(f"{type(err).__name__}: {err}")
        reported = f"{known}" + (f" ({known.hint})" if known.hint else "")
        if reported != self._problem:
            LOG.error("%s", reported)
        self._problem = reported


def _numbers(pressure: Mapping[str, float] | None) -> dict[int, float] | None:
    return None if pressure is None else {int(nid): value for nid, value in pressure.items()}
