"""One planner decides, in the agent and in the simulator; baselines are nobody's part of it."""

import ast
from pathlib import Path

import vmplace

ROOT = Path(vmplace.__file__).parent
PLANNER = "vmplace.policy.host_plan"
BASELINES = "vmplace.policy.baselines"
DECIDERS = ("vmplace.policy.policy_auto", PLANNER, "vmplace.policy.home")


def path_of(module: str) -> Path | None:
    base = ROOT.parent / module.replace(".", "/")
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def imports(module: str) -> set[str]:
    """Return the modules of the product that a module's text imports, wherever in it."""
    path, found = path_of(module), set[str]()
    if path is None:
        return found
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in found if name.startswith("vmplace.") and path_of(name)}


def reachable(*begin: str) -> set[str]:
    seen, todo = set[str](), list(begin)
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            todo += imports(name)
    return seen


def test_agent_and_simulator_reach_the_same_planner() -> None:
    agent, simulator = reachable("vmplace.agent.wiring"), reachable("vmplace.simulate.registry")
    assert {*DECIDERS} <= agent and PLANNER in simulator
    replayed = reachable("vmplace.interfaces.recording_commands")
    assert {*DECIDERS} <= replayed


def test_the_agent_reaches_no_baseline_but_the_control_that_it_can_run() -> None:
    found = {name for name in reachable("vmplace.agent.wiring") if name.startswith(f"{BASELINES}.")}
    assert found == {f"{BASELINES}.interleave"}


def test_what_decides_knows_of_no_baseline() -> None:
    assert not [name for name in reachable(*DECIDERS) if name.startswith(BASELINES)]


def test_every_policy_beside_the_baselines_is_part_of_what_the_agent_does() -> None:
    """A second decider would be a module here that the agent does not reach."""
    policies = {f"vmplace.policy.{path.stem}" for path in (ROOT / "policy").glob("*.py")}
    agent = reachable("vmplace.agent.loop", "vmplace.agent.wiring", "vmplace.interfaces.fit_answers")
    assert policies - {"vmplace.policy.__init__"} <= agent
