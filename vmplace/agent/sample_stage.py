"""One window of sampling: arm the guests, let the window pass, take in what was touched."""

from vmplace.agent.loop_state import LoopState
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.agent.waiting import LoopWaits
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import GuestPages
from vmplace.policy.plan import Mode
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology


class SampleStage:
    """Asks the source; ``harvest_s``: how long that took at the ends of windows, in all."""

    def __init__(self, state: LoopState, waits: LoopWaits) -> None:
        self._state = state
        self._waits = waits
        self.harvest_s = 0.0

    def armed(self) -> list[TrackedGuest]:
        """Arm all that are sampled; return those that could be."""
        state = self._state
        sampled = [
            guest
            for guest in state.roster
            if guest.settings.mode is not Mode.MANUAL and not guest.is_migrating
        ]
        spread = {guest.name for guest in sampled if self._is_spread(guest)}
        armed = []
        for guest in sampled:
            state.heartbeat.beat()
            if state.roster.tried(guest, state.parts.source.arm):
                armed.append(guest)
                if guest.name in spread:
                    state.readings.begin(guest, guests=len(spread))
            state.readings.read_due(state.roster)
        return armed

    def watch(self, window_ms: int) -> float:
        """Let the window pass, with the readings that fall due; return the CPU seconds that these took."""
        state = self._state
        clock, readings = state.clock, state.readings
        end, cpu_s = clock.monotonic() + window_ms / 1000, 0.0
        while not state.wakeup.stopping and (due := readings.next_s()) is not None and due < end:
            self._waits.rest(due - clock.monotonic(), until_asked=False)
            started_cpu = clock.cpu_s()
            readings.read_due(state.roster)
            cpu_s += clock.cpu_s() - started_cpu
        readings.end()
        self._waits.rest(end - clock.monotonic(), until_asked=False)
        return cpu_s

    def harvest(self, armed: list[TrackedGuest]) -> None:
        """Take in what was touched of the guests that were armed."""
        state = self._state
        began = state.clock.monotonic()
        for guest in armed:
            if not guest.is_migrating:
                self._harvest(guest)
        self.harvest_s += state.clock.monotonic() - began
        if state.roster.has_lost:
            state.parts.discovery.look_again()

    def _harvest(self, guest: TrackedGuest) -> None:
        state = self._state

        def step(topology: GuestTopology) -> None:
            state.heartbeat.beat()
            batch = state.parts.source.harvest(topology)
            before = guest.pages or self._prior(guest, batch)
            state.parts.sampled(topology, batch)
            with state.readings.charged(guest):
                guest.pages = absorbed(before, batch)
                if guest.read_since_s is None:
                    guest.read_since_s = state.clock.monotonic()
            if batch.served:
                guest.served.append(batch.served)

        state.roster.tried(guest, step)

    def _prior(self, guest: TrackedGuest, batch: SampleBatch) -> GuestPages | None:
        """Return what the guest's last host knew of its pages before ``batch``, the first window here."""
        state = self._state
        with state.readings.charged(guest):
            pages = state.handovers.prior(guest, state.host, batch)
        state.parts.begins(guest.topology, guest.said.placement if pages and guest.said else "")
        return pages

    def _is_spread(self, guest: TrackedGuest) -> bool:
        """Tell whether the guest may run on several nodes: else who uses its pages needs no asking."""
        host = self._state.host
        cpus = tuple({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus})
        return host is not None and len(host.nids_of_cpus(cpus)) > 1
