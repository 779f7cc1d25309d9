"""A new user's path, on the emulated host with real libvirt: from the package to first answers, and out.

Run by make test-package, which makes the package; skipped without one.  It takes 3 to 7 minutes, most of
them dpkg and the byte-compiler on an emulated CPU.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lab import trees
from lab.machine import LabHost
from lab.progress import Progress
from lab.toolbox import run_in_tree
from tests.lab.test_agent import CONFIG, host, is_away, is_home, snapshot, status, until
from tests.unit.interfaces.real_prometheus import PANELS, scraping, series
from vmplace.topology.domain_policy import NAMESPACE

__all__ = ["host", "snapshot"]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
FOUND = "/etc/vmplace/vmplace.toml"
DEPLOYED = "/opt/vmplace /usr/local/bin/vmplace /usr/lib/python3/dist-packages/vmplace.pth /etc/vmplace"
"""What the lab puts into each host, and a user's host has not."""
LISTING = (
    "find /etc /usr /var /run/vmplace -xdev -not -path '/var/log/*' -not -path '/var/lib/systemd/*'"
    " -not -path '/var/cache/*' -not -path '/var/lib/libvirt/*' -not -path '/etc/libvirt/qemu*'"
    " -not -name __pycache__ -not -path '*/__pycache__/*'"
    " \\( -type f -path '/usr/*' -printf '%p %m %u %g %s\\n' -o -printf '%p %m %u %g\\n' \\) 2>/dev/null"
)
"""Mode and owner of all that is there, and of files below /usr the size: nothing else writes these."""
DIGESTS = (
    "find /etc -xdev -type f -not -path '/etc/libvirt/qemu*' -not -name ld.so.cache -exec sha256sum {} +"
    " 2>/dev/null | sed -E 's/^(\\S+) +(.*)/\\2 \\1/'"
)
"""Of all of /usr they would take an emulated CPU minutes."""
OWN_OF_DPKG = ("/var/lib/dpkg", "/var/backups", "/etc/group", "/etc/gshadow", "/etc/passwd", "/etc/shadow")
"""What Debian's tools write of their own accord; a package's group stays, as Debian's policy has it."""
RECOMMENDED = "python3-decorator python3-prometheus-client"
UNSEEN = {
    "vmplace-fleet: Guests that press most",
    "vmplace-fleet: Most pressed hosts",
    "vmplace-fleet: Pressure of the whole fleet",
    "vmplace: Cycles per instruction since the last move",
    "vmplace: DRAM accesses by node",
    "vmplace: Local access ratio by guest, by counters",
    "vmplace: Stalls on other nodes' memory",
}
"""Panels that stay empty in the emulated host: its CPUs count neither cycles nor DRAM accesses."""
SCRAPE = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:9755/metrics').read().decode())\""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the package, and what it recommends and the host lacks, as apt would install them."""
    made = sorted((ROOT / "build/deb").glob("vmplace_*.deb"))
    if not made:
        pytest.skip("there is no package: make test-package")
    folder = tmp_path_factory.mktemp("debs")
    fetch = ["sh", "-ec", f"apt-get update -qq && apt-get download -qq {RECOMMENDED}"]
    run_in_tree(trees.packaging(Progress()), fetch, binds={folder: Path("/debs")}, cwd="/debs")
    return [*folder.glob("*.deb"), made[-1]]


@pytest.fixture
def clean_host(host: LabHost) -> Iterator[LabHost]:
    """The host without what the lab put there."""
    host.run(f"rm -rf {DEPLOYED}")
    yield host
    print(host.run("journalctl -u vmplace -u vmplace-metrics --no-pager | tail -60", check=False).stdout)


def listing(host: LabHost) -> set[str]:
    lines = host.run(f"{LISTING}; {DIGESTS}", check=False, timeout=300).stdout.splitlines()
    return {line for line in lines if not line.startswith(OWN_OF_DPKG)}


def install(host: LabHost, packages: list[Path]) -> None:
    for package in packages:
        host.put(package.read_bytes(), f"/root/{package.name}")
    host.run(f"dpkg -i {' '.join(f'/root/{package.name}' for package in packages)}", timeout=900)


def said(host: LabHost, command: str) -> str:
    return host.run(command, timeout=240).stdout


@contextmanager
def forwarded(host: LabHost) -> Iterator[str]:
    """Yield where the exporter inside answers from outside: the host has no network."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = said(host, SCRAPE).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page)

    with HTTPServer(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def panels_without_series(host: LabHost, folder: Path) -> set[str]:
    """Return the dashboards' panels that stay empty in a real Prometheus that scrapes the real agent."""
    with forwarded(host) as target, scraping(folder, target, every_s=15) as url:
        time.sleep(45)
        return {title for title, query in PANELS.items() if not series(url, query)}


def test_from_the_package_to_the_first_answers_and_out_again(
    clean_host: LabHost, packages: list[Path], tmp_path: Path
):
    host = clean_host
    before = listing(host)
    install(host, packages)
    assert json.loads(said(host, "vmplace doctor --json"))["can_work"] is True
    # Installed, it does nothing until it is started.
    assert host.run("systemctl is-active vmplace", check=False).stdout.strip() == "inactive"

    # The first policy is stated in the XML, before anything could move.
    element = f"<policy xmlns='{NAMESPACE}'><mode>advise</mode></policy>"
    said(host, f'virsh metadata one --uri {NAMESPACE} --key vmplace --set "{element}" --live')
    host.put(CONFIG.format(mb_per_s=512).encode(), FOUND)
    assert "no mistakes" in said(host, f"vmplace policy validate {FOUND}")
    said(host, "systemctl start vmplace vmplace-metrics")
    until(lambda: is_home(host, "two", 3), "the guest without a policy is at home", timeout_s=600)
    assert status(host)["guests"]["one"]["mode"] == "advise" and is_away(host, "one", 1)
    explained = said(host, "vmplace policy explain one")
    assert "advise" in explained and "domain XML" in explained
    assert "the vCPUs run on node 0" in said(host, "vmplace why one")

    said(host, "vmplace policy set one mode=auto --live")
    until(lambda: is_home(host, "one", 0), "the guest that may be moved now is at home", timeout_s=600)
    why = json.loads(said(host, "vmplace why one --json"))
    assert sum(one["outcome"]["moved"] for one in why["decisions"] if one["outcome"]) > 0

    picture = said(host, "vmplace top --once")
    assert {"one", "two"} <= {line.split()[0] for line in picture.splitlines() if line.split()}
    assert max(map(len, picture.splitlines())) <= 80
    scraped = said(host, SCRAPE)
    assert "vmplace_up 1.0" in scraped and 'vmplace_guest_info{domain="one"' in scraped

    assert panels_without_series(host, tmp_path) == UNSEEN

    said(host, "vmplace undo")
    assert is_away(host, "one", 1) and is_away(host, "two", 2)
    said(host, "systemctl stop vmplace-metrics vmplace")
    host.run(f"dpkg --purge vmplace {RECOMMENDED}", timeout=900)
    assert sorted(listing(host) ^ before) == []
    assert host.run("command -v vmplace", check=False).stdout == ""
    # By id, that is by who was started first.
    assert sorted(said(host, "virsh list --name --state-running").split()) == ["one", "two"]
