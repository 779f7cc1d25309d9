"""What does ``--guest NAME=TRACE.npz[,vcpus=N][,nodes=A+B]…`` ask for?  ``FORM`` has all of it."""

from collections.abc import Mapping
from pathlib import Path

from vmplace.errors import OutsideError, WrongUsageError
from vmplace.model.described_memory import MLP
from vmplace.outside import MOST_ID, finite, whole
from vmplace.simulate.guest_run import GuestSpec
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.trace import Trace, read_trace
from vmplace.simulate.trace_units import UNITS, in_units

MOST_VCPUS_PER_CPU = 64
KEYS = ("vcpus", "nodes", "first_touch", "priority", "mlp", "pages")
PROTECTED_BOUND = 0.005
BOUNDS = {"normal": None, "protected": PROTECTED_BOUND}
"""By how much a guest of each priority may get slower for the others' sake; None: not given."""
FORM = "NAME=TRACE.npz[,vcpus=N][,nodes=A+B][,first_touch=NID][,priority=protected][,mlp=X][,pages=2M]"


def read_guests(texts: tuple[str, ...], host: SimulatedHost) -> list[GuestSpec]:
    """Return the guests that the options describe, each trace read once; raises WrongUsageError."""
    parsed = [_split(text) for text in texts]
    names = [name for name, _, _ in parsed]
    if len(set(names)) != len(names):
        hint = f"give each --guest a name of its own: {FORM}"
        raise WrongUsageError(f"two guests have one name: {', '.join(names)}", hint=hint)
    traces = {path: read_trace(path) for path in sorted({path for _, path, _ in parsed})}
    return [guest_spec(name, traces[path], options, host) for name, path, options in parsed]


def guest_spec(name: str, trace: Trace, options: Mapping[str, str], host: SimulatedHost) -> GuestSpec:
    """Return a guest that runs ``trace`` as ``options`` say; raises WrongUsageError."""
    unknown = sorted(set(options) - set(KEYS))
    if unknown:
        raise WrongUsageError(
            f"guest {name}: unknown option {unknown[0]!r}", hint=f"known: {', '.join(KEYS)}"
        )
    priority = options.get("priority", "normal")
    if priority not in BOUNDS:
        raise WrongUsageError(f"guest {name}: priority is {priority!r}", hint=f"known: {', '.join(BOUNDS)}")
    pages = options.get("pages", "4K")
    if pages not in UNITS:
        raise WrongUsageError(f"guest {name}: pages is {pages!r}", hint=f"known: {', '.join(UNITS)}")
    with_cpus = tuple(i for i, cpus in enumerate(host.cpus) if cpus)
    try:
        reported = options["nodes"].split("+") if "nodes" in options else None
        nodes = tuple(whole(nid, most=MOST_ID, what="node") for nid in reported) if reported else None
        start = whole(options["first_touch"], most=MOST_ID, what="node") if "first_touch" in options else None
        most = round(host.cpus.sum()) * MOST_VCPUS_PER_CPU
        vcpus = whole(options.get("vcpus", str(trace.workers)), least=1, most=most, what="vcpus")
        mlp = finite(options.get("mlp", MLP), least=0.01, most=1000, what="mlp")
    except OutsideError as err:
        raise WrongUsageError(f"guest {name}: {err}", hint=FORM) from err
    if nodes is not None and len(set(nodes)) < len(nodes):
        hint = f"nodes={'+'.join(map(str, sorted(set(nodes))))}"
        raise WrongUsageError(f"guest {name}: a node is named twice in {options['nodes']}", hint=hint)
    start_index = None if start is None else _index(name, start, host)
    if start_index is not None and not host.system.controller[start_index]:
        with_memory = [str(nid) for i, nid in enumerate(host.system.nids) if host.system.controller[i]]
        hint = f"nodes with memory: {', '.join(with_memory)}"
        raise WrongUsageError(f"guest {name}: node {start} has no memory", hint=hint)
    indexes = with_cpus if nodes is None else tuple(_index(name, nid, host) for nid in nodes)
    in_pages = in_units(trace, UNITS[pages])
    pinned = nodes is not None
    return GuestSpec(name, in_pages, indexes, vcpus, start_index, mlp, BOUNDS[priority], pinned)


def _split(text: str) -> tuple[str, Path, dict[str, str]]:
    first, *rest = text.split(",")
    name, _, path = first.partition("=")
    pairs = [part.partition("=")[::2] for part in rest]
    options = dict(pairs)
    if (
        not name.isprintable()
        or not name
        or not path
        or not all(options.values())
        or len(options) < len(pairs)
    ):
        raise WrongUsageError(f"--guest {text!r} is not understood", hint=FORM)
    return name, Path(path), options


def _index(name: str, nid: int, host: SimulatedHost) -> int:
    if nid not in host.system.nids:
        known = ", ".join(map(str, host.system.nids))
        raise WrongUsageError(f"guest {name}: host {host.name} has no node {nid}", hint=f"it has {known}")
    return host.system.nids.index(nid)
