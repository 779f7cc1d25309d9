"""Which host files come with the simulator?"""

from pathlib import Path

from vmplace.errors import WrongUsageError

PRESETS = Path(__file__).with_name("hosts")


def host_path(name: str) -> Path:
    """Return the host file of that name, or of that name among those that come with the simulator.

    Raises WrongUsageError for another.
    """
    path, preset = Path(name), PRESETS / f"{name}.toml"
    if "/" in name or path.suffix or path.is_file():
        return path
    if not preset.is_file():
        known = ", ".join(sorted(one.stem for one in PRESETS.glob("*.toml")))
        raise WrongUsageError(f"no host {name!r}", hint=f"a host file (docs/simulate.md), or one of: {known}")
    return preset
