"""A wrong configuration is reported with line, column and cure."""

import contextlib
import re
from pathlib import Path

import msgspec
import pytest

from vmplace.agent.config import MOST_BYTES, SAMPLE, parse_config, read_config
from vmplace.agent.config_mistakes import MOST_MISTAKES
from vmplace.agent.guest_policy import GuestPolicy
from vmplace.agent.reload import reloaded
from vmplace.agent.toml_places import key_places
from vmplace.errors import ConfigError, ConfigMistakesError
from vmplace.policy.plan import Mode

FILE = Path("vmplace.toml")

WRONG = [
    ("windw_ms = 500", "1:1", "unknown key 'windw_ms'", "did you mean 'window_ms'?"),
    ("# why\n  window_ms = 'x'", "2:3", "expected whole number, got text", "20 to 60000"),
    ("window_ms = 5", "1:1", "whole number >= 20", "20 to 60000"),
    ("[budget]\n\ncall_ms = 50", "3:1", "number <= 20", "up to 20"),
    ("budget = { mb_per_s = -1 }", "1:12", "whole number >= 1", "1 to 100000"),
    ("[bugdet]\nmb_per_s = 1", "1:2", "unknown key 'bugdet'", "did you mean 'budget'?"),
    ("budget.mb_per = 1", "1:8", "unknown key 'mb_per'", "did you mean 'mb_per_s'?"),
    ("mode = 'advise'", "1:1", "unknown key 'mode'", "put it under [defaults]"),
    ("[budget]\nreplica_mb = 0", "2:1", "unknown key 'replica_mb'", "put it under [defaults]"),
    ("source = 'idel'", "1:1", "source 'idel' does not exist", "did you mean 'idle'?"),
    ("policy = 'moon'", "1:1", "policy 'moon' does not exist", "known: auto, interleave"),
    ("socket = 'run/x'", "1:1", "socket", "absolute path"),
    (f"socket = '/{'x' * 102}'", "1:1", "socket", "at most 102 characters"),
    ("numa_balancing = 'off'", "1:1", "invalid enum value 'off'", '"leave"'),
    ("window_ms = 500\nbudget = [", "2:11", "not valid TOML", "toml.io"),
    ("[defaults]\nallowed_nids = '0,1'", "2:1", "expected array, got text", "such as [0, 1]"),
    ("window_ms = 500\nwindow_ms = 500\n# ", "2:16", "not valid TOML", "is there twice: keep one"),
    ("[budget]\n[budget]\n", "2:8", "not valid TOML", "is there twice: keep one"),
    ("budget = { call_ms = 5, call_ms = 6 }", "1:36", "not valid TOML", "is there twice: keep one"),
    ("budget = { call_ms = 5 }\nbudget.mb_per_s = 6\n#", "2:20", "not valid TOML", "twice: keep one"),
    ("[guests]\nmode = 'auto'", "2:1", "guests.mode is no section", """under [guests."NAME"]"""),
    ("[flavours]\nm1 = 'auto'", "2:1", "flavours.m1 is no section", """under [flavours."NAME"]"""),
    ("[[guests.db1]]\nmode = 'auto'", "1:10", "guests.db1 is no section", """under [guests."NAME"]"""),
    ("guests = 'auto'", "1:1", "guests: expected table, got text", """such as [guests."db*"]"""),
    ("[[flavours]]\nmode = 'auto'", "1:3", "expected table, got array", """such as [flavours."m1.*"]"""),
    ("a = \n", "1:5", "not valid TOML", "toml.io"),
]


@pytest.mark.parametrize(("text", "place", "message", "cure"), WRONG, ids=[w[0] for w in WRONG])
def test_a_mistake_is_reported_with_place_and_cure(text: str, place: str, message: str, cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, FILE)
    assert caught.value.place == f"vmplace.toml:{place}"
    assert message in str(caught.value)
    assert cure in str(caught.value.hint)


MANY = """
policy = 'moon'
[budget]
mb_per_s = 0
cal_ms = 5
[tral]
counters = 'perf'
[defaults]
allowed_nids = [0]
preferred_nids = [1]
[guests.db1]
mode = 'atuo'
schedul = []
[guests.db.a]
mode = 'auto'
"""


def test_all_that_one_look_finds_is_reported_at_once_in_order() -> None:
    with pytest.raises(ConfigMistakesError) as caught:
        parse_config(MANY, FILE)
    reported = [str(one).removeprefix("vmplace.toml:") for one in caught.value.mistakes]
    assert reported == [
        "2:1: policy 'moon' does not exist",
        "4:1: mb_per_s: expected whole number >= 1",
        "5:1: unknown key 'cal_ms'",
        "6:2: unknown key 'tral'",
        "10:1: preferred_nids 1 are not among allowed_nids",
        "12:1: mode: invalid enum value 'atuo'",
        "13:1: unknown key 'schedul'",
        "14:12: guests.db.a is a section in another",
    ]
    assert all(one.hint and str(one) in str(caught.value) for one in caught.value.mistakes)
    assert caught.value.place == "vmplace.toml:2:1"


def test_all_mistakes_of_a_section_are_reported_and_others_hold() -> None:
    loaded = parse_config('[guests.db]\nmode = "atuo"\nmod = 1\n[guests.web]\nmode = "advise"\n', FILE)
    error = loaded.rule("db").error
    assert error is not None and len(error.mistakes) == 2
    assert loaded.rule("web").settings.mode is Mode.ADVISE


def test_of_very_many_mistakes_some_are_reported() -> None:
    with pytest.raises(ConfigMistakesError) as caught:
        parse_config("".join(f"a{n} = {n}\n" for n in range(2_000)), FILE)
    assert len(caught.value.mistakes) == MOST_MISTAKES


@pytest.mark.parametrize("key", ["policy", "source", "guests", "flavours", "defaults", "budget"])
@pytest.mark.parametrize("value", ["[]", "{}", "1", "[[1]]", "'x'"])
def test_a_key_of_any_type_is_right_or_a_mistake(key: str, value: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_config(f"{key} = {value}", FILE)


@pytest.mark.parametrize(
    "text", ["[guests.web.example.org]", "guests.web = { mode = 'auto', example.org = {} }"]
)
def test_a_name_with_dots_that_has_no_quotes_keeps_no_other_guest_from_its_section(text: str) -> None:
    loaded = parse_config(f"{text}\n[guests.db1]\nmode = 'advise'\n", FILE)
    assert loaded.rule("db1").settings.mode is Mode.ADVISE
    for name in ("web", "web.example", "web.example.org"):
        rule = loaded.rule(name)
        assert rule.settings.mode is Mode.MANUAL and "is a section in another" in str(rule.error)
    error = loaded.rule("web.example.org").error
    assert error and error.hint == 'if the name has a dot, write [guests."web.example.org"]'


def test_sections_far_inside_of_each_other_make_short_messages() -> None:
    deep = parse_config(f"[guests.db]\n{'a.' * 3000}a = 1\n", FILE)
    wide = parse_config("[guests.db]\n" + "".join(f"[guests.db.a{n}]\n" for n in range(200)), FILE)
    for loaded in (deep, wide):
        assert max(len(str(rule.error)) for rule in loaded.rules) < 10_000
    assert wide.rule("db.a199").settings.mode is Mode.MANUAL


def test_a_message_holds_no_character_that_a_terminal_obeys() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config('[guests]\n"\\u001b[31m" = 1\n', FILE)
    section = parse_config('[guests.db."\\u001b[31mx\\ny"]\n', FILE).rule("db").error
    unknown = parse_config('[guests.db]\n"a\\nb" = 1\n', FILE).rule("db").error
    for error in (caught.value, section, unknown):
        assert error and f"{error}{error.hint}".isprintable()
    assert str(unknown).endswith("unknown key 'a\\nb'")


def test_a_wrong_guest_section_disables_its_guests_only() -> None:
    loaded = parse_config('[guests."db*"]\nmode = "atuo"\n[guests.web]\nmode = "advise"\n', FILE)
    assert loaded.rule("db1").settings.mode is Mode.MANUAL
    assert str(loaded.rule("db1").error).startswith("vmplace.toml:2:1: ")
    assert loaded.rule("web").settings.mode is Mode.ADVISE
    assert loaded.rule("other").settings.mode is Mode.AUTO


def test_what_changed_of_flavours_is_reported_and_followed() -> None:
    before = parse_config('[flavours.a]\nmode = "advise"\n[flavours.b]\n', FILE)
    now = parse_config('[flavours.b]\n[flavours.a]\nmode = "auto"\n', FILE)
    loaded, changes = reloaded(before, now)
    assert loaded.flavour_rule("a").policy.mode == "auto"
    assert changes == ("flavours.'a'.mode: advise -> auto", "the order of flavours is now 'b', 'a'")


def test_the_first_rule_that_matches_wins() -> None:
    loaded = parse_config('[guests.db1]\nmode = "manual"\n[guests."*"]\nallowed_nids = [2, 0]\n', FILE)
    assert loaded.rule("db1").settings.mode is Mode.MANUAL
    assert loaded.rule("db2").settings.allowed_nids == (0, 2)


def test_a_guest_may_be_protected() -> None:
    loaded = parse_config('[guests.db1]\npriority = "protected"\n[guests."*"]\n', FILE)
    assert [loaded.rule(name).settings.protected for name in ("db1", "web1")] == [True, False]


@pytest.mark.parametrize("name", ["home", "nodes", "host", "joint"])
def test_a_policy_of_earlier_versions_is_reported_with_the_cure(name: str) -> None:
    with pytest.raises(ConfigError, match=f"policy '{name}' is gone: auto decides") as reported:
        parse_config(f'policy = "{name}"\n', FILE)
    assert reported.value.hint == "remove the line" and str(reported.value).startswith(f"{FILE}:1:1")


def test_a_key_of_earlier_versions_is_reported_with_the_cure() -> None:
    reported = parse_config('[guests.db1]\nproximity = "tuned"\n', FILE).rule("db1").error
    assert reported and "proximity is gone" in str(reported) and reported.hint == "remove the line"


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "absent.toml")


def test_the_shipped_sample_is_valid_and_says_the_defaults() -> None:
    text = re.sub("^#(?=[a-z])", "", SAMPLE.read_text(), flags=re.MULTILINE)
    assert text.count("\n") == SAMPLE.read_text().count("\n") and "\nwindow_ms = " in text
    assert parse_config(text, FILE).config == parse_config("", FILE).config


def test_the_shipped_sample_names_each_key() -> None:
    """What has no default to show, such as a path of the journal, is there as an example."""
    text = SAMPLE.read_text()
    config = parse_config("", FILE).config
    tables = [config, *(one for name in config.__struct_fields__ if is_table(one := getattr(config, name)))]
    keys = [
        name for table in tables for name in table.__struct_fields__ if not is_table(getattr(table, name))
    ]
    assert len(keys) > 20
    assert [key for key in keys if not re.search(rf"^#? *{key} = |^# *\[{key}[].]", text, re.MULTILINE)] == []


def is_table(value: object) -> bool:
    return isinstance(value, msgspec.Struct) and not isinstance(value, GuestPolicy)


def test_a_file_that_is_too_large_is_answered_with_where_all_keys_are(tmp_path: Path) -> None:
    (tmp_path / "vmplace.toml").write_text("#" * (MOST_BYTES + 1))
    with pytest.raises(ConfigError) as reported:
        read_config(tmp_path / "vmplace.toml")
    assert str(SAMPLE) in str(reported.value.hint) and SAMPLE.is_file()


def test_a_longest_rest_of_any_length_is_distinguished_from_none_at_all() -> None:
    assert parse_config("", FILE).config.longest_rest_ms is None
    assert parse_config("longest_rest_ms = 2000\n", FILE).config.longest_rest_ms == 2000
    with pytest.raises(ConfigError, match="longest_rest_ms: ") as reported:
        parse_config("longest_rest_ms = 600001\n", FILE)
    assert "up to 600000" in str(reported.value.hint)


def test_places_survive_strings_comments_and_nesting() -> None:
    text = '''a = """ # no = comment
b = 1 """ # c = 2
d = [ "x]", # ]
      { e = 1 } ]
"f.g" = 1979-05-27 07:32:00
[h . i]
j = 'k = 1'
[[l]]
m = true
'''
    places = key_places(text)
    assert places["d", 1, "e"] == (4, 9)
    assert places[("f.g",)] == (5, 1)
    assert places["h", "i", "j"] == (7, 1)
    assert places["l", 0, "m"] == (9, 1)
    assert ("b",) not in places


RULES = """
[guests."db*"]
origin = "libvirt"
mode = "manual"
[guests."*"]
priority = "protected"
"""


@pytest.mark.parametrize(
    ("name", "origin", "mode", "protected"),
    [
        ("db1", "libvirt", Mode.MANUAL, False),
        ("db1", "kvm", Mode.AUTO, False),
        ("web", "libvirt", Mode.AUTO, True),
        ("web", "kvm", Mode.AUTO, False),
    ],
)
def test_a_guest_that_names_itself_gets_no_rule_of_libvirts_guests_and_nobodys_way_made(
    name: str, origin: str, mode: Mode, protected: bool
):
    settings = parse_config(RULES, FILE).rule(name, origin).settings
    assert (settings.mode, settings.protected) == (mode, protected)


def test_a_section_may_protect_guests_that_name_themselves_by_its_word():
    text = '[guests."*"]\norigin = "kvm"\npriority = "protected"\n'
    assert parse_config(text, FILE).rule("web", "kvm").settings.protected
