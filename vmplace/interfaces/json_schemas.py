"""What shape has the output of ``--json``?  JSON schemas, made from the types that are printed.

Run as ``python -m vmplace.interfaces.json_schemas`` after a change: it writes schemas/VERB.json
(policy-get.json for ``policy get``), which is what is shipped.  Those of the simulator and of sweeps are
in vmplace.fleet.json_schemas.  A program may rely on keys that are required; others may be added.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from vmplace.agent.state import AgentStatus, PlanSummary
from vmplace.interfaces import guest_views as views
from vmplace.interfaces.calibrate_command import CalibrationReport
from vmplace.interfaces.run_views import Demonstrated, Recorded, Replayed
from vmplace.policy.advise import Advice
from vmplace.policy.fit import Fit
from vmplace.topology.capability import Capability

FOLDER = Path(__file__).with_name("schemas")
TYPES = {
    "status": AgentStatus,
    "top": AgentStatus,
    "plan": PlanSummary,
    "show": views.ShowView,
    "why": views.WhyView,
    "fit": Fit,
    "advise": Advice,
    "install": views.Installed,
    "uninstall": views.Uninstalled,
    "policy get": views.XmlPolicy,
    "policy set": views.SetPolicy,
    "policy validate": views.CheckedPolicy,
    "policy apply": views.RelaxedPolicy,
    "record": Recorded,
    "replay": Replayed,
    "demo": Demonstrated,
    "calibrate": CalibrationReport,
}
WORDS = {"type": "array", "items": {"type": "string"}}
"""What an order did; and what is wrong with vmplace.toml, where an undo works all the same."""


class Report(msgspec.Struct):
    """What ``doctor`` prints."""

    can_work: bool
    capabilities: list[Capability]


def schemas() -> dict[str, Any]:
    """Return the schemas by verb, but for those of the simulator and of sweeps."""
    found = made_of(TYPES | {"doctor": Report})
    found["policy explain"] = titled("policy explain", _either(views.PolicyView, views.PolicyKeys))
    found["fit"]["$defs"]["Fit"]["properties"]["done"] = WORDS
    return found | {verb: titled(verb, _order(verb)) for verb in ORDERS}


def _order(verb: str) -> dict[str, Any]:
    notes = {"notes": WORDS} if verb == "undo" else {}
    return {"type": "object", "properties": {"done": WORDS} | notes, "required": ["done"]}


def _either(*kinds: Any) -> dict[str, Any]:
    """Return the schema of what is of one of these types."""
    parts = [_schema(kind) for kind in kinds]
    known = {name: one for part in parts for name, one in part["$defs"].items()}
    return {"anyOf": [{"$ref": part["$ref"]} for part in parts], "$defs": known}


def made_of(types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas of what is printed, by verb."""
    return {verb: titled(verb, _schema(kind)) for verb, kind in types.items()}


def titled(verb: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that says whose output it is of."""
    return {"$schema": DIALECT, "title": f"vmplace {verb} --json", **schema}


ORDERS = ("apply", "undo", "pause", "resume")
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _schema(kind: Any) -> dict[str, Any]:
    """Return msgspec's schema; keys that are numbers in Python are strings in JSON."""
    return dict(_without_key_types(msgspec.json.schema(kind)))


def _without_key_types(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_key_types(item) for key, item in value.items() if key != "propertyNames"}
    return [_without_key_types(item) for item in value] if isinstance(value, list) else value


def file_of(verb: str) -> Path:
    """Return the file that has the schema of a verb."""
    return FOLDER / f"{verb.replace(' ', '-')}.json"


def text_of(schema: Any) -> str:
    """Return a schema as it is shipped."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def write(made: Mapping[str, Any]) -> None:
    """Write schemas into their files."""
    FOLDER.mkdir(exist_ok=True)
    for verb, one in made.items():
        file_of(verb).write_text(text_of(one))


if __name__ == "__main__":
    write(schemas())
