"""Was this run done before, with this code and these inputs?  Results of simulations, by their contents.

A run's key is a digest of all that it depends on: the code of the model, the policies and the simulator, the
host, each guest with its trace, the policy and the source.  So a table that was interrupted goes on where it
stopped, and a change of the code begins it anew.  Code that only vmplace's own policy runs (``OWN``) is no
part of the keys of the others: what vmplace is measured against need not be run again when it changes.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

import vmplace
from vmplace.simulate.result import SimulationResult

CODE = ("model", "policy", "simulate")
OWN = ("corner_mix.py", "descent.py", "guard.py", "host_plan.py", "steadiness.py", "vcpu_plan.py")
OWN_POLICY = "vmplace"


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
        whole = repr((code_digest(policy == OWN_POLICY), policy, *key))
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


@cache
def code_digest(own: bool) -> str:
    """Return a digest of the code that results depend on: with or without vmplace's own."""
    root = Path(vmplace.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for part in CODE for path in (root / part).rglob("*.py")):
        if own or path.name not in OWN:
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def file_digest(path: Path) -> str:
    """Return a digest of a host or a trace."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
