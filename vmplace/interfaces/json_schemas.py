"""What shape has the output of ``--json``?  JSON schemas, made from the types that are printed.

Run as ``python -m vmplace.interfaces.json_schemas`` after a change: it writes schemas/VERB.json
(policy-get.json for ``policy get``), which is what is shipped.  A program may rely on keys that are
required; others may be added.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from vmplace.agent.state import AgentStatus, PlanSummary
from vmplace.interfaces import guest_views as views
from vmplace.policy.advise import Advice
from vmplace.policy.fit import Fit
from vmplace.topology.capability import Capability

FOLDER = Path(__file__).with_name("schemas")
TYPES = {
    "status": AgentStatus,
    "top": AgentStatus,
    "plan": PlanSummary,
    "show": views.GuestView,
    "why": views.WhyView,
    "fit": Fit,
    "advise": Advice,
    "install": views.Installed,
    "uninstall": views.Uninstalled,
    "policy get": views.XmlPolicy,
    "policy set": views.SetPolicy,
    "policy validate": views.CheckedPolicy,
    "policy explain": views.PolicyView,
    "policy apply": views.RelaxedPolicy,
}
DONE = {"type": "array", "items": {"type": "string"}}
"""What an order did, in words."""


class Report(msgspec.Struct):
    """What ``doctor`` prints."""

    can_work: bool
    capabilities: list[Capability]


def schemas() -> dict[str, Any]:
    """Return the schemas by verb."""
    found = {verb: _schema(kind) for verb, kind in (TYPES | {"doctor": Report}).items()}
    found["fit"]["$defs"]["Fit"]["properties"]["done"] = DONE
    found |= {verb: {"type": "object", "properties": {"done": DONE}, "required": ["done"]} for verb in ORDERS}
    return {
        verb: {"$schema": DIALECT, "title": f"vmplace {verb} --json", **one} for verb, one in found.items()
    }


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


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, one in schemas().items():
        file_of(name).write_text(text_of(one))
