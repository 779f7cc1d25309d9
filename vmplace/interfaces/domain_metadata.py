"""Read and change what a domain's XML says of vmplace, through libvirt's API; for commands alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from vmplace.errors import GuestGoneError, VmplaceError
from vmplace.interfaces.libvirt_hook import relaxed
from vmplace.interfaces.options import NothingError
from vmplace.topology.domain_policy import NAMESPACE, PREFIX, DomainPolicy, Word, domain_policy
from vmplace.topology.guests_libvirt import Answer, asked


@dataclass(frozen=True)
class DomainXml:
    """One domain: its XML as it runs (empty: it does not), and as it starts next (empty: never again)."""

    name: str
    live: str
    config: str

    def said(self, *, config: bool = False) -> DomainPolicy:
        """Return what its XML says: the running one's, unless ``config`` or it does not run."""
        return domain_policy(self.config if config or not self.live else self.live)

    def where(self, *, live: bool, config: bool) -> str:
        """Return which of the two a change is for, in libvirt_worker.py's word; raises VmplaceError."""
        if not live and not config:
            live, config = bool(self.live), bool(self.config)
        if live and not self.live:
            raise VmplaceError(f"{self.name} does not run", hint="leave --live out")
        if config and not self.config:
            raise VmplaceError(f"{self.name} is transient: it has no next start", hint="leave --config out")
        return "both" if live and config else "live" if live else "config"


def read_domain(uri: str, name: str) -> DomainXml:
    """Return the domain of that name; raises NothingError without one, VmplaceError while libvirt is away."""
    answer = _asked(uri, "domain", name)
    return DomainXml(answer.domains[0][1], answer.domains[0][2], answer.text)


def write_words(uri: str, domain: DomainXml, words: Mapping[str, str] | None, where: str) -> None:
    """Set the domain's policy element to these words, or take it out (None)."""
    text = "" if words is None else policy_element(words)
    _asked(uri, "set", domain.name, where, NAMESPACE, PREFIX, text=text)


def policy_element(words: Mapping[str, str]) -> str:
    """Return the element as libvirt takes it: the namespace is its own argument there."""
    return "<policy>" + "".join(f"<{key}>{escape(text)}</{key}>" for key, text in words.items()) + "</policy>"


def relax_config(uri: str, name: str, *, is_dry: bool) -> bool:
    """Make strict numatune restrictive for the next start; return whether there was anything to change."""
    try:
        changed = relaxed(_asked(uri, "secure", name).text.encode())
    except ValueError as err:
        raise VmplaceError(
            f"the XML of {name} cannot be changed: {err}",
            hint=f'by hand: `virsh edit {name}`, and mode="restrictive" in <numatune>',
        ) from err
    if changed is None:
        return False
    if not is_dry:
        _asked(uri, "define", name, text=changed.decode())
    return True


def words_of(words: tuple[Word, ...]) -> dict[str, str]:
    """Return words by key."""
    return {word.key: word.text for word in words}


def _asked(uri: str, question: str, *words: str, text: str = "") -> Answer:
    try:
        return asked(uri, question, *words, text=text)
    except GuestGoneError as err:
        raise NothingError(f"no domain {words[0]!r}: {err}", hint="`virsh list --all` lists them") from err
