"""Before a window: refresh the host, the guests and their settings."""

import logging

from vmplace.agent.balancing import BalancingSwitch
from vmplace.agent.config import DEFAULT_CONFIG, LoadedConfig, read_config
from vmplace.agent.listening import Listener
from vmplace.agent.loop_state import LoopState
from vmplace.agent.notes import described
from vmplace.agent.reload import reloaded
from vmplace.errors import ConfigError
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)


class RefreshStage:
    """Looks host and guests up; ``reload_notes``: what came of reading vmplace.toml again."""

    def __init__(
        self, state: LoopState, listener: Listener, balancing: BalancingSwitch, loaded: LoadedConfig
    ) -> None:
        self._state = state
        self._listener = listener
        self._balancing = balancing
        self._loaded = loaded
        self._given = None if loaded.path in {None, DEFAULT_CONFIG} else loaded.path
        self._whole_host: HostTopology | None = None
        self.reload_notes: tuple[str, ...] = ()

    def refresh(self) -> bool:
        """Follow all that changed since the last window; return whether guests did."""
        state = self._state
        state.notes.renew()
        self._hear()
        changed = self._look_up()
        self._listener.let_go()
        self._forget_gone()
        self._balancing.own()
        return changed

    def _look_up(self) -> bool:
        state = self._state
        # What was known a window ago is better than nothing; a guest that ended tells by itself.
        found = state.roster.found()
        with state.notes.fenced("nodes not looked up"):
            self._whole_host = state.parts.discovery.host()
        with state.notes.fenced("guests not looked up"):
            found = state.parts.discovery.guests()
        state.notes.add(*found.notes)
        nids = self._whole_host.nids if self._whole_host else ()
        changed = state.roster.update(found.guests, nids)
        if self._whole_host is not None:
            present = frozenset(guest.topology.identity for guest in state.roster)
            state.host = state.rooms.without_kept(self._whole_host, present)
        changed |= state.roster.follow_domains(found, nids, state.clock.monotonic())
        state.roster.follow_time(state.clock.unix_s())
        return changed

    def _forget_gone(self) -> None:
        state = self._state
        for gone in state.roster.take_gone():
            for part in (state.parts.source, state.trials, state.readings):
                with state.notes.fenced(f"guest {gone.name} is not forgotten"):
                    part.forget(gone)

    def _hear(self) -> None:
        """Follow what was reported since the last window: by libvirt and its hook, and by SIGHUP."""
        self._listener.listen()
        if self._listener.has_heard:
            self._listener.has_heard = False
            self._state.parts.discovery.look_again(asking=True)
        if self._state.wakeup.take_reload():
            self._reload()

    def _reload(self) -> None:
        host = self._state.host
        try:
            self._loaded, reported = reloaded(self._loaded, read_config(self._given))
        except ConfigError as err:
            reported = (f"not read again, what was read before holds: {described(err)}",)
        else:
            self._state.roster.reload(self._loaded, host.nids if host else ())
        self.reload_notes = tuple(f"vmplace.toml: {line}" for line in reported)
        for line in self.reload_notes:
            LOG.info("%s", line)
