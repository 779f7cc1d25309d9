"""Record anew what ``vmplace demo`` shows: guests of scenario wrong-node in the emulated host, left alone.

    python -m lab.demo_recording vmplace/interfaces/demo.vmptrace

It ships with the product, so it is short, and packed as tightly as zlib can.
"""

import argparse
from pathlib import Path

from lab.machine import boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_agents import of_emulation
from lab.scenario_prepare import prepare_stage
from vmplace.sampling.recording import Recorder, iter_recording
from vmplace.sampling.recording_frames import GuestFrame
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology

SCENARIO = "wrong-node"
CONFIG = 'source = "kvm"\nwindow_ms = 1000\n'
RECORD = "vmplace record /root/demo.vmptrace --duration 180 --json"
"""Long enough for some windows: emulated CPUs take seconds for each."""
TIGHTLY = 9


def recorded(progress: Progress) -> bytes:
    """Return the recording that the emulated host makes of its guests."""
    stage = prepare_stage(read_scenario(SCENARIO), progress)
    with boot_host(
        stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files, artifacts=stage.artifacts
    ) as host:
        host.run("mkdir -p /etc/vmplace")
        config = CONFIG + of_emulation(read_scenario(SCENARIO), 1.0)
        host.put(config.encode(), "/etc/vmplace/vmplace.toml")
        progress.note(host.run(RECORD, timeout=500).stdout.strip())
        return host.get("/root/demo.vmptrace")


def pack(loose: Path, out: Path) -> None:
    """Write the recording once more, smaller."""
    events = iter_recording(loose)
    host = next(events)
    if not isinstance(host, HostTopology):
        raise TypeError("a recording begins with its host")
    guests: dict[str, GuestTopology] = {}
    with Recorder(out, host, overwrite=True, compression=TIGHTLY) as recorder:
        for event in events:
            if isinstance(event, GuestTopology):
                guests[event.name] = event
            elif isinstance(event, SampleBatch):
                recorder.add(guests[event.guest], event)
            elif isinstance(event, HostTopology):
                recorder.see_host(event)
            elif isinstance(event, GuestFrame):
                recorder.begin_guest(event.guest, event.handover)
            else:
                recorder.tell(event)


def main() -> None:
    """Make the recording."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    loose = out.with_name(f".{out.name}.loose")
    try:
        loose.write_bytes(recorded(Progress()))
        pack(loose, out)
    finally:
        loose.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
