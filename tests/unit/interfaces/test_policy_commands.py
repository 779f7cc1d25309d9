"""`vmplace policy`: what a script reads from it, against libvirt's own test driver."""

import importlib.util
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.agent.test_guest_policy import WHOLE, domain_xml, policy_xml
from tests.unit.interfaces.test_json_schemas import errors
from vmplace.agent.config import read_config
from vmplace.agent.policy_reference import PAGE
from vmplace.errors import ConfigError, VmplaceError, WrongUsageError
from vmplace.interfaces import domain_metadata
from vmplace.interfaces.domain_metadata import DomainXml
from vmplace.interfaces.error_lines import error_line
from vmplace.interfaces.policy_commands import policy
from vmplace.outside import parse_json
from vmplace.topology import libvirt_worker
from vmplace.topology.domain_policy import NAMESPACE, NOVA
from vmplace.topology.guests_libvirt import Answer

needs_libvirt = pytest.mark.skipif(
    importlib.util.find_spec("libvirt") is None, reason="Python has no libvirt module"
)
NODE = """<node><domain type='test'><name>test</name><memory>1024</memory><vcpu>1</vcpu>
<os><type>hvm</type></os></domain></node>"""
STRICT = "<numatune><memory mode='strict' nodeset='0-1'/></numatune>"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A test driver's connection, asked in this process: each new one would forget what was set."""
    libvirt = pytest.importorskip("libvirt")
    libvirt.registerErrorHandler(lambda *_: None, None)
    (tmp_path / "node.xml").write_text(NODE)
    opened = libvirt.open(f"test://{tmp_path}/node.xml")

    def asked(_uri: str, question: str, *words: str, text: str = "") -> Answer:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        try:
            reported = libvirt_worker.QUESTIONS[question](opened, *words)
        except libvirt.libvirtError as err:
            raise VmplaceError(str(err)) from err
        return parse_json(json.dumps(reported), Answer)

    monkeypatch.setattr(domain_metadata, "asked", asked)
    yield opened
    opened.close()


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(policy, words, input=stdin)


def output_of(result: Result) -> str:
    return f"{result.exception}{getattr(result.exception, 'hint', '')}"


def test_what_is_set_is_got(connection: Any):
    assert run("set", "test", "mode=advise", "allowed_nids=0-1", "--libvirt-uri", "x").exit_code == 0
    assert run("set", "test", "schedule=Mon 00:00-01:00; Tue 00:00-01:00").exit_code == 0
    got = run("get", "test", "--json")
    assert got.exit_code == 0
    assert json.loads(got.stdout)["keys"] == {
        "mode": "advise",
        "allowed_nids": "0-1",
        "schedule": "Mon 00:00-01:00; Tue 00:00-01:00",
    }
    assert run("get", "test").stdout.splitlines()[0] == "mode=advise"
    # As libvirt keeps it, and as virsh would show it.
    assert f'xmlns:vmplace="{NAMESPACE}"' in connection.lookupByName("test").XMLDesc(0)


def test_a_key_is_unset_and_the_policy_taken_out(connection: Any):
    run("set", "test", "mode=advise", "replica_mb=5")
    assert run("set", "test", "--unset", "mode").exit_code == 0
    assert json.loads(run("get", "test", "--json").stdout)["keys"] == {"replica_mb": "5"}
    assert "taken out" in run("set", "test", "--remove").stdout
    gone = run("get", "test")
    assert "holds no policy" in output_of(gone) and getattr(gone.exception, "exit_code", None) == 3


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mode=atuo", "mode: invalid enum value 'atuo'"),
        ("allowed_nids=-1", "allowed_nids: '-1' is no node (0 to 1023), and no range"),
        ("techniques=gather", 'techniques: "gather" needs "move"'),
    ],
)
def test_a_mistake_of_a_command_line_has_no_line_of_a_file(connection: Any, word: str, message: str):
    assert str(run("set", "test", word).exception) == message


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("mode=atuo",), '"auto"'),
        (("moed=auto",), "known: mode"),
        (("--unset", "moed"), "known: mode"),
        (("mode=auto", "--unset", "nosuch"), "known: mode"),
        (("techniques=interleave",), 'add "move"'),
        (("allowed_nids=[0,1]",), "such as 0,1 or 0-1"),
    ],
)
def test_what_is_wrong_is_reported_and_changes_nothing(connection: Any, words, cure):
    run("set", "test", "mode=advise")
    wrong = run("set", "test", *words)
    assert isinstance(wrong.exception, VmplaceError) and cure in output_of(wrong)
    line = error_line(wrong.exception)
    assert (line.error.code, line.exit_code) == ("usage", 2)
    assert json.loads(run("get", "test", "--json").stdout)["keys"] == {"mode": "advise"}


@pytest.mark.parametrize(
    "words",
    [
        ("set", "test"),
        ("set", "test", "mode"),
        ("set", "test", "--remove", "mode=auto"),
        ("set", "test", "--remove", "--unset", "mode"),
        ("set", "test", "mode=auto", "--unset", "mode"),
        ("set", "test", "mode=auto", "mode=manual"),
        ("apply", "test"),
    ],
)
def test_usage_is_reported_with_its_own_code_and_changes_nothing(connection: Any, words: tuple[str, ...]):
    run("set", "test", "mode=advise")
    assert run(*words).exit_code == 2
    assert json.loads(run("get", "test", "--json").stdout)["keys"] == {"mode": "advise"}


def test_a_mistake_that_was_there_before_is_none_of_the_command_line(connection: Any):
    text = "<policy><mode>atuo</mode></policy>"
    connection.lookupByName("test").setMetadata(2, text, "vmplace", NAMESPACE, 0)
    wrong = run("set", "test", "priority=protected")
    assert output_of(wrong).startswith("the running XML: mode: invalid enum value 'atuo'")
    assert isinstance(wrong.exception, ConfigError) and error_line(wrong.exception).exit_code == 1
    # What it says itself is its own mistake, also where it mends the other one.
    wrong = run("set", "test", "mode=auto", "priority=high")
    assert output_of(wrong).startswith("the running XML: priority: ")
    assert isinstance(wrong.exception, WrongUsageError)
    assert error_line(wrong.exception).exit_code == 2


def test_a_key_that_only_the_xml_knows_can_be_unset(connection: Any):
    text = "<policy><mode>auto</mode><colour>red</colour></policy>"
    connection.lookupByName("test").setMetadata(2, text, "vmplace", NAMESPACE, 0)
    assert run("set", "test", "--unset", "colour", "--unset", "colour").exit_code == 0
    assert json.loads(run("get", "test", "--json").stdout)["keys"] == {"mode": "auto"}


LIVE, CONFIG = 1, 2


def put(connection: Any, words: str, where: int = LIVE | CONFIG) -> None:
    """Write a policy as virsh does, past vmplace."""
    domain = connection.lookupByName("test")
    domain.setMetadata(2, f"<policy>{words}</policy>", "vmplace", NAMESPACE, where)


def got(*words: str) -> dict[str, str]:
    return dict(json.loads(run("get", "test", "--json", *words).stdout)["keys"])


def test_the_running_policy_and_the_next_starts_keep_their_own_keys(connection: Any):
    """Else a guest that is to be left alone from its next start on would be moved then."""
    put(connection, "<mode>auto</mode>", LIVE)
    put(connection, "<mode>manual</mode><allowed_nids>0</allowed_nids>", CONFIG)
    done = json.loads(run("set", "test", "priority=protected", "--json").stdout)
    assert got() == done["keys"] == {"mode": "auto", "priority": "protected"}
    asleep = {"mode": "manual", "allowed_nids": "0", "priority": "protected"}
    assert got("--config") == done["next_start_keys"] == asleep
    assert errors("policy set", done) == []
    said = run("set", "test", "priority=normal").stdout
    assert "note: for its next start it says otherwise: mode=manual (now: mode=auto); " in said
    assert "allowed_nids=0 (now: no allowed_nids)" in said and "priority" not in said
    done = json.loads(run("set", "test", "--unset", "allowed_nids", "mode=auto", "--json").stdout)
    assert got() == got("--config") == done["keys"] and done["next_start_keys"] is None


@pytest.mark.parametrize("where", [LIVE, CONFIG])
def test_a_key_that_only_one_of_the_two_knows_can_be_unset(connection: Any, where: int):
    put(connection, "<colour>red</colour><mode>advise</mode>", where)
    assert run("set", "test", "--unset", "colour").exit_code == 0
    words = () if where == LIVE else ("--config",)
    assert got(*words) == {"mode": "advise"}
    # The other has none, not an empty one: that would let the hook change numatune.
    domain = connection.lookupByName("test")
    assert "vmplace" not in domain.XMLDesc(2 if where == LIVE else 0)


def test_a_change_that_is_wrong_for_the_next_start_alone_names_it_and_changes_nothing(connection: Any):
    put(connection, "<allowed_nids>0</allowed_nids>", CONFIG)
    wrong = run("set", "test", "preferred_nids=1")
    assert isinstance(wrong.exception, WrongUsageError)
    assert str(wrong.exception).startswith("the XML for its next start: preferred_nids 1 are not among")
    assert run("get", "test").stdout == "" and got("--config") == {"allowed_nids": "0"}


def test_of_two_writes_a_failed_second_one_is_named(connection: Any, monkeypatch: pytest.MonkeyPatch):
    put(connection, "<mode>auto</mode>", LIVE)
    asked: Callable[..., Answer] = vars(domain_metadata)["asked"]

    def ask(uri: str, question: str, *words: str, text: str = "") -> Answer:
        if "live" in words:
            raise VmplaceError("libvirt: busy")
        return asked(uri, question, *words, text=text)

    monkeypatch.setattr(domain_metadata, "asked", ask)
    failed = str(run("set", "test", "priority=protected").exception)
    assert "busy; the XML for its next start is changed already, the running XML is not" in failed
    assert got("--config") == {"priority": "protected"} and got() == {"mode": "auto"}


@pytest.mark.parametrize("where", [1, 2])
def test_a_policy_that_cannot_be_read_is_not_written_over(connection: Any, where: int):
    """Its mode would be lost.  ``where``: of the running domain, or of the next start's."""
    domain = connection.lookupByName("test")
    domain.setMetadata(2, "<policy><mode>manual</mode>loose</policy>", "vmplace", NAMESPACE, where)
    refused = run("set", "test", "priority=protected")
    assert refused.exit_code == 1 and "loose" in output_of(refused) and "--remove" in output_of(refused)
    assert "<vmplace:mode>manual" in domain.XMLDesc(0 if where == 1 else 2)
    assert run("set", "test", "--remove").exit_code == 0
    assert run("set", "test", "priority=protected").exit_code == 0


STRAYS = [
    ("urn:vmplace:policy", "<policy><mode>manual</mode></policy>", "urn:vmplace:policy"),
    ("urn:vmplace:policy:2;reboot", "<policy/>", "'urn:vmplace:policy:2;reboot'"),
    ("urn:z", f"<note>{'x' * 1_100_000}</note>", "urn:z"),
]


@pytest.mark.parametrize(("space", "element", "quoted"), STRAYS, ids=["stray", "quoted", "too long"])
def test_what_removing_the_policy_would_not_mend_has_another_cure(
    connection: Any, space: str, element: str, quoted: str
):
    domain, cure = connection.lookupByName("test"), f"virsh metadata test {quoted} --remove --live --config"
    domain.setMetadata(2, element, "v", space, LIVE | CONFIG)
    for words in (("set", "test", "priority=protected"), ("get", "test")):
        refused = run(*words)
        assert refused.exit_code == 1 and output_of(refused).endswith(f"take it out: {cure}")
    removed = run("set", "test", "--remove")
    assert removed.stdout == "test: there was no policy of vmplace to take out (both)\n"
    assert "the running XML is still wrong: line " in output_of(removed)
    assert removed.exit_code == 1 and output_of(removed).endswith(cure)
    # As virsh does it.
    domain.setMetadata(2, None, None, space, LIVE | CONFIG)
    assert run("set", "test", "priority=protected").exit_code == 0


def test_a_policy_of_ours_that_is_too_long_is_taken_out(connection: Any):
    put(connection, f"<mode>{'x' * 1_100_000}</mode>", CONFIG)
    assert output_of(run("set", "test", "mode=auto")).endswith("vmplace policy set test --remove")
    assert run("set", "test", "--remove", "--live").stdout.startswith("test: there was no policy")
    removed = run("set", "test", "--remove")
    assert (removed.exit_code, removed.stdout) == (0, "test: policy taken out (both)\n")


def test_one_policy_is_taken_out_and_another_mistake_named(connection: Any):
    domain = connection.lookupByName("test")
    put(connection, "<mode>auto</mode>")
    domain.setMetadata(2, "<policy/>", "v", "urn:vmplace:policy:2", CONFIG)
    removed = run("set", "test", "--remove", "--json")
    assert removed.exit_code == 1 and json.loads(removed.stdout)["keys"] == {}
    assert str(removed.exception).startswith("the XML for its next start is still wrong: line ")
    assert "urn:vmplace:policy:1" not in domain.XMLDesc(0) + domain.XMLDesc(2)


@pytest.mark.parametrize(
    ("metadata", "cure"),
    [
        (f'<n:x xmlns:n="{NOVA}"><n:extraSpec name="vmplace:mode">{"x" * 5000}</n:extraSpec></n:x>', ""),
        (f'<v:mode xmlns:v="{NAMESPACE}">auto</v:mode>', "vmplace policy set 'a b' --remove"),
        ('<v:policy xmlns:v="urn:vmplace&#155;2J"/>', ""),
        (f'<z xmlns="urn:z">{"<a>" * 70}{"</a>" * 70}</z>', "virsh metadata 'a b' urn:z --remove --config"),
        ("<a>" * 70 + "</a>" * 70, ""),
    ],
    ids=["of Nova", "ours", "no text", "deep", "no namespace"],
)
def test_the_cure_takes_out_what_is_wrong_and_no_more(metadata: str, cure: str):
    xml = f"<domain><metadata>{metadata}</metadata></domain>"
    said = DomainXml("a b", "", xml)
    assert said.said().error
    assert said.cure("config") == "mend it: virsh edit 'a b'" + (f"; or take it out: {cure}" if cure else "")


def test_without_an_agent_what_holds_is_looked_up(connection: Any, tmp_path: Path):
    config = tmp_path / "vmplace.toml"
    config.write_text('[defaults]\nreplica_mb = 7\n[guests."te*"]\nmode = "manual"\n')
    run("set", "test", "mode=advise")
    result = run("explain", "test", "--socket", str(tmp_path / "none"), "--config", str(config), "--json")
    assert result.exit_code == 0, output_of(result)
    keys = json.loads(result.stdout)["keys"]
    assert keys["mode"] == {"value": "advise", "from": "domain XML"}
    assert keys["replica_mb"] == {"value": 7, "from": f"{config}, [defaults]"}
    table = run("explain", "test", "--socket", str(tmp_path / "none"), "--config", str(config))
    assert table.exit_code == 0 and "domain XML" in table.stdout


def test_what_set_prints_is_of_its_schema(connection: Any):
    assert errors("policy set", json.loads(run("set", "test", "mode=auto", "--json").stdout)) == []


def test_what_get_prints_is_of_its_schema(connection: Any):
    run("set", "test", "mode=auto")
    assert errors("policy get", json.loads(run("get", "test", "--json").stdout)) == []


def test_what_apply_prints_is_of_its_schema(connection: Any):
    defined = connection.lookupByName("test").XMLDesc(2)
    connection.defineXML(defined.replace("<vcpu", f"{STRICT}<vcpu", 1))
    run("set", "test", "mode=auto")
    assert errors("policy apply", json.loads(run("apply", "--config", "test", "--json").stdout)) == []


@pytest.mark.parametrize("words", [{"mode": "auto"}, {"mode": "atuo"}, {"later": "1"}])
def test_what_validate_prints_is_of_its_schema(tmp_path: Path, words: dict[str, str]):
    (xml := tmp_path / "test.xml").write_text(policy_xml(words))
    checked = json.loads(run("validate", str(xml), "--json").stdout)
    assert errors("policy validate", checked) == []
    assert errors("policy validate", checked | {"problems": [{"message": 1}]})


def test_strict_numatune_is_made_restrictive_for_the_next_start(connection: Any):
    domain = connection.lookupByName("test")
    xml = domain.XMLDesc(2)
    connection.defineXML(xml.replace("<vcpu", f"{STRICT}<vcpu", 1))
    assert run("apply", "--config", "--dry-run", "test").exit_code == 0
    assert "mode='strict'" in domain.XMLDesc(2)
    applied = run("apply", "--config", "test", "--json")
    assert json.loads(applied.stdout) == {"name": "test", "changed": True, "dry_run": False}
    config = domain.XMLDesc(2)
    assert "mode='restrictive' nodeset='0-1'" in config and "mode='strict'" not in config
    assert getattr(run("apply", "--config", "test").exception, "exit_code", None) == 3


def test_a_policy_that_forbids_moves_forbids_that_too(connection: Any):
    domain = connection.lookupByName("test")
    connection.defineXML(domain.XMLDesc(2).replace("<vcpu", f"{STRICT}<vcpu", 1))
    run("set", "test", "--config", "mode=advise")
    refused = run("apply", "--config", "test")
    assert refused.exit_code == 1 and "does not let vmplace move" in output_of(refused)
    assert "mode='strict'" in domain.XMLDesc(2)


GOOD = [
    ("d.xml", domain_xml(WHOLE)),
    ("p.xml", policy_xml(WHOLE)),
    ("m.xml", f"<metadata>{policy_xml(WHOLE)}</metadata>"),
    ("v.toml", '[guests.db1]\nmode = "auto"\n'),
    ("empty.toml", ""),
]
BAD = [
    ("d.xml", domain_xml({"mode": "atuo"}), "d.xml:2: mode: ", '"auto"'),
    ("d.xml", "<domain>\n<metadata>", "d.xml:2: no XML", "xmllint"),
    ("m.xml", f"<metadata>\n{policy_xml({'mode': 'atuo'})}</metadata>", "m.xml:3: mode: ", '"auto"'),
    (
        "m.xml",
        f"<metadata>\n{policy_xml({}).replace('policy:1', 'policy:2')}</metadata>",
        "m.xml:2: ",
        NAMESPACE,
    ),
    ("s.xml", f"<domstatus>{domain_xml({})}</domstatus>", "s.xml: it is neither", "virsh dumpxml"),
    ("p.xml", policy_xml({}).replace("\n", "\nmanual\n"), "p.xml:2: ", "<vmplace:mode>manual</vmplace:mode>"),
    ("p.xml", policy_xml({}).replace("policy:1", "policy"), "p.xml:1: ", f'xmlns:vmplace="{NAMESPACE}"'),
    ("v.toml", '[guests.db1]\nmode = "atuo"\n[guests.db2]\nmod = 1\n', "v.toml:2:1", "did you mean 'mode'?"),
    ("v.toml", "window_ms = 1\n", "v.toml:1:1", "20 to 60000"),
]


@pytest.mark.parametrize(("name", "text"), GOOD)
def test_what_is_right_is_found_right(tmp_path: Path, name, text):
    (tmp_path / name).write_text(text)
    result = run("validate", str(tmp_path / name), "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["valid"] is True


@pytest.mark.parametrize(("name", "text", "place", "cure"), BAD)
def test_mistakes_are_found_with_place_and_cure(tmp_path: Path, name, text, place, cure):
    (tmp_path / name).write_text(text)
    result = run("validate", str(tmp_path / name))
    assert result.exit_code == 1 and place in result.stdout and cure in result.stdout
    assert result.stdout.endswith((": 1 mistake\n", ": 2 mistakes\n"))
    machine = json.loads(run("validate", str(tmp_path / name), "--json").stdout)
    assert machine["valid"] is False and machine["problems"][0]["hint"]


def test_each_mistake_of_a_configuration_is_listed_with_its_cure(tmp_path: Path):
    text = '[budget]\ncal_ms = 5\nmb_per = 6\n[tral]\n[guests.db1]\nmode = "atuo"\nmod = 1\n'
    (file := tmp_path / "v.toml").write_text(text)
    listed = run("validate", str(file)).stdout
    assert [listed.count(f"{file}:{place}: ") for place in ("2:1", "3:1", "4:2", "6:1", "7:1")] == [1] * 5
    assert listed.count("  hint: ") == 5 and listed.endswith(": 5 mistakes\n")
    file.write_text('[guests.db1]\nmode = "atuo"\nmod = 1\n')
    assert run("validate", str(file)).stdout.endswith(": 2 mistakes\n")


def test_stdin_is_checked_and_words_of_later_versions_are_notes():
    result = run("validate", "-", "--json", stdin=policy_xml({"mode": "auto", "colour": "red"}))
    assert result.exit_code == 0 and "colour" in json.loads(result.stdout)["notes"][0]


@pytest.mark.parametrize(
    "content", [b'state_dir = "/\xe9"\n', b"#" * (1 << 20) + b"#"], ids=["no text", "too long"]
)
def test_what_an_agent_does_not_read_is_a_mistake(tmp_path: Path, content: bytes):
    (file := tmp_path / "v.toml").write_bytes(content)
    with pytest.raises(ConfigError):
        read_config(file)
    result = run("validate", str(file))
    assert result.exit_code == 1 and result.stdout.endswith(": 1 mistake\n") and "hint: " in result.stdout


def test_stdin_that_holds_nothing_or_no_text_is_a_mistake():
    """As of virsh dumpxml for a guest that is not there."""
    nothing = run("validate", "-", stdin="\n")
    assert nothing.exit_code == 1 and "stdin holds nothing" in output_of(nothing)
    no_text = CliRunner().invoke(policy, ["validate", "-"], input=b"a = '\xff'\n")
    assert no_text.exit_code == 1 and "1 mistake" in no_text.stdout


def test_a_file_that_holds_nothing_is_no_policy(tmp_path: Path):
    (file := tmp_path / "db1.xml").write_text(" \n")
    nothing = run("validate", str(file))
    assert nothing.exit_code == 1 and f"{file} holds nothing" in output_of(nothing)


@pytest.mark.parametrize("text", ["", "# window_ms = 500\n"])
def test_of_a_configuration_that_sets_nothing_that_is_said(tmp_path: Path, text: str):
    (file := tmp_path / "vmplace.toml").write_text(text)
    nothing = run("validate", str(file))
    assert nothing.exit_code == 0
    assert nothing.output == f"note: it sets nothing: the defaults apply\n{file}: no mistakes\n"


def test_all_keys_are_explained():
    keys = json.loads(run("explain", "--json").stdout)["keys"]
    assert set(keys) == set(WHOLE)
    assert "such as 0,1 or 0-1" in keys["allowed_nids"]["wanted"]


@pytest.mark.parametrize(("key", "word"), [("preferred_nids", "none"), ("allowed_nids", "no limit")])
def test_the_default_of_a_key_has_one_word(connection: Any, tmp_path: Path, key: str, word: str):
    assert json.loads(run("explain", "--json").stdout)["keys"][key]["default"] == word
    table = run("explain", "test", "--socket", str(tmp_path / "none")).stdout
    assert re.search(rf"^{key} +{word} +nobody: {word} *$", table, re.MULTILINE)
    assert re.search(rf"^## {key}\n[^#]*?Default:\s{word}\.$", PAGE.read_text(), re.MULTILINE)
