"""A summary that is handed over in a domain's XML is read beside the policy, whatever it is."""

import pytest

from vmplace.topology.domain_policy import MAX_PLACEMENT, NAMESPACE, PLACEMENT, domain_policy

POLICY = f"<v:policy xmlns:v='{NAMESPACE}'><v:mode>advise</v:mode></v:policy>"


def domain(placement: str, place: str = "metadata") -> str:
    element = f"<p:placement xmlns:p='{PLACEMENT}'>{placement}</p:placement>"
    if place != "metadata":
        return f"<domain><metadata>{POLICY}</metadata><{place}>{element}</{place}></domain>"
    return f"<domain><metadata>{POLICY}{element}</metadata></domain>"


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_a_summary_is_read_and_never_spoils_the_policy(text: str, told: str):
    said = domain_policy(domain(text))
    assert said.error is None and [word.text for word in said.words] == ["advise"]
    assert said.placement == told


def test_elsewhere_it_is_none():
    assert domain_policy(domain("AAAA", "description")).placement == ""
    assert domain_policy(f"<placement xmlns='{PLACEMENT}'>AAAA</placement>").placement == ""


def test_another_summary_is_no_other_policy():
    assert domain_policy(domain("AAAA")) == domain_policy(domain("BBBB"))
