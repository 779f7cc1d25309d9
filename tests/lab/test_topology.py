"""Host and guests as vmplace reads them inside the emulated host, held against QEMU's own words there."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.machine import LabHost, boot_host
from lab.topology import cpu_nids

pytestmark = pytest.mark.lab

DOMAIN = """<domain type='kvm'><name>cells</name><memory unit='MiB'>256</memory><vcpu>2</vcpu>
<cputune><vcpupin vcpu='0' cpuset='0-1'/><vcpupin vcpu='1' cpuset='6-7'/></cputune>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>/usr/lib/vmplace-lab/bzImage</kernel>
<initrd>/usr/lib/vmplace-lab/payload.cpio.gz</initrd><cmdline>console=ttyS0 panic=-1</cmdline></os>
<features><acpi/><apic/></features>
<cpu mode='host-passthrough' check='none' migratable='off'><numa>
<cell id='0' cpus='0' memory='128' unit='MiB'/><cell id='1' cpus='1' memory='128' unit='MiB'/></numa></cpu>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator><controller type='usb' model='none'/>
<memballoon model='none'/></devices></domain>"""
# No -name: its threads bear no names.  Without a kernel it soon waits in the firmware.
BARE = (
    "qemu-system-x86_64 -accel kvm -cpu host -M pc -m 96 -smp 2 -nodefaults -display none"
    " -monitor unix:/run/bare,server,nowait"
)
SCAN = """
import json, sys, time
from vmplace.topology.guest_finder import GuestFinder
from vmplace.topology.guests_libvirt import Libvirt
finder = GuestFinder(Libvirt(answer_s=20), exact=len(sys.argv) > 1)
scan = finder.find()
print(json.dumps({"problem": scan.libvirt_problem, "skipped": [s.reason for s in scan.skipped], "guests": {
    g.name: {"origin": g.origin, "pid": g.pid,
             "vcpus": {v.vcpu_id: [v.tid, v.cpus, v.cell] for v in g.vcpus},
             "ram": [[r.hva, r.npages, r.base_gfn, r.cell, r.movability.name] for r in g.ram]}
    for g in scan.guests}}))
"""


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    with boot_host("n4-full") as booted:
        booted.run("cat > /root/cells.xml", input=DOMAIN)
        booted.run("virsh create /root/cells.xml", timeout=240)
        yield booted


def scan(host: LabHost, *arguments: str) -> Any:
    """Look for guests inside."""
    script = ["env", "PYTHONPATH=/opt/vmplace", "python3", "-c", SCAN, *arguments]
    return json.loads(host.run(script, timeout=120).stdout)


def monitor(host: LabHost, command: str) -> str:
    """Ask QEMU itself; taints the domain, which is why vmplace does not by default."""
    return host.run(["virsh", "qemu-monitor-command", "--hmp", "cells", command], timeout=60).stdout


def test_the_host_is_what_was_emulated(host: LabHost):
    script = (
        "import json; from vmplace.topology.sysfs import read_host; h = read_host();"
        "print(json.dumps([h.nids, [n.cpus for n in h.nodes], [[*k, d] for k, d in h.distances.items()]]))"
    )
    found = json.loads(host.run(["env", "PYTHONPATH=/opt/vmplace", "python3", "-c", script]).stdout)
    nids, cpus, distances = found
    assert {cpu: nid for nid, own in zip(nids, cpus, strict=True) for cpu in own} == dict(
        enumerate(cpu_nids(host.topology))
    )
    listed = host.run("numactl -H").stdout.partition("node distances:")[2]
    rows = {int(row[0]): row[1] for row in re.findall(r"^ +(\d+): +(.*)$", listed, re.M)}
    assert [[int(field) for field in rows[nid].split()] for nid in nids] == [
        [distance for start, _, distance in distances if start == nid] for nid in nids
    ]


def test_cells_threads_and_pins_of_a_libvirt_guest(host: LabHost):
    guest = scan(host)["guests"]["cells"]
    assert guest["origin"] == "libvirt"
    threads = re.findall(r"CPU #(\d+): thread_id=(\d+)", monitor(host, "info cpus"))
    assert {key: tid for key, (tid, _, _) in guest["vcpus"].items()} == {k: int(tid) for k, tid in threads}
    assert [(cpus, cell) for _, cpus, cell in guest["vcpus"].values()] == [([0, 1], 0), ([6, 7], 1)]


def test_the_inferred_layout_is_that_of_the_monitor(host: LabHost):
    blocks = re.findall(r"ram-node(\d+) .* 0x([0-9a-f]+)\s+rw", monitor(host, "info ramblock"))
    ram = scan(host)["guests"]["cells"]["ram"]
    assert {(cell, hva) for hva, _, _, cell, _ in ram} == {(int(cell), int(hva, 16)) for cell, hva in blocks}
    assert scan(host, "exact")["guests"]["cells"]["ram"] == ram
    assert {movability for *_, movability in ram} == {"MOVABLE"}


def test_a_bare_qemu_is_found_without_names(host: LabHost):
    qemu = host.spawn(BARE)
    try:
        deadline = time.monotonic() + 60
        while not (guests := bare_guests(host)) and time.monotonic() < deadline:
            time.sleep(1)
        (guest,) = guests
        asked = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/bare')\n"
        asked += "import time; s.send(b'info cpus\\n'); time.sleep(2); print(s.recv(99999).decode())"
        threads = re.findall(r"CPU #(\d+): thread_id=(\d+)", host.run(["python3", "-c", asked]).stdout)
        assert {key: tid for key, (tid, _, _) in guest["vcpus"].items()} == {k: int(t) for k, t in threads}
        assert [(npages, gfn) for _, npages, gfn, _, _ in guest["ram"]] == [(96 << 8, 0)]
    finally:
        qemu.kill()


def bare_guests(host: LabHost) -> list[Any]:
    """Return the guests that libvirt does not know and whose vCPUs are reported."""
    return [guest for guest in scan(host)["guests"].values() if guest["origin"] == "kvm" and guest["vcpus"]]


def test_without_libvirtd_guests_keep_name_and_cells(host: LabHost):
    before = scan(host)["guests"]["cells"]
    host.run("systemctl stop libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd", timeout=120)
    without = scan(host)
    host.run("systemctl start libvirtd", timeout=120)
    assert without["problem"]
    assert without["guests"]["cells"] == before | {"origin": "kvm"}
    assert scan(host)["guests"]["cells"] == before


def test_the_doctor_finds_this_host_fit(host: LabHost):
    report = json.loads(host.run("vmplace doctor --json", check=False, timeout=120).stdout)
    answers = {capability["name"]: capability["answer"] for capability in report["capabilities"]}
    assert report["can_work"] is True
    assert answers["idle page tracking"] is True
    assert answers["meter"] is True
    assert answers["libvirt"] is True
