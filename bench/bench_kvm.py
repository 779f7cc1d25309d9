"""What do harvests, node roots and replicas cost, beside what a stock kernel offers for the same?

Boots the emulated 4-node host with the kernel of kvm-patches/, prints {NAME: {value, control, ratio, unit}};
controls are the stock mechanisms in the same boot.  replica_lar is the metered LAR of scenario shared-table
with vmplace, its control the same without a manager.  Times are the emulated host's: only ratios carry over.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vmplace.lab.machine import boot_host

HERE = Path(__file__).parent
FILES = {
    "/root/kvm_inside.py": HERE / "kvm_inside.py",
    "/root/sampling_inside.py": HERE.parent / "tests/lab/sampling_inside.py",
}


def costs() -> dict[str, Any]:
    """Return the costs measured inside the emulated host."""
    with boot_host("n4-full", files=FILES) as host:
        told: dict[str, Any] = json.loads(host.run(["python3", "/root/kvm_inside.py"], timeout=1200).stdout)
        return told


def replica_lar() -> dict[str, Any]:
    """Return the LAR that replication reaches beside that of a host without manager."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        argv = [sys.executable, "-m", "vmplace.interfaces.cli", "lab", "run", "shared-table"]
        subprocess.run([*argv, "-m", "none", "-m", "vmplace", "--json", result.name], check=True, stdout=2)
        told = json.loads(Path(result.name).read_text())
    lar = {name: manager["guests"]["reader"]["lar_after"] for name, manager in told["managers"].items()}
    value, control = lar["vmplace"], lar["none"]
    return {"value": value, "control": control, "ratio": value / control, "unit": "local access ratio"}


if __name__ == "__main__":
    print(json.dumps(costs() | {"replica_lar": replica_lar()}, indent=1))
