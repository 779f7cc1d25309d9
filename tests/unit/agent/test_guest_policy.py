"""The words of a policy mean the same in vmplace.toml, in domain XML and in extra specs."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lxml import etree

from vmplace.agent.config import parse_config
from vmplace.agent.decided import BUILT_IN, XML, decided
from vmplace.agent.guest_policy import DEFAULTS, KEYS, GuestPolicy, settings_of
from vmplace.agent.policy_reference import EXAMPLES, PAGE, SCHEMA, page, schema
from vmplace.agent.policy_text import stated_policies, text_of
from vmplace.errors import ConfigError
from vmplace.policy.plan import GuestSettings, Mode
from vmplace.topology.domain_policy import NAMESPACE, NOVA, domain_policy

FILE = Path("vmplace.toml")
RNG = etree.RelaxNG(etree.parse(SCHEMA))

WHOLE = {
    "mode": "advise",
    "priority": "protected",
    "allowed_nids": "0-2,5",
    "preferred_nids": "1,5",
    "techniques": "move, replicate vcpus",
    "replica_mb": "512",
    "move_mb_per_s": "64",
    "huge_pages": "leave",
    "schedule": "Mon-Fri 22:00-06:00; Sat,Sun 00:00-24:00",
}
WHOLE_TOML = """
mode = "advise"
priority = "protected"
allowed_nids = [0, 1, 2, 5]
preferred_nids = [1, 5]
techniques = ["move", "replicate", "vcpus"]
replica_mb = 512
move_mb_per_s = 64
huge_pages = "leave"
schedule = ["Mon-Fri 22:00-06:00", "Sat,Sun 00:00-24:00"]
"""


def policy_xml(words: dict[str, str]) -> str:
    lines = "".join(f"\n  <vmplace:{key}>{text}</vmplace:{key}>" for key, text in words.items())
    return f'<vmplace:policy xmlns:vmplace="{NAMESPACE}">{lines}\n</vmplace:policy>'


def domain_xml(words: dict[str, str] | None, flavour: dict[str, str] | None = None, more: str = "") -> str:
    specs = "".join(
        f'<nova:extraSpec name="vmplace:{key}">{text}</nova:extraSpec>'
        for key, text in (flavour or {}).items()
    )
    nova = (
        f'<nova:instance xmlns:nova="{NOVA}"><nova:flavor name="m1"><nova:extraSpecs>{specs}'
        '<nova:extraSpec name="hw:cpu_policy">shared</nova:extraSpec></nova:extraSpecs></nova:flavor>'
        "</nova:instance>"
    )
    policy = "" if words is None else policy_xml(words)
    return f"<domain><name>db1</name><metadata>{policy}{nova}</metadata>{more}</domain>"


def said_by_xml(words: dict[str, str]) -> GuestPolicy:
    return stated_policies(domain_policy(domain_xml(words)), "domain db1").xml


def test_xml_flavour_and_toml_mean_the_same():
    toml = parse_config(f'[guests."db*"]{WHOLE_TOML}', FILE).rule("db1").policy
    stated = stated_policies(domain_policy(domain_xml(WHOLE, WHOLE)), "domain db1")
    assert stated.xml == stated.nova == toml
    assert set(toml.stated()) == set(KEYS)


def test_every_key_of_the_model_reaches_the_settings():
    """A key that changes no setting would be one without effect."""
    for key in KEYS:
        changed = {key: WHOLE[key]}
        assert settings_of(said_by_xml(changed)) != settings_of(DEFAULTS), key


def test_the_defaults_of_the_model_are_those_of_the_settings():
    assert settings_of(GuestPolicy()) == GuestSettings()


def test_a_key_of_earlier_versions_is_named_and_left_out():
    (note,) = stated_policies(domain_policy(domain_xml({"proximity": "tuned"})), "domain db1").ignored
    assert "<vmplace:proximity> is gone" in note and "take it out" in note


WRONG = [
    ({"mode": "atuo"}, 2, "invalid enum value 'atuo'", '"auto"'),
    ({"mode": ""}, 2, "invalid enum value", '"manual"'),
    ({"priority": "high", "mode": "auto"}, 2, "'high'", '"protected"'),
    ({"mode": "auto", "allowed_nids": "0-x"}, 3, "'0-x' is no node", "list of nodes"),
    ({"allowed_nids": "[0, 1]"}, 2, "'[0' is no node", "such as 0,1 or 0-1"),
    ({"allowed_nids": "0 1"}, 2, "'0 1' is no node", "such as 0,1 or 0-1"),
    ({"preferred_nids": "-1"}, 2, "'-1' is no node", "such as 0,1 or 0-1"),
    ({"preferred_nids": "^1"}, 2, "names no node", "such as 0,1 or 0-1"),
    ({"techniques": '["move"]'}, 2, "techniques", "such as move replicate"),
    ({"schedule": "Mon 01:00-02:00, Tue 01:00-02:00"}, 2, "no time of the week", 'with ";" between them'),
    ({"replica_mb": "9" * 20}, 2, "has more than 12 digits", "MB"),
    ({"move_mb_per_s": "0.5"}, 2, "'0.5' is no whole number", "1 to 100000"),
    ({"allowed_nids": ""}, 2, "allowed_nids", "list of nodes"),
    ({"allowed_nids": "0-4294967295"}, 2, "allowed_nids", "list of nodes"),
    ({"allowed_nids": "1024"}, 2, "allowed_nids", "list of nodes"),
    ({"techniques": "move teleport"}, 2, "'teleport'", '"replicate"'),
    ({"techniques": "interleave"}, 2, "needs", 'add "move"'),
    ({"replica_mb": "-1"}, 2, "'-1' is no whole number", "MB"),
    ({"replica_mb": "1_000"}, 2, "replica_mb", "MB"),
    ({"move_mb_per_s": "0"}, 2, ">= 1", "1 to 100000"),
    ({"move_mb_per_s": "9" * 5000}, 2, "longer than", "form"),
    ({"schedule": "Mon 25:00-26:00"}, 2, "no time of the day", "Mon-Fri"),
    ({"schedule": "someday"}, 2, "no time of the week", "Mon-Fri"),
    ({"schedule": ";"}, 2, "schedule", "Mon-Fri"),
    ({"allowed_nids": "0", "preferred_nids": "1"}, 3, "not among allowed_nids", "add 1 to allowed_nids"),
    ({"moed": "auto"}, 2, "<vmplace:moed> is not known", "did you mean <vmplace:mode>?"),
    ({"allowed-nids": "1"}, 2, "not known", "<vmplace:allowed_nids>"),
]


@pytest.mark.parametrize(("words", "line", "message", "cure"), WRONG, ids=[str(w[0])[:40] for w in WRONG])
def test_a_mistake_in_xml_is_reported_with_line_cause_and_cure(words, line, message, cure):
    with pytest.raises(ConfigError) as caught:
        said_by_xml(words)
    reported = f"{caught.value} {caught.value.hint}"
    assert message in reported and cure in reported and "[0" not in str(caught.value.hint)
    assert f":{line}: " in reported or f"line {line} " in reported


NO_POLICY = [
    ("<domain>\n<name></domain>", 2, "mismatched tag"),
    ("", 1, "no element found"),
    ('<!DOCTYPE d [<!ENTITY a "aa">]><domain>&a;</domain>', 1, "document type"),
    ("<domain>&lol;</domain>", 1, "undefined entity"),
    ("<a>" * 65 + "</a>" * 65, 1, "deeper than 64"),
    (f"<domain>{'x' * (1 << 20)}</domain>", 1, "more than 1048576"),
    ("<domain>\udcff</domain>", 1, "UTF-8"),
    ("<domain>\0</domain>", 1, "no XML"),
    (domain_xml({"mode": "<b>auto</b>"}), 2, "inside of 'mode'"),
    (f'<policy xmlns="{NAMESPACE}" mode="auto"/>', 1, "attributes"),
    (f'<p:policy xmlns:p="{NAMESPACE}"><mode>auto</mode></p:policy>', 1, "namespace"),
    (f'<policy xmlns="{NAMESPACE}"><mode>auto</mode>\n<mode>auto</mode></policy>', 2, "twice"),
    (f'<policy xmlns="{NAMESPACE}">{"<a/>" * 300}</policy>', 1, ""),
    (
        f'<domain><metadata><a:policy xmlns:a="{NAMESPACE}"/>\n'
        f'<a:policy xmlns:a="{NAMESPACE}"/></metadata></domain>',
        2,
        "two policies",
    ),
    ('<domain><numatune><memory mode="strict" nodeset="0-"/></numatune></domain>', 1, "numatune"),
    (f'<policy xmlns="{NAMESPACE}">manual</policy>', 1, "loose text 'manual'"),
    (f'<policy xmlns="{NAMESPACE}">\n\n  mode=manual\n\n</policy>', 3, "loose text 'mode=manual'"),
    (f'<policy xmlns="{NAMESPACE}">\n<mode>auto</mode>\nmanual</policy>', 3, "loose text 'manual'"),
    (f'<policy xmlns="{NAMESPACE}"><![CDATA[manual]]></policy>', 1, "loose text 'manual'"),
    (f'<policy xmlns="{NAMESPACE}">&#160;</policy>', 1, "loose text '\\xa0'"),
    (f'<policy xmlns="{NAMESPACE}">{"m" * 9000}\n</policy>', 1, "loose text 'mm"),
]


@pytest.mark.parametrize(("xml", "line", "message"), NO_POLICY, ids=[one[2] for one in NO_POLICY])
def test_xml_that_is_no_policy_is_reported_with_its_line(xml, line, message):
    said = domain_policy(xml)
    assert said.error and message in said.error and f"line {line} " in said.error


STRAY = [
    '<vmplace:policy xmlns:vmplace="urn:vmplace:policy">{}</vmplace:policy>',
    '<vmplace:policy xmlns:vmplace="urn:vmplace:policy:2">{}</vmplace:policy>',
    '<vmplace:policy xmlns:vmplace="urn:vmplcae:policy:1">{}</vmplace:policy>',
    '<p:policy xmlns:p="URN:VMPlace:policy:1">{}</p:policy>',
    '<policy xmlns="urn:vmplace:1">{}</policy>',
    f'<vmplace:polcy xmlns:vmplace="{NAMESPACE}">{{}}</vmplace:polcy>',
    f'<vmplace:mode xmlns:vmplace="{NAMESPACE}">manual</vmplace:mode>',
]
"""Elements of <metadata> that somebody meant for a policy."""
OF_OTHERS = [
    '<policy xmlns="https://example.org/backup/1"><mode>auto</mode>twice a day</policy>',
    '<p:policy xmlns:p="urn:backup:policy:1"/>',
    '<vmplace:note xmlns:vmplace="urn:example:1">policy</vmplace:note>',
    '<vmplace:placement xmlns:vmplace="urn:vmplace:placement:2">AAAA</vmplace:placement>',
    f'<b:box xmlns:b="urn:b"><vmplace:policy xmlns:vmplace="{NAMESPACE}">manual</vmplace:policy></b:box>',
]


def beside_a_flavour(element: str, more: str = "") -> str:
    """Return a domain whose flavour says auto, with an element more in its metadata."""
    written = element.replace("{}", "<vmplace:mode>manual</vmplace:mode>" if "<vmplace:" in element else "")
    return domain_xml(None, {"mode": "auto"}, more).replace("<metadata>", f"<metadata>\n{written}")


@pytest.mark.parametrize("element", STRAY)
def test_a_policy_of_another_namespace_leaves_the_guest_alone(element: str):
    what = decided(parse_config("", FILE), "db1", domain_policy(beside_a_flavour(element)), (0, 1))
    assert what.settings.mode is Mode.MANUAL
    assert "line 2" in str(what.problem) and f'xmlns:vmplace="{NAMESPACE}"' in str(what.problem)


@pytest.mark.parametrize("element", OF_OTHERS)
def test_elements_of_other_products_are_none_of_ours(element: str):
    what = decided(parse_config("", FILE), "db1", domain_policy(beside_a_flavour(element)), (0, 1))
    assert what.settings.mode is Mode.AUTO and what.problem is None and what.notes == ()


@pytest.mark.parametrize("element", ["<policy>manual</policy>", STRAY[0].format("")])
def test_a_document_that_is_called_a_policy_is_one_of_ours_or_a_mistake(element: str):
    assert f'xmlns:vmplace="{NAMESPACE}"' in str(domain_policy(element).error)


def test_words_of_later_versions_are_reported_and_ignored():
    words = {"mode": "advise", "colour_of_pages": "blue"}
    what = decided(parse_config("", FILE), "db1", domain_policy(domain_xml(words)), (0, 1))
    assert what.settings.mode is Mode.ADVISE and what.problem is None
    assert "colour_of_pages" in what.notes[0] and "ignored" in what.notes[0]


PRECEDENCE = [
    ({"mode": "advise"}, {"mode": "manual"}, "advise", XML),
    ({}, {"mode": "advise"}, "advise", "flavour m1 (Nova extra specs)"),
    (None, None, "manual", 'vmplace.toml, [guests."db*"]'),
]


@pytest.mark.parametrize(("xml", "flavour", "mode", "origin"), PRECEDENCE)
def test_the_first_that_says_something_counts_key_by_key(xml, flavour, mode, origin):
    text = '[defaults]\nmode = "advise"\nreplica_mb = 5\n[guests."db*"]\nmode = "manual"\n'
    what = decided(parse_config(text, FILE), "db1", domain_policy(domain_xml(xml, flavour)), (0, 1))
    assert what.policy.mode == what.settings.mode.value == mode
    assert what.origins["mode"] == origin
    assert what.settings.replica_bytes == 5_000_000
    assert what.origins["replica_mb"] == "vmplace.toml, [defaults]"
    assert what.origins["huge_pages"] == BUILT_IN


NOVA_31 = domain_policy(
    f'<domain><metadata><nova:instance xmlns:nova="{NOVA}"><nova:name>web</nova:name>'
    '<nova:flavor name="m1.large"><nova:memory>512</nova:memory></nova:flavor></nova:instance>'
    "</metadata></domain>"
)
"""What Nova writes of a guest before release 32: its flavour's name, and no extra specs."""
M1 = '[flavours."m1.*"]\nmode = "advise"\nmove_mb_per_s = 5\n'
BY_FLAVOUR = [
    ("", "advise", 'vmplace.toml, [flavours."m1.*"]'),
    ('[defaults]\nmode = "manual"\n', "advise", 'vmplace.toml, [flavours."m1.*"]'),
    ('[flavours."m1.large"]\nmode = "auto"\n', "auto", 'vmplace.toml, [flavours."m1.large"]'),
    ('[guests."db*"]\nmode = "manual"\n', "manual", 'vmplace.toml, [guests."db*"]'),
    ('[guests."db*"]\nreplica_mb = 5\n', "advise", 'vmplace.toml, [flavours."m1.*"]'),
]


@pytest.mark.parametrize(("before", "mode", "origin"), BY_FLAVOUR)
def test_a_flavours_section_counts_between_a_guests_section_and_the_defaults(before, mode, origin):
    what = decided(parse_config(before + M1, FILE), "db1", NOVA_31, (0, 1))
    assert what.policy.mode == what.settings.mode.value == mode
    assert what.origins["mode"] == origin
    assert what.settings.move_bytes_per_s == (None if "large" in origin else 5e6)


@pytest.mark.parametrize(("xml", "specs"), [({"mode": "auto"}, {}), (None, {"mode": "auto"})])
def test_xml_and_extra_specs_count_before_a_flavours_section(xml, specs):
    text = '[flavours."m1"]\nmode = "advise"\nreplica_mb = 5\n'
    what = decided(parse_config(text, FILE), "db1", domain_policy(domain_xml(xml, specs)), (0, 1))
    assert what.settings.mode is Mode.AUTO and what.settings.replica_bytes == 5_000_000


@pytest.mark.parametrize("said", [None, domain_policy("<domain/>")], ids=["no XML", "no flavour"])
def test_a_guest_without_a_flavour_is_of_no_flavours_section(said):
    loaded = parse_config('[flavours."*"]\nmode = "manual"\n', FILE)
    assert decided(loaded, "db1", said, (0, 1)).settings.mode is Mode.AUTO


WRONG_FLAVOURS = [
    ('mode = "atuo"', "vmplace.toml:2:1: mode: "),
    ("mdoe = 1", "vmplace.toml:2:1: unknown key 'mdoe'"),
    ('origin = "kvm"', "vmplace.toml:2:1: unknown key 'origin'"),
    ('techniques = ["interleave"]', 'vmplace.toml:2:1: techniques: "interleave" needs "move"'),
    ("allowed_nids = [7]", "nodes [7], which are not there"),
]


@pytest.mark.parametrize(("line", "why"), WRONG_FLAVOURS)
def test_a_wrong_flavours_section_leaves_only_its_guests_alone(line, why):
    loaded = parse_config(f'[flavours."m1.*"]\n{line}\n', FILE)
    what = decided(loaded, "db1", NOVA_31, (0, 1))
    assert what.settings.mode is Mode.MANUAL and why in str(what.problem)
    other = decided(loaded, "db1", domain_policy(domain_xml({})), (0, 1))
    assert other.problem is None and other.settings.mode is Mode.AUTO


LEFT_ALONE = [
    (domain_xml({"mode": "atuo"}), "", "atuo"),
    (domain_xml({}, {"mode": "atuo"}), "", "atuo"),
    ("<domain", "", "no XML"),
    (domain_xml({}).replace("</vmplace:policy>", "manual</vmplace:policy>"), "", "<vmplace:mode>manual</"),
    (domain_xml({"preferred_nids": "1"}), "allowed_nids = [0]", "not among allowed_nids"),
    (domain_xml({"allowed_nids": "7"}), "", "nodes [7], which are not there"),
    (
        domain_xml({"allowed_nids": "1"}, more='<numatune><memory mode="strict" nodeset="0"/></numatune>'),
        "",
        "no node in common",
    ),
]


@pytest.mark.parametrize(("xml", "rule", "why"), LEFT_ALONE)
def test_a_bad_policy_leaves_the_guest_alone_and_says_so(xml, rule, why):
    loaded = parse_config(f'[guests."*"]\n{rule}\n', FILE)
    what = decided(loaded, "db1", domain_policy(xml), (0, 1))
    assert what.settings.mode is Mode.MANUAL and why in str(what.problem)


@pytest.mark.parametrize("mode", ["strict", "restrictive"])
def test_numatune_limits_every_policy(mode):
    tune = f'<numatune><memory mode="{mode}" nodeset="1"/></numatune>'
    what = decided(parse_config("", FILE), "db1", domain_policy(domain_xml({}, more=tune)), (0, 1))
    assert what.settings.allowed_nids == (1,)
    assert any("policy apply --config" in note for note in what.notes) == (mode == "strict")


def test_numatune_that_only_prefers_limits_nothing():
    tune = '<numatune><memory mode="preferred" nodeset="1"/></numatune>'
    what = decided(parse_config("", FILE), "db1", domain_policy(domain_xml({}, more=tune)), (0, 1))
    assert what.settings.allowed_nids is None and what.notes == ()


def test_a_mistake_in_the_defaults_stops_the_start():
    with pytest.raises(ConfigError) as caught:
        parse_config('[defaults]\ntechniques = ["interleave"]\n', FILE)
    assert caught.value.place == "vmplace.toml:2:1"


def test_page_and_schema_are_those_of_the_model():
    assert set(EXAMPLES) == set(KEYS)
    assert PAGE.read_text() == page(), "python -m vmplace.agent.policy_reference"
    assert SCHEMA.read_text() == schema(), "python -m vmplace.agent.policy_reference"


@pytest.mark.parametrize("key", KEYS)
def test_the_examples_of_the_page_are_valid(key):
    words = {key: text_of(EXAMPLES[key][0])}
    assert said_by_xml(words).stated()
    assert RNG.validate(etree.fromstring(policy_xml(words)))


NO_SCHEMA = {"needs", "not among allowed_nids", "names no node"}


@pytest.mark.parametrize("words", [w[0] for w in WRONG if w[2] not in NO_SCHEMA])
def test_the_schema_refuses_what_we_refuse(words):
    """Not all: what does not go together, and what only looks misspelt, no schema can say."""
    first = next(iter(words))
    known = {key: text for key, text in words.items() if key in KEYS}
    if first in KEYS and "25:00" not in str(words) and "0-4294967295" not in str(words):
        accepted = RNG.validate(etree.fromstring(policy_xml(known)))
        assert not accepted or known == {"allowed_nids": "1024"}


TEXTS = st.one_of(
    st.sampled_from(sorted({*WHOLE.values(), "tuned", "move", "0", "1", "0.5", "7-3", "Mon 00:00-24:00"})),
    st.text("0123456789-,.;: MonFriSatSun", max_size=24),
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), TEXTS, max_size=4))
@example({"allowed_nids": "0,"})
@example({"preferred_nids": ",0"})
def test_what_we_accept_the_schema_accepts(words):
    said = domain_policy(domain_xml(words))
    try:
        stated_policies(said, "domain db1")
    except ConfigError:
        return
    assert RNG.validate(etree.fromstring(policy_xml(words))), RNG.error_log
