"""What do harvests, node roots and replicas cost, beside what a stock kernel offers for the same?

Boots the emulated 4-node host with the kernel of kvm-patches/, prints {NAME: {value, control, ratio, unit}};
controls are the stock mechanisms in the same boot.  replica_lar is the metered LAR of scenario shared-table
with vmplace, its control the same without a manager.  Times are the emulated host's: only ratios carry over.
"""

import json
from pathlib import Path
from typing import Any

from vmplace.lab.errors import LabError
from vmplace.lab.machine import boot_host
from vmplace.lab.progress import Progress
from vmplace.lab.scenario import ManagerName, read_scenario
from vmplace.lab.scenario_run import run_scenario

HERE = Path(__file__).parent
MANAGERS: tuple[ManagerName, ...] = ("vmplace", "none")
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
    result = run_scenario(read_scenario("shared-table"), MANAGERS, Progress())
    value, control = (result.managers[name].guests["reader"].lar_after for name in MANAGERS)
    if value is None or not control:
        raise LabError("the meter saw no access of the guest")
    return {"value": value, "control": control, "ratio": value / control, "unit": "local access ratio"}


if __name__ == "__main__":
    print(json.dumps(costs() | {"replica_lar": replica_lar()}, indent=1))
