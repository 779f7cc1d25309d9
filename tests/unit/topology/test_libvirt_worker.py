"""What the worker that writes summaries does with domains that libvirt would have it wait for."""

import importlib.util
import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from vmplace.topology import libvirt_worker

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libvirt") is None, reason="Python has no libvirt module"
)
NAMESPACE = "urn:vmplace:placement:1"


@dataclass
class Domain:
    """A domain in the middle of a job, as the QEMU driver tells of it; no libvirtd runs here."""

    job: dict[str, int]
    texts: list[str | None] = field(default_factory=list)

    def jobStats(self) -> dict[str, int]:  # noqa: N802
        return self.job

    def setMetadata(self, *words: Any) -> None:  # noqa: N802
        self.texts.append(words[1])


class Connection:
    def __init__(self, **domains: Domain) -> None:
        self._domains = domains

    def lookupByUUIDString(self, uuid: str) -> Domain:  # noqa: N802
        return self._domains[uuid]


def test_a_domain_with_a_job_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    import libvirt

    busy = Domain({"type": libvirt.VIR_DOMAIN_JOB_UNBOUNDED})
    idle = Domain({"type": libvirt.VIR_DOMAIN_JOB_NONE})
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"busy": "<a/>", "idle": "<a/>"})))
    connection = Connection(busy=busy, idle=idle)
    assert libvirt_worker.set_summaries(connection, NAMESPACE) == {"text": ""}
    assert busy.texts == [] and idle.texts == ["<a/>"]


def test_the_test_driver_which_has_no_jobs_is_written_to(monkeypatch: pytest.MonkeyPatch):
    import libvirt

    connection = libvirt.open("test:///default")
    domain = connection.lookupByName("test")
    element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    reported = json.dumps({domain.UUIDString(): "<placement>A</placement>"})
    monkeypatch.setattr("sys.stdin", io.StringIO(reported))
    assert libvirt_worker.set_summaries(connection, NAMESPACE) == {"text": ""}
    assert "A" in domain.metadata(element, NAMESPACE, libvirt.VIR_DOMAIN_AFFECT_LIVE)
