"""Plan the tasks of a sweep, and carry out one of them; this runs in workers, on any machine.

A trace (NAME.npz) is one guest, which is simulated on each host under each policy (docs/simulate.md).  A
recording (NAME.vmptrace, docs/recording.md) has its host and guests in it; a policy of the agent is
rehearsed over it.
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from vmplace import __version__
from vmplace.errors import VmplaceError, WrongUsageError
from vmplace.extras import extra_module
from vmplace.fleet.sweep_rows import GuestRow, SweepRow

TRACE, RECORDING = "trace", "recording"
KINDS = {".npz": TRACE, ".vmptrace": RECORDING}
RECORDED_HOST = "as recorded"
NONE = "none"
AGENT = "agent:"
"""A policy of the running agent, in the simulator's names."""


class SweepTask(msgspec.Struct, frozen=True):
    """One row to be: ``url`` as fsspec knows it, ``host_text`` the host file (none for a recording)."""

    url: str
    size_bytes: int
    kind: str
    host: str
    host_text: str
    policy: str
    source: str
    windows: int | None

    @property
    def id(self) -> str:
        """Return what sums up all that the result depends on; another release is another result."""
        content = msgspec.json.encode((self, __version__))
        return hashlib.sha256(content).hexdigest()[:32]

    @property
    def label(self) -> str:
        """Return what a person calls it."""
        return f"{Path(self.url).name} on {self.host} under {self.policy}"


class SweepSettings(msgspec.Struct, frozen=True):
    """What is asked of each recording; ``hosts``: the name and the text of each."""

    hosts: tuple[tuple[str, str], ...]
    policies: tuple[str, ...]
    source: str
    windows: int | None


def found_recordings(urls: Sequence[str]) -> list[tuple[str, int]]:
    """Return all recordings under files, folders and patterns, with their sizes; raises VmplaceError."""
    fsspec = extra_module("fsspec", "fleet")
    found: dict[str, int] = {}
    for url in urls:
        try:
            filesystem, path = fsspec.url_to_fs(url)
            there = _files(filesystem, path)
        except Exception as err:
            # Each storage raises errors of its own.
            hint = "name what is there; a URL may need a package that the error names (pip install s3fs)"
            raise VmplaceError(f"{url} cannot be looked at: {err}", hint=hint) from err
        if not there:
            hint = "name files of these kinds, or folders or patterns that hold some"
            raise VmplaceError(f"{url}: no {' or '.join(KINDS)} there", hint=hint)
        found |= {filesystem.unstrip_protocol(name): size for name, size in there.items()}
    return sorted(found.items())


def _files(filesystem: Any, path: str) -> dict[str, int]:
    if not filesystem.exists(path) and not any(sign in path for sign in "*?["):
        raise FileNotFoundError("there is no such file or folder")
    if any(sign in path for sign in "*?["):
        listed = filesystem.glob(path, detail=True)
    elif filesystem.isdir(path):
        listed = filesystem.find(path, detail=True)
    else:
        listed = {path: filesystem.info(path)}
    return {
        name: int(info["size"] or 0)
        for name, info in listed.items()
        if info["type"] == "file" and Path(name).suffix in KINDS
    }


def planned_tasks(recordings: Sequence[tuple[str, int]], settings: SweepSettings) -> list[SweepTask]:
    """Return all tasks; raises WrongUsageError for policies that a kind of recording cannot have."""
    tasks = []
    for url, size in recordings:
        kind = KINDS[Path(url).suffix]
        hosts = settings.hosts if kind == TRACE else ((RECORDED_HOST, ""),)
        if not hosts:
            raise WrongUsageError(f"{url} is a trace: it needs a host", hint="name one with --hosts two-node")
        for host, text in hosts:
            for policy in settings.policies:
                _check_policy(kind, policy)
                source = settings.source if kind == TRACE else RECORDED_HOST
                windows = settings.windows if kind == TRACE else None
                tasks.append(SweepTask(url, size, kind, host, text, policy, source, windows))
    return tasks


def _check_policy(kind: str, policy: str) -> None:
    from vmplace.policy.registry import POLICY_NAMES
    from vmplace.simulate.registry import POLICIES

    known = list(POLICIES)
    if kind == RECORDING:
        known = [NONE, *(f"{AGENT}{name}" for name in POLICY_NAMES)]
    if policy not in known:
        raise WrongUsageError(f"no policy {policy!r} for a {kind}", hint=f"known: {', '.join(known)}")


def run_task(task: SweepTask) -> SweepRow:
    """Return the row; what is wrong with the recording stands in it."""
    begun = time.monotonic()
    row = empty_row(task)
    try:
        with fetched(task.url) as path:
            figures = _simulated(task, path) if task.kind == TRACE else _rehearsed(task, path)
    except VmplaceError as err:
        figures = {"error": str(err)}
    except OSError as err:
        figures = {"error": f"{task.url} cannot be read: {err}"}
    return msgspec.structs.replace(row, wall_s=time.monotonic() - begun, **figures)


def empty_row(task: SweepTask) -> SweepRow:
    """Return the row without figures."""
    baseline = msgspec.structs.replace(task, policy=NONE).id
    names = task.url, task.kind, task.host, task.policy, task.source
    return SweepRow(task.id, *names, __version__, task.windows, baseline=baseline)


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """Give the file at ``url`` as one of this machine, for a while."""
    filesystem, path = extra_module("fsspec", "fleet").url_to_fs(url)
    if "file" in (filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="vmplace-sweep-") as folder:
        local = Path(folder, Path(path).name)
        filesystem.get_file(path, str(local))
        yield local


def _simulated(task: SweepTask, path: Path) -> dict[str, Any]:
    from vmplace.simulate.guest_option import guest_spec
    from vmplace.simulate.host_file import parse_host
    from vmplace.simulate.placement_costs import PlacementCosts
    from vmplace.simulate.registry import POLICIES
    from vmplace.simulate.run import ALL_WINDOWS, simulate
    from vmplace.simulate.source_views import source_named
    from vmplace.simulate.trace import read_trace

    host = parse_host(task.host_text, name=task.host)
    guest = guest_spec(path.stem, read_trace(path), {}, host)
    shown = source_named(task.source)
    result = simulate(
        host, [guest], POLICIES[task.policy], shown, task.windows or ALL_WINDOWS, PlacementCosts()
    )
    guests = tuple(GuestRow(name, one.moved_bytes, one.run_time_s) for name, one in result.guests.items())
    return {
        "run_time_s": result.run_time_s,
        "lar": result.lar,
        "mc_imbalance": result.mc_imbalance,
        "moved_bytes": sum(guest.moved_bytes for guest in guests),
        "guests": guests,
    }


def _rehearsed(task: SweepTask, path: Path) -> dict[str, Any]:
    from vmplace.agent.config import LoadedConfig
    from vmplace.agent.config_sections import Config
    from vmplace.agent.rehearsal import budget_of, rehearse
    from vmplace.policy.plan import PlacementPlan
    from vmplace.policy.registry import begun
    from vmplace.sampling.recording import iter_recording

    loaded = LoadedConfig(Config())
    name = task.policy.removeprefix(AGENT)
    policy = (lambda _snapshot: PlacementPlan()) if name == NONE else begun(name)
    events, budget_bytes = iter_recording(path), budget_of(loaded.config)
    reported = rehearse(events, policy, lambda guest: loaded.rule(guest).settings, budget_bytes)
    guests = tuple(
        GuestRow(name, one.moved_bytes, None, one.lar_before, one.lar_after)
        for name, one in reported.guests.items()
    )
    return {
        "windows": reported.windows,
        "lar_before": _mean([guest.lar_before for guest in guests]),
        "lar": _mean([guest.lar for guest in guests]),
        "mc_imbalance_before": reported.mc_imbalance_before,
        "mc_imbalance": reported.mc_imbalance_after,
        "moved_bytes": reported.moved_bytes,
        "guests": guests,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
