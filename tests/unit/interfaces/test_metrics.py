"""Prometheus reads what the agent tells: checked by promtool, and by the parser of prometheus-client."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from vmplace.agent.state import AgentStatus, GuestStatus
from vmplace.errors import WrongUsageError
from vmplace.interfaces import metrics
from vmplace.interfaces.control import ControlServer
from vmplace.interfaces.metrics_command import parse_listen
from vmplace.interfaces.prometheus import dashboard
from vmplace.interfaces.protocol import Response
from vmplace.topology.domain_policy import CloudNames

ROOT = Path(__file__).parents[3]
RULES = ROOT / "vmplace/interfaces/prometheus/vmplace.rules.yml"


def guest(**changes: Any) -> GuestStatus:
    reported: dict[str, Any] = {
        "mode": "auto", "state": "settled", "pid": 1, "origin": "libvirt", "vcpu_nids": (0,),
        "memory_bytes": 4 << 20, "pages_by_node": {0: 768, 1: 256}, "hot_pages_by_node": {0: 1},
        "estimated_lar": 0.75, "moved_bytes": 8192, "replica_bytes": 4096,
        "movability": {"movable": 4 << 20}, "reasons": (), "uuid": "c0ffee",
        "pressure_by_node": {0: 0.5, 1: 0.25}, "dram_accesses_by_node": {0: 2e6, 1: 0.0},
    }  # fmt: skip
    return GuestStatus(**{**reported, **changes})


def status_of(**guests: GuestStatus) -> Any:
    """Return what the control socket answers to "status", as a client reads it."""
    status = AgentStatus("1", 1, "kvm", "auto", False, guests=guests, mc_imbalance_estimate=0.5)
    return msgspec.to_builtins(status, str_keys=True)


def samples(status: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in metrics.families(status):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def test_memory_is_reported_in_bytes_by_guest_and_node() -> None:
    found = samples(status_of(db=guest()))
    key = frozenset({("domain", "db"), ("numa_node", "0")})
    assert found["vmplace_guest_memory_bytes", key] == 3 << 20


def test_pressure_is_reported_by_guest_and_node() -> None:
    found = samples(status_of(db=guest()))
    key = frozenset({("domain", "db"), ("numa_node", "0")})
    assert found["vmplace_guest_memory_pressure_ratio", key] == 0.5


def test_local_access_ratios_by_pages_and_by_counters_are_two_families() -> None:
    found = samples(status_of(db=guest(counted_lar=0.5), other=guest()))
    ours, others = (frozenset({("domain", name)}) for name in ("db", "other"))
    by_pages, by_counters = (f"vmplace_guest_{way}local_access_ratio" for way in ("", "counted_"))
    assert (found[by_pages, ours], found[by_counters, ours]) == (0.75, 0.5)
    assert (by_pages, others) in found and (by_counters, others) not in found


def test_accesses_are_reported_by_guest_and_node() -> None:
    found = samples(status_of(db=guest(), plain=guest(uuid=None)))
    name, ours = "vmplace_guest_node_dram_accesses_per_second", {("domain", "db"), ("uuid", "c0ffee")}
    assert found[name, frozenset({*ours, ("numa_node", "0")})] == 2e6
    assert found[name, frozenset({*ours, ("numa_node", "1")})] == 0
    assert found[name, frozenset({("domain", "plain"), ("uuid", ""), ("numa_node", "0")})] == 2e6


def test_what_is_unknown_has_no_sample() -> None:
    unknown = ("estimated_lar", "pages_by_node", "pressure_by_node", "dram_accesses_by_node")
    found = samples(status_of(db=guest(**dict.fromkeys(unknown))))
    names = {name for name, _ in found}
    assert "vmplace_guest_local_access_ratio" not in names
    assert "vmplace_guest_memory_bytes" not in names
    assert "vmplace_guest_memory_pressure_ratio" not in names
    assert "vmplace_guest_node_dram_accesses_per_second" not in names


def test_a_guest_is_in_exactly_one_state() -> None:
    found = samples(status_of(db=guest(state="held")))
    states = {
        dict(labels)["state"]: value for (name, labels), value in found.items() if name.endswith("_state")
    }
    assert states.pop("held") == 1
    assert set(states.values()) == {0}


def test_each_state_that_a_guest_can_be_in_is_reported() -> None:
    words = re.findall(r"[a-z]+", (GuestStatus.__doc__ or "").partition("is one of:")[2].partition(".")[0])
    assert set(metrics.STATES) <= set(words)
    assert {"migrating", "moving", "advised"} <= set(metrics.STATES)


def test_info_joins_uuid_domain_and_the_names_of_the_cloud() -> None:
    names = CloudNames(name="shop", project="sales", flavour="m1.large")
    found = samples(status_of(db=guest(names=names), pod=guest(names=CloudNames("default", "vm1"))))
    ours = {("uuid", "c0ffee"), ("origin", "libvirt"), ("mode", "auto")}
    nova = {("namespace", ""), ("name", "shop"), ("project", "sales"), ("flavour", "m1.large")}
    assert found["vmplace_guest_info", frozenset({*ours, ("domain", "db"), *nova})] == 1
    kube = {("namespace", "default"), ("name", "vm1"), ("project", ""), ("flavour", "")}
    assert found["vmplace_guest_info", frozenset({*ours, ("domain", "pod"), *kube})] == 1


@pytest.fixture
def agent_socket(tmp_path: Path) -> Iterator[Path]:
    """Serve a status of two guests on a real control socket."""
    path = tmp_path / "run/control.sock"
    path.parent.mkdir()
    evil = 'a"b\\c\nd'
    server = ControlServer(
        path, lambda _peer, _request: Response(True, data=status_of(**{"db": guest(), evil: guest()}))
    )
    server.start()
    yield path
    server.close()


def cli(*words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", "from vmplace.interfaces.cli import main; main()", "metrics", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)


def test_print_is_what_prometheus_reads_back(agent_socket: Path) -> None:
    done = cli("print", "--socket", str(agent_socket))
    found = {family.name: family for family in text_string_to_metric_families(done.stdout)}
    domains = {sample.labels["domain"] for sample in found["vmplace_guest_state"].samples}
    assert domains == {"db", 'a"b\\c\nd'}


def test_the_rules_are_printed_as_promtool_checks_them() -> None:
    done = cli("rules")
    assert (done.returncode, done.stdout, done.stderr) == (0, RULES.read_text(), "")


@pytest.mark.parametrize("name", dashboard.SHIPPED)
def test_the_dashboards_are_printed_as_they_are_shipped(name: str) -> None:
    done = cli("dashboard", *(("--fleet",) if "fleet" in name else ()))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["title"] and done.stdout == RULES.with_name(name).read_text()


def test_an_absent_agent_is_down_not_an_error(tmp_path: Path) -> None:
    done = cli("print", "--socket", str(tmp_path / "none"))
    assert done.returncode == 0
    assert "vmplace_up 0.0" in done.stdout
    assert "vmplace_guest" not in done.stdout


def test_a_file_is_written_whole_and_readable(agent_socket: Path, tmp_path: Path) -> None:
    target = tmp_path / "vmplace.prom"
    assert cli("write", str(target), "--socket", str(agent_socket)).returncode == 0
    assert target.stat().st_mode & 0o777 == 0o644
    assert target.read_text().endswith("\n")
    assert list(tmp_path.glob(".vmplace*")) == []


def test_a_file_that_cannot_be_written_names_itself(tmp_path: Path) -> None:
    done = cli("write", str(tmp_path / "no/such.prom"), "--socket", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "no/such.prom" in done.stderr


def test_a_full_disk_is_reported_with_the_cure_and_a_device_stays(tmp_path: Path) -> None:
    """By a link: were it replaced, the machine would keep its device."""
    (link := tmp_path / "full").symlink_to("/dev/full")
    done = cli("write", str(link), "--socket", str(tmp_path / "none"))
    assert (done.returncode, link.is_char_device()) == (1, True)
    assert "No space left" in done.stderr and "free space" in done.stderr


def test_a_pipe_stays_one_and_a_link_leads_to_the_file(tmp_path: Path) -> None:
    (link := tmp_path / "link.prom").symlink_to(tmp_path / "file.prom")
    assert cli("write", str(link), "--socket", str(tmp_path / "none")).returncode == 0
    assert link.is_symlink() and "vmplace_up 0.0" in (tmp_path / "file.prom").read_text()
    (pipe := tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    done = cli("write", str(pipe), "--socket", str(tmp_path / "none"))
    assert (done.returncode, "vmplace_up 0.0" in done.stdout) == (0, True)


def test_serve_answers_scrapes_until_sigterm(agent_socket: Path) -> None:
    script = "from vmplace.interfaces.cli import main; main()"
    argv = [sys.executable, "-c", script, "metrics", "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*argv, "--socket", str(agent_socket)], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stderr
    url = process.stderr.readline().split()[-1]
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own server
        text = answer.read().decode()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "vmplace_up 1.0" in text


@pytest.mark.parametrize("text", ["9755", ":9755", "127.0.0.1:", "127.0.0.1:x", "[::1]:70000"])
def test_a_bad_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(WrongUsageError, match="not ADDRESS:PORT"):
        parse_listen(text)


def promtool() -> str:
    found = shutil.which("promtool", path=f"{ROOT}/build/tools:{os.environ['PATH']}")
    if found is None and os.environ.get("CI"):
        pytest.fail("promtool is missing: make promtool")
    return found or pytest.skip("promtool is missing: make promtool")


def test_promtool_finds_no_fault_in_the_metrics(agent_socket: Path) -> None:
    text = cli("print", "--socket", str(agent_socket)).stdout
    checked = subprocess.run(
        [promtool(), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_rules_do_what_they_promise(tmp_path: Path) -> None:
    for file in (RULES, ROOT / "tests/data/prometheus/rules_test.yml"):
        shutil.copy(file, tmp_path)
    argv = [promtool(), "test", "rules", "rules_test.yml"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_runbooks_are_headings_of_the_manual() -> None:
    manual = (ROOT / "docs/operate.md").read_text()
    headings = {re.sub(r"[^a-z0-9 -]", "", line.strip("# ").lower()).replace(" ", "-")
                for line in manual.splitlines() if line.startswith("#")}  # fmt: skip
    wanted = set(re.findall(r"docs/operate\.md#([a-z-]+)", RULES.read_text()))
    assert wanted
    assert wanted <= headings


def test_the_section_of_each_runbook_names_its_alert() -> None:
    manual = (ROOT / "docs/operate.md").read_text()
    sections = {one.partition("\n")[0].lower().replace(" ", "-"): one for one in manual.split("\n### ")}
    alerts = re.findall(r"- alert: (\w+)\n.*?docs/operate\.md#([a-z-]+)", RULES.read_text(), re.S)
    assert len(alerts) == RULES.read_text().count("- alert:") > 3
    assert [name for name, anchor in alerts if f"Alert `{name}`." not in sections[anchor]] == []


@pytest.mark.parametrize("name", dashboard.SHIPPED)
def test_shipped_dashboards_are_those_in_code(name: str) -> None:
    assert RULES.with_name(name).read_text() == dashboard.SHIPPED[name](), "run make dashboard"
