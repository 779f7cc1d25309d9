"""A process that is the real agent, but for the sensor: touched pages are made up, moves are real calls.

Run as: agent_process.py CONFIG GUESTS MIB PID [HVA]
"""

import sys
from pathlib import Path

from tests.unit.agent.agent_world import World
from vmplace.agent.config import read_config
from vmplace.agent.config_sections import Config
from vmplace.agent.parts import Actuator, Parts
from vmplace.interfaces.agent_command import Beat, run_agent, start_log
from vmplace.policy import home
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu

HVA = 0x10000000000


def made_up(name: str, mib: int, pid: int, hva: int) -> GuestTopology:
    """Return a guest on node 1 by its vCPU; ``pid`` is a real process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ram = RamRange(hva, mib << 8, 0, 4096, Movability.MOVABLE, "anonymous memory")
    return GuestTopology(name, pid, int(fields[19]), "kvm", (Vcpu(0, pid, (2,)),), (ram,))


def main() -> None:
    """Run the agent until stopped."""
    config, count, mib, pid = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    hva = int(sys.argv[5]) if len(sys.argv) > 5 else HVA
    guests = tuple(made_up(f"guest{i}", mib, pid, hva) for i in range(count))
    world = World(list(guests))

    def open_parts(_config: Config, actuator: Actuator, _beat: Beat) -> Parts:
        return Parts(world, world, home.plan, "auto", actuator)

    start_log(verbose=False)
    run_agent(read_config(config), open_parts)


if __name__ == "__main__":
    main()
