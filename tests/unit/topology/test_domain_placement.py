"""A summary that is handed over in a domain's XML is read beside the policy, whatever it is."""

import pytest

from vmplace.topology import domain_policy as domain_policy_module
from vmplace.topology.domain_policy import MAX_PLACEMENT, NAMESPACE, PLACEMENT, domain_policy

POLICY = f"<v:policy xmlns:v='{NAMESPACE}'><v:mode>advise</v:mode></v:policy>"


def domain(placement: str, place: str = "metadata") -> str:
    element = f"<p:placement xmlns:p='{PLACEMENT}'>{placement}</p:placement>"
    if place != "metadata":
        return f"<domain><metadata>{POLICY}</metadata><{place}>{element}</{place}></domain>"
    return f"<domain><metadata>{POLICY}{element}</metadata></domain>"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("AAAA", "AAAA"),
        ("\n AAAA\nBBBB \n", "AAAABBBB"),
        ("", ""),
        ("A" * MAX_PLACEMENT, "A" * MAX_PLACEMENT),
        ("A" * (MAX_PLACEMENT + 1), ""),
        ("<x><policy/>BBBB</x>AAAA", "AAAA"),
    ],
    ids=["short", "lines", "empty", "longest", "too long", "elements"],
)
def test_a_summary_is_read_and_never_spoils_the_policy(text: str, reported: str):
    said = domain_policy(domain(text))
    assert said.error is None and [word.text for word in said.words] == ["advise"]
    assert said.placement == reported


def test_elsewhere_it_is_none():
    assert domain_policy(domain("AAAA", "description")).placement == ""
    assert domain_policy(f"<placement xmlns='{PLACEMENT}'>AAAA</placement>").placement == ""


def test_another_summary_is_no_other_policy():
    assert domain_policy(domain("AAAA")) == domain_policy(domain("BBBB"))


def test_a_policy_of_empty_lines_is_read_in_few_pieces(monkeypatch: pytest.MonkeyPatch):
    pieces: list[str] = []
    read = domain_policy_module._Reader._data

    def counted(reader: domain_policy_module._Reader, text: str) -> None:
        pieces.append(text)
        read(reader, text)

    monkeypatch.setattr(domain_policy_module._Reader, "_data", counted)
    lines = "\n" * 4000
    mode = f"<v:policy xmlns:v='{NAMESPACE}'><v:mode>{lines}auto</v:mode></v:policy>"
    said = domain_policy(f"<domain><metadata>{mode}</metadata></domain>")
    assert [word.text for word in said.words] == ["auto"]
    # What is done for each piece is not done for each line.
    assert len(pieces) <= 2
