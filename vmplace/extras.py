"""Libraries that only some installations have: the extras of pyproject.toml."""

import importlib
from typing import Any

from vmplace.errors import VmplaceError


def extra_module(name: str, extra: str) -> Any:
    """Return a module that comes with one of vmplace's extras; raises VmplaceError without it."""
    try:
        return importlib.import_module(name)
    except ImportError as err:
        raise VmplaceError(f"{name} is not installed ({err})", hint=extra_cure(extra)) from err


def extra_cure(extra: str) -> str:
    """Return how to install an extra: from a checkout, as a package index has no vmplace, or a stranger's."""
    return f"in a checkout of vmplace: pip install '.[{extra}]'"
