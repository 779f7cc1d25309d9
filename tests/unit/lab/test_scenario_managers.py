"""What does an agent get to know of the emulated host?  What does numad 0.5 say in its log that it did?"""

import subprocess
from pathlib import Path

import pytest

from lab.scenario import SCENARIOS, read_scenario
from lab.scenario_agents import ASK_ROUNDS, has_meter, of_emulation
from lab.scenario_baselines import notes_of_numad
from tests.unit.lab.test_counters_meter import Region
from vmplace.agent.config import parse_config
from vmplace.agent.state import AgentStatus
from vmplace.interfaces.control import ControlServer
from vmplace.interfaces.protocol import Response

LOG = """\
Tue Nov 24 10:02:11 2026: Changing THP scan time in /sys/kernel/mm/transparent_hugepage/khugepaged to 1000 ms.
Tue Nov 24 10:02:11 2026: Nodes: 4
Tue Nov 24 10:02:16 2026: Advising pid 453 (qemu-system-x86) move from nodes (0-3) to nodes (2)
Tue Nov 24 10:02:16 2026: Bad sched_setaffinity() on PID 453, TID 467 -- errno: 22
Tue Nov 24 10:02:16 2026: Bad sched_setaffinity() on PID 453, TID 468 -- errno: 22
"""


def test_moves_and_refusals_are_reported():
    assert notes_of_numad(LOG) == (
        "it moved process 453 from nodes 0-3 to 2",
        "2 of its changes of affinity were refused",
    )


def test_a_daemon_that_let_all_be_did_not_act():
    assert notes_of_numad("\n".join(LOG.splitlines()[:2])) == ("it did not act",)


def test_an_emulator_without_the_meter_has_none_to_count(tmp_path: Path):
    region = Region(tmp_path / "shared")
    assert has_meter(region.path)
    region.header["magic"] = 0
    assert not has_meter(region.path)


@pytest.mark.parametrize("name", [path.stem for path in SCENARIOS.glob("*.toml")])
def test_the_agent_learns_rates_from_the_meter_and_how_slow_guests_are(name: str):
    scenario = read_scenario(name)
    text = scenario.agent_config + of_emulation(scenario, 0.5)
    config = parse_config(text, Path("scenario.toml")).config
    assert config.trial.counters == "meter"
    assert config.trial.meter_guests == {guest.name: n for n, guest in enumerate(scenario.guests, 1)}
    # Never as fast as real ones, and at half of what they declare half as fast.
    whole = parse_config(of_emulation(scenario, 1.0), Path("scenario.toml")).config
    assert config.clock.scale == pytest.approx(2 * whole.clock.scale, rel=0.01) and whole.clock.scale > 20


def test_an_agent_tells_its_rounds_without_python(tmp_path: Path):
    status = AgentStatus("0", 1, "kvm", "joint", paused=False, windows=37, notes=('"windows":99',))
    server = ControlServer(tmp_path / "control.sock", lambda _, __: Response(True, data=status))
    server.start()
    try:
        command = ["perl", "-MIO::Socket::UNIX", "-e", ASK_ROUNDS, str(tmp_path / "control.sock")]
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    finally:
        server.close()
    assert asked.stdout == "37"
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1
