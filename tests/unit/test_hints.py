"""Every error that vmplace or its lab raises names its cure, or stands in a list here, with the reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
ROOT_ERROR = "VmplaceError"
WITHOUT = {
    "lab/emulated_host.py LabHost._migrated": "only a mistake in the program",
    "lab/scenario_agents.py VmplaceAgent._running": "as above",
    "vmplace/actuation/journal.py Journal._append": "only a mistake in the program",
    "vmplace/actuation/journal.py Journal._replace": "as above",
    "vmplace/actuation/replicated_guest.py ReplicatedGuest.replicate": "tried again in each window",
    "vmplace/actuation/replicator.py Replicator._replicate": "as above",
    "vmplace/actuation/undo_vcpus.py VcpusUndoing._restore": "the sentence has the cure",
    "vmplace/agent/policy_text.py stated_policies": "as above, from domain_policy.py",
    "vmplace/cloud/kubernetes/watch.py Watch.step": "what a library raised unexpectedly: nobody knows a cure",
    "vmplace/cloud/openstack/publish.py Publisher._report": "as above",
    "vmplace/simulate/agent_run.py agent_rates_after": "only a mistake in the program",
    "vmplace/topology/guest_finder.py GuestFinder._read_in_time": "a reason to leave a guest alone",
    "vmplace/topology/guest_reader.py GuestReader.read": "as above",
    "vmplace/topology/guests_kvm.py KvmProcesses._look": "as above",
    "vmplace/topology/guests_kvm.py telling": "as above",
}
"""By file and function: why an error that is made there needs no cure."""
WITHOUT_CLASSES = {
    "HeldError": "a guest's problem: vmplace tries again by itself, as docs/operate.md has it",
    "LabCommandError": "its sentence ends with what the command printed, and with its log where it has one",
}


def trees() -> dict[str, ast.Module]:
    paths = (path for package in ("vmplace", "lab") for path in (CHECKOUT / package).rglob("*.py"))
    return {str(path.relative_to(CHECKOUT)): ast.parse(path.read_text()) for path in paths}


def name_of(node: ast.expr | None) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def errors(classes: dict[str, ast.ClassDef]) -> set[str]:
    """Return the names of VmplaceError and all that are made of it."""
    found = {ROOT_ERROR}
    while more := {
        name for name, made in classes.items() if name not in found and found & set(map(name_of, made.bases))
    }:
        found |= more
    return found


def hints(call: ast.Call) -> bool:
    """Tell whether a call gives a hint that is not empty for certain."""
    given = [word.value for word in call.keywords if word.arg == "hint"]
    return bool(given) and not (isinstance(given[0], ast.Constant) and not given[0].value)


def is_cured(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    """Tell whether a class has a cure for all of its errors: its own, its base's, or as an argument."""
    if name == ROOT_ERROR or name not in classes:
        return False
    for part in classes[name].body:
        if isinstance(part, ast.Assign) and name_of(part.targets[0]) == "usual_hint":
            return True
        if isinstance(part, ast.FunctionDef) and part.name == "__init__" and has_own_hint(part):
            return True
    return any(is_cured(name_of(base), classes) for base in classes[name].bases)


def has_own_hint(init: ast.FunctionDef) -> bool:
    """Tell whether a hint is given to the base that no caller may leave out."""
    optional = {
        arg.arg for arg, value in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True) if value
    }
    for node in ast.walk(init):
        if isinstance(node, ast.Call) and hints(node):
            return not any(word.arg == "hint" and name_of(word.value) in optional for word in node.keywords)
    return False


def made(node: ast.AST, names: set[str], where: tuple[str, ...] = ()) -> Iterator[tuple[str, int, str, bool]]:
    """Yield where errors are made (function, line), of which class, and whether with a hint."""
    for part in ast.iter_child_nodes(node):
        inside = (*where, part.name) if isinstance(part, ast.FunctionDef | ast.ClassDef) else where
        if isinstance(part, ast.Call) and name_of(part.func) in names:
            yield ".".join(where), part.lineno, name_of(part.func), hints(part)
        elif isinstance(part, ast.Raise) and name_of(part.exc) in names:
            yield ".".join(where), part.lineno, name_of(part.exc), False
        yield from made(part, names, inside)


def uncured(sources: dict[str, ast.Module]) -> dict[str, list[int]]:
    """Return the lines at which errors are made without a cure, by file and function."""
    classes = {
        node.name: node
        for tree in sources.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found: dict[str, list[int]] = {}
    for path, tree in sources.items():
        for where, line, name, is_hinted in made(tree, errors(classes)):
            if not (is_hinted or name in WITHOUT_CLASSES or is_cured(name, classes)):
                found.setdefault(f"{path} {where}", []).append(line)
    return found


def test_every_error_names_its_cure():
    found = uncured(trees())
    assert {place: lines for place, lines in found.items() if place not in WITHOUT} == {}
    assert set(WITHOUT) <= set(found), "these have a cure by now"


def test_what_has_no_cure_is_found():
    sources = {
        "errors.py": "class VmplaceError(Exception): pass\nclass Own(VmplaceError):\n  usual_hint = 'wait'",
        "a.py": (
            "class Lent(VmplaceError):\n  def __init__(self, why): super().__init__(why, hint='wait')\n"
            "class Passed(VmplaceError):\n"
            "  def __init__(self, why, *, hint=None): super().__init__(why, hint=hint)\n"
            "def good():\n  raise Own('x')\ndef lent():\n  raise Lent('x')\n"
            "def given(): raise Passed('x', hint='wait')\n"
            "def bad(): return VmplaceError('x')\n"
            "def empty(): raise VmplaceError('x', hint='')\ndef passed():\n  raise Passed('x')\n"
            "def bare():\n  raise VmplaceError\n"
        ),
    }
    found = uncured({path: ast.parse(text) for path, text in sources.items()})
    assert set(found) == {"a.py bad", "a.py empty", "a.py passed", "a.py bare"}
