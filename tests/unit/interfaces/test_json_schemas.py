"""What commands print with --json is what the shipped schemas say, on a captured host."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from tests.unit.interfaces.captured_world import captured_agent
from tests.unit.interfaces.served_agent import asked, served
from vmplace.fleet import json_schemas as fleet_schemas
from vmplace.interfaces.cli import COMMANDS, cli
from vmplace.interfaces.json_schemas import FOLDER, file_of, schemas, text_of

ASKED = (
    ("status", ()),
    ("top", ("--once",)),
    ("plan", ()),
    ("show", ("db1",)),
    ("show", ("passthrough",)),
    ("why", ("db1",)),
    ("policy explain", ("db1",)),
    ("policy explain", ()),
    ("fit", ("2:64",)),
    ("advise", ("2:64",)),
)


def errors(verb: str, reported: Any) -> list[str]:
    schema = json.loads(file_of(verb).read_text())
    Draft202012Validator.check_schema(schema)
    return [error.message for error in Draft202012Validator(schema).iter_errors(reported)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with served(captured_agent("16amd64-4n8c"), tmp_path_factory.mktemp("agent") / "s") as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "words"), ASKED, ids=str)
def test_what_is_printed_is_of_its_schema_and_less_is_not(verb: str, words: tuple[str, ...], path: Path):
    reported = json.loads(asked(path, *verb.split(), *words, "--json").stdout)
    assert errors(verb, reported) == []
    schema = schemas()[verb]
    # Of several types it may be of, it is that whose keys it has.
    types = [schema["$defs"][one["$ref"].rpartition("/")[2]] for one in schema.get("anyOf", [schema])]
    matching = [one["required"] for one in types if set(one["required"]) <= reported.keys()]
    required = max(matching, key=len)
    for key in required:
        assert errors(verb, {name: value for name, value in reported.items() if name != key})


def test_doctor_is_of_its_schema():
    result = CliRunner().invoke(cli, ["doctor", "--json", "--libvirt-uri", "test:///nowhere"])
    assert errors("doctor", json.loads(result.stdout)) == []
    assert errors("doctor", {"can_work": "yes", "capabilities": []})


def test_each_schema_is_that_of_a_verb_and_as_the_code_has_it():
    made = schemas() | fleet_schemas.schemas()
    assert set(FOLDER.glob("*.json")) == {file_of(verb) for verb in made}
    assert {verb.split()[0] for verb in made} <= set(COMMANDS)
    for verb, schema in made.items():
        assert file_of(verb).read_text() == text_of(schema), (
            "python -m vmplace.{interfaces,fleet}.json_schemas"
        )


def test_guests_have_cells_ram_strips_decisions_and_plans_so_that_all_of_a_schema_is_tried(path: Path):
    shown = json.loads(asked(path, "show", "db1", "--json").stdout)
    assert all(shown[key] for key in ("vcpus", "ram", "strips", "decisions"))
    why = json.loads(asked(path, "why", "db1", "--json").stdout)
    assert why["decisions"] and why["decisions"][-1]["outcome"]
