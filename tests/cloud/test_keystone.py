"""vmplace openstack publish with a real Keystone: tokens that expire, a wrong password, an outage."""

import logging
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("keystone", reason="make test-cloud sets up the services of clouds")
pytest.importorskip("openstack")
from keystoneauth1 import adapter, session
from keystoneauth1.identity import v3

from tests.cloud.keystone_service import PASSWORD, KeystoneService, keystone_and_placement
from tests.cloud.placement_service import PlacementService
from vmplace.cloud.openstack.publish import Publisher, providers
from vmplace.cloud.slow_state import SlowState

EXPIRES_S = 30
USER = {
    "username": "admin", "password": PASSWORD, "project_name": "admin",
    "user_domain_id": "default", "project_domain_id": "default",
}  # fmt: skip
Services = tuple[KeystoneService, PlacementService]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with keystone_and_placement(tmp_path_factory.mktemp("keystone"), EXPIRES_S) as found:
        yield found


@pytest.fixture(scope="module")
def host(services: Services) -> str:
    """Make what nova-compute makes of a host."""
    name = f"host-{uuid.uuid4().hex[:8]}.example"
    answer = client(services).post("/resource_providers", json={"name": name})
    assert answer.status_code == 200
    return name


def client(services: Services) -> Any:
    """Return a client of its own: what vmplace did is looked at with other eyes."""
    keystone, placement = services
    auth = v3.Password(auth_url=f"{keystone.url}/v3", **USER)
    return adapter.Adapter(
        session.Session(auth=auth),
        service_type="placement",
        endpoint_override=placement.url,
        default_microversion="1.39",
    )


@dataclass(frozen=True)
class Token:
    """A token, and when it was asked for."""

    text: str
    asked_s: float


@pytest.fixture(scope="module", autouse=True)
def early(services: Services) -> Token:
    """Ask for a token before the other tests, during which it gets old."""
    asked_s = time.monotonic()
    return Token(str(client(services).get_token()), asked_s)


def revoke(services: Services, text: str) -> None:
    """Make a token void, as its age does."""
    headers = {"X-Subject-Token": text}
    keystone = adapter.Adapter(client(services).session, endpoint_override=f"{services[0].url}/v3")
    assert keystone.delete("/auth/tokens", headers=headers).status_code == 204


def publisher_of(
    services: Services, host: str, auth: dict[str, str], auth_type: str, patch: pytest.MonkeyPatch
) -> Publisher:
    """Return a publisher that writes to Placement at each step."""
    keystone, placement = services
    patch.setenv("OS_CLIENT_CONFIG_FILE", str(keystone.clouds_of(auth, auth_type, placement)))
    patch.setattr("vmplace.cloud.openstack.publish.REFRESH_S", 0.0)
    status = {"nids": [0, 1], "guests": {"db": {"pressure_by_node": {"0": 0.1}}}}
    return Publisher(lambda: status, lambda: providers("vmplace", host), 60.0, SlowState())


def nodes(services: Services, host: str) -> set[str]:
    found = client(services).get(f"/resource_providers?name={urllib.parse.quote(host)}").json()
    root = found["resource_providers"][0]["uuid"]
    tree = client(services).get(f"/resource_providers?in_tree={root}").json()["resource_providers"]
    return {one["name"] for one in tree if one["uuid"] != root}


def test_a_password_outlives_its_tokens(
    services: Services, host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = publisher_of(services, host, USER, "password", monkeypatch)
    publisher.step(0.0)
    assert nodes(services, host) == {f"{host}_vmplace_node0", f"{host}_vmplace_node1"}
    connection: Any = publisher._providers
    revoke(services, connection._adapter._adapter.get_token())
    publisher.step(60.0)
    assert publisher._problem is None and publisher.wait_s == 0.0
    assert publisher._providers is connection, "it went on with the connection that it had"
    assert not [one for one in caplog.records if one.name.startswith("vmplace")]


def test_a_wrong_password_is_one_error_and_the_right_one_needs_no_restart(
    services: Services, host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keystone, placement = services
    wrong = {**USER, "password": "not-the-password"}
    publisher = publisher_of(services, host, wrong, "password", monkeypatch)
    publisher.step(0.0)
    publisher.step(60.0)
    [reported] = [one.getMessage() for one in caplog.records if one.name.startswith("vmplace")]
    assert "Keystone does not let this user in" in reported
    assert "not-the-password" not in caplog.text
    keystone.clouds_of(USER, "password", placement)
    publisher.step(180.0)
    assert publisher._problem is None


def test_a_keystone_that_is_killed_is_reported_once_and_found_again(
    services: Services, host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keystone, _ = services
    publisher = publisher_of(services, host, USER, "password", monkeypatch)
    publisher.step(0.0)
    assert publisher._problem is None
    keystone.kill()
    try:
        for now_s in (60.0, 180.0, 420.0):
            publisher.step(now_s)
        reported = [one.getMessage() for one in caplog.records if one.name.startswith("vmplace")]
        assert 1 <= len(reported) <= 2, reported
        expected = ("Placement and Keystone run", "cannot connect to OpenStack")
        assert all(any(words in one for words in expected) for one in reported)
        assert PASSWORD not in caplog.text
    finally:
        keystone.start()
    publisher.step(900.0)
    assert publisher._problem is None


def test_a_token_that_expired_is_one_error_with_the_cure(
    services: Services,
    host: str,
    early: Token,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A token by itself cannot be renewed: the error names what can."""
    auth = {"token": early.text, "project_name": "admin", "project_domain_id": "default"}
    time.sleep(max(early.asked_s + EXPIRES_S + 2 - time.monotonic(), 0))
    publisher = publisher_of(services, host, auth, "v3token", monkeypatch)
    caplog.set_level(logging.WARNING)
    waits = []
    for now_s in (0.0, 60.0, 180.0):
        publisher.step(now_s)
        waits.append(publisher.wait_s)
    [reported] = [one.getMessage() for one in caplog.records if one.name.startswith("vmplace")]
    assert "Keystone does not let this user in" in reported and "application credential" in reported
    assert waits == [60.0, 120.0, 240.0]
    assert early.text not in caplog.text
