"""What does ``vmplace doctor`` say of vmplace.toml?  The agent does not start with one that it refuses."""

import os

from vmplace.agent import config as agent_config
from vmplace.agent.config import LoadedConfig, read_config
from vmplace.agent.config_sections import Config
from vmplace.errors import ConfigError
from vmplace.interfaces.agent_command import wrong_sections
from vmplace.topology.capability import Capability

NAME = "settings"


def checked_settings() -> tuple[Config, Capability]:
    """Return the settings, the defaults where the file is wrong, and what is to be said of the file."""
    try:
        loaded = read_config()
    except ConfigError as err:
        if isinstance(err.__cause__, PermissionError) and os.geteuid():
            return Config(), Capability(NAME, None, f"{err.place} is not for you to read", "run it as root")
        cure = (
            f"{err.hint}; then vmplace agent --check"
            if err.hint
            else "correct it, then vmplace agent --check"
        )
        return Config(), Capability(NAME, False, str(err), cure, needed=True)
    return loaded.config, _of(loaded)


def _of(loaded: LoadedConfig) -> Capability:
    if loaded.path is None:
        return Capability(NAME, True, f"no {agent_config.DEFAULT_CONFIG}: the defaults hold", needed=True)
    if wrong := wrong_sections(loaded):
        # The agent works, but leaves the guests of these sections alone.
        cure = "correct it: these guests are left alone; then vmplace agent --check"
        return Capability(NAME, False, "; ".join(wrong), cure)
    return Capability(NAME, True, f"{loaded.path} is right", needed=True)
