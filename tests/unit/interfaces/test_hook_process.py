"""The hook holds its limit by what it calls, and its real process survives hostile documents."""

import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.interfaces.test_libvirt_hook import is_rewritten_alone, mutated, run, seeds, strict_xml
from vmplace.interfaces import libvirt_hook

DOCUMENTS = 200
ENCODINGS = ("utf-8-sig", "utf-16", "utf-32", "latin-1", "cp037", "shift_jis")
WORDS = ["db1", "migrate", "begin", "-"]


class Kernel:
    """Stands for the module that the hook makes sockets with: notes each call; has no others."""

    AF_UNIX, SOCK_DGRAM = socket.AF_UNIX, socket.SOCK_DGRAM
    SOCK_NONBLOCK = socket.SOCK_NONBLOCK

    def __init__(self, answer: OSError | None) -> None:
        self._answer = answer
        self.calls: list[tuple[Any, ...]] = []

    def socket(self, *kind: int) -> "Kernel":
        """Note what is made."""
        self.calls.append(("socket", *kind))
        return self

    def sendto(self, data: bytes, path: str) -> int:
        """Note what is sent where, and answer as an agent in that state."""
        self.calls.append(("sendto", path))
        if self._answer:
            raise self._answer
        return len(data)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Return what has the hook read a document in this process, and print to nowhere."""
    monkeypatch.setenv("VMPLACE_HOOK_SOCKET", str(tmp_path / "s"))
    monkeypatch.setattr(libvirt_hook, "_print", lambda _data: None)
    yield lambda data: monkeypatch.setattr(libvirt_hook, "_read", lambda: data)


STATES = {
    "there": None,
    "slow or hung": BlockingIOError(11, "full"),
    "away": FileNotFoundError(2, "none"),
    "gone": ConnectionRefusedError(111, "refused"),
}


@pytest.mark.parametrize("operation", ["migrate", "restore", "start", "reconnect", "stopped"])
@pytest.mark.parametrize("state", STATES)
def test_in_any_state_of_the_agent_it_sends_once_and_does_not_wait(
    given: Callable[[bytes], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    state: str,
    operation: str,
):
    given(strict_xml({}).encode())
    monkeypatch.setattr(libvirt_hook, "_socket", kernel := Kernel(STATES[state]))
    libvirt_hook.main(["db1", operation, "begin", "-"])
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    assert kernel.calls == [("socket", socket.AF_UNIX, kind), ("sendto", str(tmp_path / "s"))]


def test_a_full_socket_gives_the_word_back_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A socket that blocks would wait here until the test's own end."""
    monkeypatch.setenv("VMPLACE_HOOK_SOCKET", str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "s"))
        with pytest.raises(BlockingIOError):
            while True:
                libvirt_hook._tell(WORDS, "")
        # An agent that is slow takes what there is, one by one, and one more finds room.
        assert agent.recv(8192).startswith(b"1\0migrate\0begin")
        libvirt_hook._tell(WORDS, "")
        with pytest.raises(BlockingIOError):
            libvirt_hook._tell(WORDS, "")


def test_its_limit_is_set_before_it_reads():
    """The parts are called in the order in which they stand."""
    text = Path(libvirt_hook.__file__).read_text().partition('if __name__ == "__main__":')[2]
    at = [text.index(call) for call in ("SIGALRM, lambda", "setitimer(", "main(sys.argv", "os._exit(0)\n")]
    assert at == sorted(at) and "LIMIT_S)" in text
    assert 0 < libvirt_hook.LIMIT_S < 0.1


ODD = [
    "<!-- <memory mode='strict'/> \xe4\u20ac\U0001f600 -->", "<![CDATA[<memory mode='strict'>&]]>",
    "<?x mode='strict'?>", "&#60;memory/&gt;", "<a mode='strict' b='>&lt;/numatune>'/>", "\r\n\t",
    "<q:memory xmlns:q='urn:x' mode='strict'/>", "<b>" * 40 + "</b>" * 40, "\xa0" * 5000,
]  # fmt: skip
"""Any of them may stand between elements of a domain; none is an element of libvirt's."""
PLACE = re.compile(r"(?=<uuid>|<numatune>|<memory|<memnode|</numatune>|</domain>)")


def odd(rng: random.Random, data: bytes) -> bytes:
    """Return a document that is still a domain to be rewritten, however it is written."""
    return PLACE.sub(lambda _: rng.choice(["", *ODD]), data.decode()).encode()


def hostile(rng: random.Random, number: int) -> bytes:
    """Return a document: of eight, one is too large for the hook, two are of another encoding, two odd."""
    whole = odd(rng, rng.choice(seeds()[::2]))
    if number % 4 == 3:
        return whole
    data = rng.choice([whole, mutated(rng, rng.choice(seeds()))])
    if number % 8 == 0:
        end = len(data) - len(b"</domain>")
        return data[:end] + rng.choice([b" ", b"<a/>", b"\xff"]) * (libvirt_hook.MOST_BYTES + 1) + data[end:]
    if number % 4 == 1:
        encoding = rng.choice(ENCODINGS)
        text = data.decode("latin-1").encode(encoding, errors="replace")
        named = f"<?xml version='1.0' encoding='{encoding}'?>".encode(rng.choice([encoding, "ascii"]))
        return rng.choice([b"", named]) + text
    return data


def is_survived(data: bytes, operation: str) -> bool:
    """Assert that the hook's process ends well; return whether it printed what libvirt is to take."""
    printed = run("db1", operation, "begin", "-", xml=data)
    if not printed:
        # libvirt goes on with what it gave.
        return False
    assert len(data) <= libvirt_hook.MOST_BYTES
    assert is_rewritten_alone(data, printed)
    return True


@pytest.mark.slow
def test_hundreds_of_hostile_documents_go_through_its_process():
    rng = random.Random(2028)  # noqa: S311 - no secrets
    documents = [hostile(rng, number) for number in range(DOCUMENTS)]
    tried = [(data, operation) for data in documents for operation in libvirt_hook.FILTERS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        survived = list(pool.map(is_survived, *zip(*tried, strict=True)))
    assert survived[::2] == survived[1::2]
    # Those that are odd are rewritten; those that are too large are not.
    assert all(survived[6::8]) and sum(survived) < len(tried) - DOCUMENTS // 4
    assert sum(len(data) > libvirt_hook.MOST_BYTES for data in documents) >= DOCUMENTS // 8
