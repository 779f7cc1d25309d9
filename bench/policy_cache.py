"""Was this run done before, with this code and these inputs?  Results of simulations, by their contents.

A run's key is a digest of all that it depends on: the code of the model, the policies and the simulator, the
host, each guest with its trace, the policy and the source, and the versions of the libraries that compute.
So a table that was interrupted goes on where it stopped, and a change of the code begins it anew.  The agent
depends on all of the product.  Code that vmplace alone runs (``PLANNERS``, ``AGENTS``) is no part of the
baselines' keys: what vmplace is measured against need not be run again when it changes.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

import vmplace
from vmplace.simulate.result import SimulationResult

CODE = ("model", "native", "policy", "sampling", "simulate", "topology")
"""With the modules that are in no part, these are closed: none of them imports another part."""
PRODUCT = (*CODE, "actuation", "agent")
PLANNERS = (
    "affordable.py", "as_rounded.py", "corner_mix.py", "descent.py", "even_spread.py", "guard.py",
    "held_back.py", "host_plan.py", "move_gains.py", "page_task.py", "steadiness.py", "vcpu_plan.py",
)  # fmt: skip
AGENTS = (
    "expected_accesses.py", "full_controllers.py", "gather_choice.py", "gather_ties.py",
    "gather_trial.py", "gather_waits.py", "gathering.py", "home.py", "loads.py", "unneeded_copies.py",
    "plan_changes.py", "plan_state.py", "planner_view.py", "policy_auto.py", "spread.py", "trial.py",
    "vcpu_forecast.py", "vcpu_places.py", "vcpu_ties.py",
)  # fmt: skip
"""Code of vmplace's own: of its planner, and of what the agent puts around it."""
OWN_POLICY, AGENT = "vmplace", "agent:"
LIBRARIES = ("numpy", "pymetis")


@dataclass(frozen=True)
class ResultCache:
    """A folder of results; ``None`` as the folder keeps nothing."""

    folder: Path | None

    def result(
        self, policy: str, key: tuple[str, ...], run: Callable[[], SimulationResult]
    ) -> SimulationResult:
        """Return the result of ``policy`` kept under ``key``, or run and keep it."""
        if self.folder is None:
            return run()
        whole = repr((code_digest(*code_of(policy)), versions(), policy, *key))
        path = self.folder / f"{hashlib.sha256(whole.encode()).hexdigest()}.json"
        if path.is_file():
            return msgspec.json.decode(path.read_bytes(), type=SimulationResult)
        result = run()
        self.folder.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: what an interrupt leaves half-written must not be read.
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(msgspec.to_builtins(result)))
        part.replace(path)
        return result


def code_of(policy: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return on which parts of the product a result depends, and which files in them do not count."""
    if policy.startswith(AGENT):
        return PRODUCT, ()
    return CODE, AGENTS if policy == OWN_POLICY else (*PLANNERS, *AGENTS)


@cache
def code_digest(parts: tuple[str, ...], apart: tuple[str, ...]) -> str:
    """Return a digest of the code of these parts, and of no part, without the files called as ``apart``."""
    root = Path(vmplace.__file__).parent
    digest = hashlib.sha256()
    inside = (path for part in parts for path in (root / part).rglob("*.[pch]*"))
    for path in sorted([*root.glob("*.py"), *inside]):
        if path.suffix in {".py", ".c", ".h"} and path.name not in apart:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def versions() -> tuple[str, ...]:
    """Return the versions of the libraries on which results depend; "" of one that is not there."""
    return tuple(_version(name) for name in LIBRARIES)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def file_digest(path: Path) -> str:
    """Return a digest of a host or a trace."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
