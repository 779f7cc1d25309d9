"""On a host with systemd, an agent installed by ``vmplace install`` works, and nothing of it stays."""

import pytest

from lab.machine import LabHost
from tests.lab.libvirt_host import HOOK
from tests.lab.test_agent import balance, balancing, host, snapshot, status, until

__all__ = ["host", "snapshot"]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

# groupadd leaves copies of /etc/group and the like.
ALL = "find /etc /usr/local ! -name '*-' ! -name .pwd.lock"


def tree(host: LabHost) -> str:
    """Return names, modes and contents of what is installed on a host."""
    names = host.run(f"{ALL} -printf '%p %y %m %l\\n' | sort").stdout
    sums = host.run(f"{ALL} -type f -exec sha256sum {{}} + | sort -k 2").stdout
    return names + sums


def test_what_is_installed_runs_and_is_removed_without_a_trace(host: LabHost):
    host.put(HOOK.read_bytes(), "/opt/vmplace/vmplace/interfaces/qemu-hook")
    balance(host, "1")
    host.run("rm -rf /var/lib/vmplace")
    before = tree(host)

    said = host.run("vmplace install --start", timeout=180).stdout
    assert "written /etc/systemd/system/vmplace.service" in said
    assert "written /etc/libvirt/hooks/qemu.d/vmplace" in said
    assert host.run("systemctl is-enabled vmplace").stdout.strip() == "enabled"
    until(lambda: status(host)["windows"] >= 1 and len(status(host)["guests"]) == 2, "the agent works")

    said = host.run("vmplace uninstall", timeout=300).stdout
    assert "removed /etc/systemd/system/vmplace.service" in said
    assert host.run("systemctl is-active vmplace", check=False).stdout.strip() == "inactive"
    assert balancing(host) == "1"
    assert host.run("getent group vmplace", check=False).stdout == ""
    assert tree(host) == before
    assert host.run("ls -d /var/lib/vmplace", check=False).stdout == ""
