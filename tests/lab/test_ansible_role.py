"""The Ansible role on the emulated host, with real systemd, libvirt and guests, where the agent can work.

Its playbooks are those of `make test-ansible`.  Run by make test-ansible-lab, which makes the package and
installs Ansible; skipped without these.  It takes some ten minutes, most of them Python on an emulated CPU.
"""

from pathlib import Path

import pytest

from lab import trees
from lab.machine import LabHost
from lab.progress import Progress
from lab.toolbox import run_in_tree
from tests.lab.ansible_host import PLAYBOOK, ansible_on
from tests.lab.test_agent import host, is_away, is_home, snapshot, status, until
from tests.lab.test_new_user import DEPLOYED, SCRAPE, install, listing, said

__all__ = ["host", "snapshot"]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(3000), pytest.mark.flaky(reruns=0)]

ROOT = Path(__file__).parents[2]
WANTED = "python3-apt python-apt-common distro-info-data python3-decorator python3-prometheus-client"
"""What Ansible wants of a host that it manages, and what the exporter wants: there beforehand."""
OWN_OF_APT = "/var/lib/apt/"
"""What apt writes of its own accord as it first runs, as the playbook has it, too."""


@pytest.fixture(scope="module")
def package() -> Path:
    made = sorted((ROOT / "build/deb").glob("vmplace_*.deb"))
    if not made or not PLAYBOOK.exists():
        pytest.skip("there is no package, or no Ansible: make test-ansible-lab")
    return made[-1]


@pytest.fixture
def clean_host(host: LabHost, tmp_path: Path) -> LabHost:
    """The host without what the lab put there, and with what Ansible wants of it."""
    host.run(f"rm -rf {DEPLOYED}")
    fetch = ["sh", "-ec", f"apt-get update -qq && apt-get download -qq {WANTED}"]
    run_in_tree(trees.packaging(Progress()), fetch, binds={tmp_path: Path("/debs")}, cwd="/debs")
    install(host, sorted(tmp_path.glob("*.deb")))
    return host


def origins(host: LabHost) -> dict[str, str]:
    return {name: guest["origin"] for name, guest in status(host)["guests"].items()}


def test_the_role_runs_an_agent_that_works_changes_nothing_twice_and_leaves_the_tree_as_it_was(
    package: Path, clean_host: LabHost, tmp_path: Path
):
    host = clean_host
    before = listing(host)
    with ansible_on(host, tmp_path, package) as ansible:
        first = ansible.run("converge")
        assert first["changed"] > 0 and first["failed"] == 0
        assert said(host, "systemctl is-active vmplace vmplace-metrics").split() == ["active", "active"]
        until(
            lambda: is_home(host, "one", 0) and is_home(host, "two", 3), "guests are at home", timeout_s=600
        )
        # The handler has just started it anew, and libvirt takes its time.
        until(lambda: origins(host) == {"one": "libvirt", "two": "libvirt"}, "the agent knows both guests")
        assert "vmplace_up 1.0" in said(host, SCRAPE)

        assert ansible.run("converge")["changed"] == 0
        assert ansible.run("verify")["failed"] == 0

        # Removed, after it has given back what it moved; compared by the playbook itself, and here.
        assert ansible.run("side_effect")["changed"] > 0
    assert is_away(host, "one", 1) and is_away(host, "two", 2)
    assert [line for line in sorted(listing(host) ^ before) if not line.startswith(OWN_OF_APT)] == []
    assert host.run("command -v vmplace", check=False).stdout == ""
    assert sorted(said(host, "virsh list --name --state-running").split()) == ["one", "two"]
