"""Libraries that only some installations have: the extras of pyproject.toml."""

import importlib
from typing import Any

from vmplace.errors import VmplaceError


def extra_module(name: str, extra: str) -> Any:
    """Return a module that comes with one of vmplace's extras; raises VmplaceError without it."""
    try:
        return importlib.import_module(name)
    except ImportError as err:
        raise VmplaceError(
            f"{name} is not installed ({err})", hint=f"pip install 'vmplace[{extra}]'"
        ) from err
