"""vmplace openstack publish against the real Placement service: what is there, races, rights, an outage."""

import http.server
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("placement", reason="make test-cloud sets up the services of clouds")
pytest.importorskip("openstack")
from keystoneauth1 import adapter, session, token_endpoint

from tests.cloud.placement_service import PlacementService, placement_service
from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import running
from vmplace.cloud.openstack.placement import CLASS, NODE, TIGHT, NodeProviders, RightsError
from vmplace.cloud.openstack.publish import Publisher, providers
from vmplace.cloud.slow_state import SlowState
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacementService]:
    with placement_service(tmp_path_factory.mktemp("placement")) as found:
        yield found


@pytest.fixture
def admin(service: PlacementService) -> Any:
    """Return a client of its own: what vmplace did is looked at with other eyes."""
    auth = token_endpoint.Token(service.url, "admin")
    return adapter.Adapter(
        session.Session(auth=auth),
        service_type="placement",
        endpoint_override=service.url,
        default_microversion="1.39",
    )


@pytest.fixture
def host(admin: Any) -> str:
    """Make what nova-compute makes of a host: a provider with CPUs and memory."""
    name = f"host-{uuid.uuid4().hex[:8]}.example"
    made = admin.post("/resource_providers", json={"name": name}).json()
    inventories = {"VCPU": {"total": 64}, "MEMORY_MB": {"total": 262144}}
    body = {"resource_provider_generation": made["generation"], "inventories": inventories}
    admin.put(f"/resource_providers/{made['uuid']}/inventories", json=body)
    return name


@pytest.fixture
def ours(service: PlacementService, host: str, monkeypatch: pytest.MonkeyPatch) -> NodeProviders:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(service.clouds()))
    return providers("vmplace", host)


def children(admin: Any, host: str) -> dict[str, set[str]]:
    """Return the providers below a host, with their traits."""
    root = admin.get(f"/resource_providers?name={host}").json()["resource_providers"][0]["uuid"]
    tree = admin.get(f"/resource_providers?in_tree={root}").json()["resource_providers"]
    return {
        one["name"].removeprefix(f"{host}_"): set(
            admin.get(f"/resource_providers/{one['uuid']}/traits").json()["traits"]
        )
        for one in tree
        if one["uuid"] != root
    }


def candidates(admin: Any, host: str) -> int:
    """Return whether a flavour that wants a node that is not tight would come to this host."""
    query = (
        "resources=VCPU:8,MEMORY_MB:4096&group_policy=none"
        f"&resources_VMPLACE={CLASS}:1&required_VMPLACE={NODE},!{TIGHT}"
    )
    reported = admin.get(f"/allocation_candidates?{query}").json()
    root = admin.get(f"/resource_providers?name={host}").json()["resource_providers"][0]["uuid"]
    return sum(root in one["allocations"] for one in reported["allocation_requests"])


def test_each_node_has_a_provider_and_tight_ones_a_trait(admin: Any, host: str, ours: NodeProviders) -> None:
    ours.publish((0, 1, 8), frozenset({8}))
    assert children(admin, host) == {
        "vmplace_node0": {NODE}, "vmplace_node1": {NODE}, "vmplace_node8": {NODE, TIGHT},
    }  # fmt: skip
    assert ours.tight() == {8}


def test_a_flavour_leaves_out_a_host_whose_nodes_are_all_tight(
    admin: Any, host: str, ours: NodeProviders
) -> None:
    ours.publish((0, 1), frozenset())
    assert candidates(admin, host) == 2
    ours.publish((0, 1), frozenset({0}))
    assert candidates(admin, host) == 1
    ours.publish((0, 1), frozenset({0, 1}))
    assert candidates(admin, host) == 0


def test_publishing_the_same_changes_nothing(admin: Any, host: str, ours: NodeProviders) -> None:
    def generations() -> list[int]:
        tree = admin.get(f"/resource_providers?in_tree={ours._root()}").json()["resource_providers"]
        return [one["generation"] for one in tree]

    ours.publish((0, 1), frozenset({1}))
    before = generations()
    ours.publish((0, 1), frozenset({1}))
    assert generations() == before


def test_traits_and_providers_of_others_stay(admin: Any, host: str, ours: NodeProviders) -> None:
    ours.publish((0, 1), frozenset())
    [child] = [one for one in ours._children(ours._root()) if one.nid == 0]
    admin.put("/traits/CUSTOM_OF_SOMEBODY")
    generation = admin.get(f"/resource_providers/{child.id}").json()["generation"]
    traits = {"resource_provider_generation": generation, "traits": [NODE, "CUSTOM_OF_SOMEBODY"]}
    admin.put(f"/resource_providers/{child.id}/traits", json=traits)
    neutron = {"name": f"{host}:NIC Switch agent:eth0", "parent_provider_uuid": ours._root()}
    admin.post("/resource_providers", json=neutron)
    ours.publish((0, 1), frozenset({0}))
    assert children(admin, host)["vmplace_node0"] == {NODE, TIGHT, "CUSTOM_OF_SOMEBODY"}
    assert ours.withdraw() == 2
    assert [*children(admin, host)] == [neutron["name"].removeprefix(f"{host}_")]


def test_withdraw_tells_how_many_it_removed(admin: Any, host: str, ours: NodeProviders) -> None:
    ours.publish((0, 1), frozenset())
    done = CliRunner().invoke(cli, ["openstack", "withdraw", "--cloud", "vmplace", "--host", host])
    assert (done.exit_code, done.stdout) == (0, f"removed 2 providers of {host}\n")
    assert not children(admin, host)


def test_a_node_that_is_gone_is_removed(admin: Any, host: str, ours: NodeProviders) -> None:
    ours.publish((0, 1), frozenset({1}))
    ours.publish((0,), frozenset())
    assert children(admin, host) == {"vmplace_node0": {NODE}}


def test_who_loses_a_race_tries_again(
    admin: Any, host: str, ours: NodeProviders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else changes the provider between our reading and our writing, twice."""
    ours.publish((0,), frozenset())
    [child] = ours._children(ours._root())
    read, races = ours._traits, iter((1, 2))

    def raced(child_id: str) -> tuple[int, set[str]]:
        generation, present = read(child_id)
        if number := next(races, None):
            admin.put(f"/traits/CUSTOM_RACER_{number}")
            body = {
                "resource_provider_generation": generation,
                "traits": [*present, f"CUSTOM_RACER_{number}"],
            }
            admin.put(f"/resource_providers/{child.id}/traits", json=body)
        return generation, present

    monkeypatch.setattr(ours, "_traits", raced)
    ours.publish((0,), frozenset({0}))
    assert next(races, None) is None
    assert children(admin, host)["vmplace_node0"] == {NODE, TIGHT, "CUSTOM_RACER_1", "CUSTOM_RACER_2"}


def test_a_node_that_guests_hold_stays_and_is_reported(admin: Any, host: str, ours: NodeProviders) -> None:
    ours.publish((0,), frozenset({0}))
    [child] = ours._children(ours._root())
    body = {
        "allocations": {child.id: {"resources": {CLASS: 1}}}, "consumer_generation": None, "project_id": "p",
        "user_id": "u", "consumer_type": "INSTANCE",
    }  # fmt: skip
    assert admin.put(f"/allocations/{uuid.uuid4()}", json=body).status_code == 204
    with pytest.raises(VmplaceError, match="in use: "):
        ours.withdraw()
    assert children(admin, host) == {"vmplace_node0": {NODE}}


def test_nodes_in_use_keep_no_other_node(admin: Any, host: str, ours: NodeProviders) -> None:
    ours.publish((0, 1, 2), frozenset({0, 1, 2}))
    held = sorted(ours._children(ours._root()), key=lambda one: one.nid)[:2]
    for child in held:
        body = {
            "allocations": {child.id: {"resources": {CLASS: 1}}}, "consumer_generation": None,
            "project_id": "p", "user_id": "u", "consumer_type": "INSTANCE",
        }  # fmt: skip
        assert admin.put(f"/allocations/{uuid.uuid4()}", json=body).status_code == 204
    with pytest.raises(VmplaceError, match=r"in use: .*_vmplace_node0, .*_vmplace_node1"):
        ours.withdraw()
    assert children(admin, host) == {"vmplace_node0": {NODE}, "vmplace_node1": {NODE}}


def test_a_cloud_that_takes_the_question_and_does_not_answer_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vmplace.cloud.openstack.publish.TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v3"
        names = ("username", "password", "project_name", "user_domain_name", "project_domain_name")
        auth = {"auth_url": url, **dict.fromkeys(names, "x")}
        config = tmp_path / "clouds.yaml"
        config.write_text(json.dumps({"clouds": {"vmplace": {"auth": auth, "region_name": "r"}}}))
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(config))
        began = time.monotonic()
        with pytest.raises(VmplaceError):
            providers("vmplace", "host").publish((0,), frozenset())
        assert time.monotonic() - began < 30


def test_a_host_that_nova_does_not_know_is_reported(service: PlacementService, ours: NodeProviders) -> None:
    with pytest.raises(VmplaceError, match="knows no provider 'elsewhere'"):
        NodeProviders(ours._adapter, "elsewhere").publish((0,), frozenset())


def test_a_user_who_may_not_is_one_error_with_the_cure(
    service: PlacementService, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(service.clouds("somebody")))
    with pytest.raises(RightsError, match="403") as caught:
        providers("vmplace", host).publish((0,), frozenset())
    assert "needs role admin or service" in (caught.value.hint or "")


class Expired(http.server.BaseHTTPRequestHandler):
    """Stands in for Keystone's middleware before Placement, whose answer to a token that expired is this."""

    asked, versions = 0, b""

    def do_GET(self) -> None:
        if self.path == "/":
            # The versions are for all to see.
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(self.versions)
            return
        type(self).asked += 1
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Keystone uri="http://127.0.0.1:1"')
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_token_that_expired_is_one_error_with_the_cure_and_no_storm(
    service: PlacementService, host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with urllib.request.urlopen(service.url, timeout=20) as answer:  # noqa: S310 - our own server
        Expired.versions = answer.read()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Expired)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    clouds = service.clouds().read_text().replace(service.url, f"http://127.0.0.1:{server.server_port}")
    path = service.folder / "expired.yaml"
    path.write_text(clouds)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
    publisher = Publisher(lambda: status(node0=0.1), lambda: providers("vmplace", host), 60.0, SlowState())
    for now_s in (0.0, 60.0, 180.0):
        publisher.step(now_s)
    server.shutdown()
    [reported] = [one.getMessage() for one in caplog.records if "401" in one.getMessage()]
    assert "application credential" in reported
    # A step that fails asks twice at most: once more after the library renewed what it can.
    assert Expired.asked <= 6
    # The operator writes a good file: nothing needs a restart.
    path.write_text(service.clouds().read_text())
    publisher.step(600.0)
    assert publisher._problem is None


def status(**pressure: float) -> dict[str, Any]:
    """Return what the agent tells of two nodes and one guest."""
    reported = {name.removeprefix("node"): value for name, value in pressure.items()}
    return {"nids": [0, 1], "guests": {"db": {"pressure_by_node": reported}}}


def test_a_placement_that_is_gone_is_reported_once_and_asked_ever_less(
    service: PlacementService, host: str, ours: NodeProviders, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    now = {"s": 0.0}
    publisher = Publisher(
        lambda: status(node0=0.9), lambda: providers("vmplace", host), 60.0, SlowState(hold_s=600)
    )
    publisher.step(0.0)
    assert children(admin, host) == {"vmplace_node0": {NODE}, "vmplace_node1": {NODE}}
    service.kill()
    caplog.set_level(logging.WARNING)
    waits = []
    for now["s"] in range(600, 6000, 900):
        publisher.step(now["s"])
        waits.append(publisher.wait_s)
    assert waits == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0]
    assert len([one for one in caplog.records if "does not answer" in one.getMessage()]) == 1
    service.start()
    publisher.step(6000.0)
    publisher.step(6660.0)
    assert children(admin, host) == {"vmplace_node0": {NODE, TIGHT}, "vmplace_node1": {NODE}}
    assert publisher.wait_s == 0.0


def test_what_was_said_before_a_restart_holds_until_disproved(
    service: PlacementService, host: str, ours: NodeProviders, admin: Any
) -> None:
    ours.publish((0, 1), frozenset({0}))
    publisher = Publisher(lambda: status(node0=0.7), lambda: providers("vmplace", host), 60.0, SlowState())
    publisher.step(0.0)
    publisher.step(10_000.0)
    assert children(admin, host)["vmplace_node0"] == {NODE, TIGHT}


def test_an_agent_that_knows_no_nodes_yet_removes_none(
    service: PlacementService, host: str, ours: NodeProviders, admin: Any
) -> None:
    ours.publish((0, 1), frozenset({0}))
    publisher = Publisher(
        lambda: {"nids": [], "guests": {}}, lambda: providers("vmplace", host), 60.0, SlowState()
    )
    publisher.step(0.0)
    assert children(admin, host) == {"vmplace_node0": {NODE, TIGHT}, "vmplace_node1": {NODE}}
    assert publisher._problem is not None and "has not looked at the host" in publisher._problem


def test_a_connection_that_breaks_now_and_then_keeps_no_node_from_being_tight(
    service: PlacementService, host: str, ours: NodeProviders, admin: Any
) -> None:
    publisher = Publisher(
        lambda: status(node0=0.9), lambda: providers("vmplace", host), 60.0, SlowState(hold_s=600)
    )
    for now_s in range(0, 601, 60):
        publisher.step(float(now_s))
        # Each 5 minutes the connection is gone.
        if now_s % 300 == 0:
            publisher._providers = publisher._published = None
    assert children(admin, host)["vmplace_node0"] == {NODE, TIGHT}


def test_pressure_that_broke_while_placement_was_left_alone_begins_anew(
    service: PlacementService, host: str, ours: NodeProviders, admin: Any
) -> None:
    now = {"s": 0}

    def connect() -> NodeProviders:
        if now["s"] < 500:
            raise VmplaceError("Placement does not answer")
        return providers("vmplace", host)

    def ask() -> dict[str, Any]:
        if now["s"] in {480, 720, 780}:
            raise VmplaceError("the agent does not answer")
        return status(node0=0.1 if now["s"] == 360 else 0.9)

    publisher, tight_s = Publisher(ask, connect, 60.0, SlowState(hold_s=600).asked_each(60.0)), []
    for now["s"] in range(0, 1560, 60):
        publisher.step(float(now["s"]))
        if publisher._providers and TIGHT in children(admin, host)["vmplace_node0"]:
            tight_s.append(now["s"])
    # It had 0.1 at 360, when Placement was left alone.  At 480 nobody knew, and again from 720 to 780.
    assert tight_s[0] == 840 + 600


def test_the_agent_does_not_notice_that_placement_is_killed(
    service: PlacementService, host: str, admin: Any, tmp_path: Path
) -> None:
    """An agent whose windows are timed, the real command beside it, and a Placement that dies midway."""
    world = World([guest("db1"), guest("web")])
    agent = world.agent(window_ms=20)
    argv = [sys.executable, "-c", "from vmplace.interfaces.cli import main; main()", "openstack", "publish"]
    options = ["--cloud", "vmplace", "--host", host, "--interval", "1", "--socket", str(tmp_path / "s")]
    env = dict(os.environ, OS_CLIENT_CONFIG_FILE=str(service.clouds()))
    with running(world, agent, tmp_path / "s"):
        process = subprocess.Popen([*argv, *options], env=env, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            wait_until(lambda: set(children(admin, host)) == {"vmplace_node0", "vmplace_node1"})
            service.kill()
            before = agent.status.windows
            time.sleep(3)
            assert agent.status.windows > before + 10
            assert process.poll() is None
            service.start()
        finally:
            process.send_signal(signal.SIGTERM)
            _, reported = process.communicate(timeout=60)
    assert process.returncode == 0
    assert reported.count("does not answer") <= 1
    assert "admin" not in reported.replace("role admin", "").replace("clouds-admin.yaml", "")


def wait_until(check: Any, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < end
        threading.Event().wait(0.2)


def test_no_secret_is_an_option() -> None:
    """Arguments are for all to see in /proc."""
    argv = [
        sys.executable,
        "-c",
        "from vmplace.interfaces.cli import main; main()",
        "openstack",
        "publish",
        "--help",
    ]
    words = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not [word for word in ("password", "token", "secret") if f"--{word}" in json.dumps(words)]
