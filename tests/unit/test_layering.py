"""The rules of docs/how-it-works.md, held against the imports and calls of the code itself."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "vmplace"
LAB = PACKAGE.parent / "lab"
STAGES = ["topology", "sampling", "model", "policy", "actuation", "agent", "interfaces"]
FOR_ALL = {
    "apart",
    "counting",
    "cpu_time",
    "errors",
    "extensions",
    "extras",
    "garbage",
    "held",
    "left_behind",
    "held_limits",
    "native",
    "outside",
    "step_thread",
    "thread_waits",
    "users",
    "whole_file",
}
MODULES = sorted(PACKAGE.rglob("*.py"))
LAB_MODULES = sorted(LAB.rglob("*.py"))
PURE = sorted(path for stage in ("model", "policy") for path in (PACKAGE / stage).rglob("*.py"))
IMPURE_MODULES = {
    "os",
    "io",
    "time",
    "subprocess",
    "socket",
    "pathlib",
    "random",
    "threading",
    "datetime",
    "shutil",
}
CHANGES_PLACEMENT = {
    "move_pages",
    "placement_replicate",
    "sched_setaffinity",
    "pinVcpu",
    "pinVcpuFlags",
    "setNumaParameters",
    "pinEmulator",
}


def stage_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "vmplace" and len(parts) > 1 else None


@cache
def nodes_of(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], frozenset[str]]:
    """Return a file's imports, and the names of what it calls."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    names = (one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in called)
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)], frozenset(names)


def iter_imports(path: Path) -> Iterator[str]:
    for node in nodes_of(path)[0]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            yield from (
                f"{node.module}.{alias.name}" if node.module == "vmplace" else node.module
                for alias in node.names
            )


def iter_names(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, also as names out of their package, wherever it does so."""
    for node in nodes_of(path)[0]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(LAB.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_upstream(path: Path):
    own = path.relative_to(PACKAGE).parts[0]
    if own not in STAGES:
        return
    upstream = set(STAGES[: STAGES.index(own) + 1]) | FOR_ALL | {None, "__version__"}
    assert {stage_of(name) for name in iter_imports(path)} <= upstream


def test_the_product_does_not_know_the_instrument_that_judges_it():
    assert not {p for p in MODULES if any(name.split(".")[0] == "lab" for name in iter_imports(p))}


def test_no_module_imports_itself_by_way_of_others():
    imports = {module_name(path): set(iter_names(path)) for path in [*MODULES, *LAB_MODULES]}
    graph = {name: named & imports.keys() - {name} for name, named in imports.items()}
    # Python refuses to order a graph that has a cycle, and names it.
    tuple(TopologicalSorter(graph).static_order())


def test_of_the_simulator_only_the_agents_run_knows_the_agent():
    """The models and planners under it stay free of sources, actuators and the loop."""
    runs_agent = {"agent_host.py", "agent_source.py", "agent_run.py"}
    rest = {path for path in MODULES if path.parent.name == "simulate" and path.name not in runs_agent}
    used = {stage_of(name) for path in rest for name in iter_imports(path)}
    assert used <= {"simulate", "topology", "model", "policy", "interfaces", None} | FOR_ALL


def test_only_sweeps_and_the_lab_ask_the_simulator():
    simulator = {path for path in MODULES if path.relative_to(PACKAGE).parts[0] in {"simulate", "fleet"}}
    others = set(MODULES) - simulator
    asking = {path for path in others if any(stage_of(n) == "simulate" for n in iter_imports(path))}
    assert not asking
    asking = {path for path in LAB_MODULES if any(stage_of(n) == "simulate" for n in iter_imports(path))}
    assert {path.name for path in asking} == {"scenario_forecast.py"}


def test_nothing_else_knows_fleets_and_clouds():
    """They are extras: the agent must run without them, and take no memory for them."""
    apart = {"fleet", "cloud"}
    others = {path for path in MODULES if path.relative_to(PACKAGE).parts[0] not in apart}
    assert not {path for path in others if apart & {stage_of(name) for name in iter_names(path)}}


def test_the_agent_loads_nothing_of_the_extras():
    extras = [
        "duckdb",
        "fsspec",
        "distributed",
        "openstack",
        "keystoneauth1",
        "grpc",
        "google.protobuf",
        "lightkube",
        "prometheus_client",
    ]
    script = (
        "import sys, vmplace.interfaces.agent_command, vmplace.agent.wiring, vmplace.interfaces.answers\n"
        "import vmplace.interfaces.control, vmplace.agent.loop\n"
        f"apart = set({extras!r}) | {{'vmplace.fleet', 'vmplace.cloud', 'vmplace.extras'}}\n"
        "sys.exit(' '.join(sorted(apart & set(sys.modules))) or None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")


@pytest.mark.parametrize("path", PURE, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_model_and_policy_do_no_io_and_read_no_clock(path: Path):
    assert not {name.split(".")[0] for name in iter_imports(path)} & IMPURE_MODULES
    assert "open" not in nodes_of(path)[1]


def test_only_actuation_changes_placement():
    changing = {p.relative_to(PACKAGE).parts[0] for p in MODULES if nodes_of(p)[1] & CHANGES_PLACEMENT}
    assert changing == {"actuation"}


def test_only_actuation_and_who_asks_a_tool_start_processes():
    starting = {p.relative_to(PACKAGE) for p in MODULES if "subprocess" in set(iter_imports(p))}
    # libvirt's library, the perf tool and systemctl are asked in processes of their own.
    asking = {Path("apart.py"), Path("topology/guests_libvirt.py"), Path("sampling/perf_script.py")}
    asking |= {Path("interfaces/install_command.py")}
    assert {path.parts[0] for path in starting - asking} <= {"actuation"}


@pytest.mark.parametrize("path", [*MODULES, *LAB_MODULES], ids=lambda p: str(p.relative_to(LAB.parent)))
def test_every_module_says_what_it_is_for(path: Path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_no_file_is_named_after_nothing():
    nothing = {"utils", "helpers", "common", "manager", "handler", "misc", "data", "new", "2"}
    assert not {path.stem for path in [*MODULES, *LAB_MODULES]} & nothing
