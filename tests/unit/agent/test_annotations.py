"""Annotations of an orchestrator are policies: of that process alone, below XML, above vmplace.toml."""

from vmplace.agent.config import LoadedConfig, parse_config
from vmplace.agent.decided import ANNOTATION, decided
from vmplace.policy.plan import Mode
from vmplace.topology.domain_policy import DomainPolicy, Word

NIDS = (0, 1)


def said(**words: str) -> DomainPolicy:
    return DomainPolicy(annotations=tuple(Word(key, text, 1) for key, text in words.items()))


def configured(text: str, tmp_path) -> LoadedConfig:
    return parse_config(text, tmp_path / "vmplace.toml")


def test_an_annotation_counts_and_is_named(tmp_path):
    loaded = configured('[guests."*"]\nmode = "advise"\n', tmp_path)
    holds = decided(loaded, "default_vm1", said(mode="auto"), NIDS, "kvm")
    assert holds.settings.mode is Mode.AUTO and holds.origins["mode"] == ANNOTATION


def test_xml_counts_more(tmp_path):
    both = DomainPolicy(words=(Word("mode", "advise", 1),), annotations=(Word("mode", "auto", 1),))
    assert decided(configured("", tmp_path), "vm1", both, NIDS).settings.mode is Mode.ADVISE


def test_a_tenant_cannot_make_others_way(tmp_path):
    """Whoever may annotate an instance is no operator."""
    holds = decided(configured("", tmp_path), "default_vm1", said(protected="true", mode="auto"), NIDS, "kvm")
    assert not holds.settings.protected


def test_a_mistake_leaves_the_guest_alone_and_names_the_annotation(tmp_path):
    holds = decided(configured("", tmp_path), "default_vm1", said(mdoe="auto"), NIDS, "kvm")
    assert holds.settings.mode is Mode.MANUAL
    assert "annotation vmplace.io/mdoe" in str(holds.problem) and "vmplace.io/mode" in str(holds.problem)
