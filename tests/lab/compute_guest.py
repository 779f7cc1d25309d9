"""What an administrator of OpenStack does to boot the lab's small guest: images, a flavour, a server."""

from typing import Any

from lab.build import LabArtifacts
from lab.domain_xml import KERNEL_WORDS
from lab.workload import Touch, Workload
from tests.lab.compute_services import GLANCE, Services, until

FLAVOUR = "numa.small"
MEMORY_MIB = 160
WORKLOAD = Workload(arena_mib=64, touch=(Touch(vcpus="0", ranges=("0+64",), rate=5, write_percent=20),))
DISK_BYTES = 1 << 20
BOOT_S = 1200


def add_image(services: Services, name: str, kind: str, content: bytes, **properties: str) -> str:
    """Return the id of a new image in Glance; ``kind`` is its format and that of its container."""
    container = "bare" if kind == "raw" else kind
    wanted = {"name": name, "disk_format": kind, "container_format": container, **properties}
    made = services.ask("POST", GLANCE, "/v2/images", wanted)
    services.ask("PUT", GLANCE, f"/v2/images/{made['id']}/file", raw=content)
    return str(made["id"])


def add_bootable_image(services: Services, artifacts: LabArtifacts) -> str:
    """Return the id of an image that boots the lab's kernel and payload, which never looks at its disk."""
    assert artifacts.guest_initramfs
    kernel = add_image(services, "kernel", "aki", artifacts.guest_kernel.read_bytes())
    initramfs = add_image(services, "initramfs", "ari", artifacts.guest_initramfs.read_bytes())
    words = " ".join(f"vmp.{word}" for word in WORKLOAD.words(guest_id=1, seed=1))
    return add_image(
        services,
        "payload",
        "raw",
        bytes(DISK_BYTES),
        kernel_id=kernel,
        ramdisk_id=initramfs,
        os_command_line=f"{KERNEL_WORDS} {words}",
        hw_machine_type="q35",
        # Nova keeps what it does not know itself out of the XML: an image has no say.
        vmplace_mode="manual",
    )


def add_flavour(services: Services, **specs: str) -> str:
    """Return the id of a flavour with these extra specs."""
    wanted = {"name": FLAVOUR, "ram": MEMORY_MIB, "vcpus": 1, "disk": 0}
    made = services.nova("POST", "/flavors", {"flavor": wanted})["flavor"]
    services.nova("POST", f"/flavors/{made['id']}/os-extra_specs", {"extra_specs": specs})
    return str(made["id"])


def boot_server(services: Services, name: str, image: str, flavour: str) -> dict[str, Any]:
    """Return the server once Nova says that it is active."""
    wanted = {"name": name, "imageRef": image, "flavorRef": flavour, "networks": "none"}
    made = services.nova("POST", "/servers", {"server": wanted})["server"]

    def server() -> dict[str, Any]:
        found: dict[str, Any] = services.nova("GET", f"/servers/{made['id']}")["server"]
        assert found["status"] != "ERROR", found.get("fault")
        return found

    until(lambda: server()["status"] == "ACTIVE", "the server is active", BOOT_S)
    return server()
