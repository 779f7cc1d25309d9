"""What tells the agent what to do: settings, policies of domains, news, requests; and its journal."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from tests.fuzz.guest_targets import XML
from tests.fuzz.target import SCRATCH, Target, captured, just, text_of
from tests.unit.agent.test_guest_policy import WHOLE, domain_xml
from vmplace.actuation.journal_contents import JournalContents, parse_journal
from vmplace.actuation.journal_records import (
    MAGIC,
    AffinityRecord,
    GuestId,
    GuestUndoneRecord,
    PagesRecord,
    Record,
    SysctlRecord,
    SysctlReturnedRecord,
    framed,
)
from vmplace.actuation.page_runs import decode_runs, encode_pages
from vmplace.agent.config import parse_config
from vmplace.agent.decided import Decided, changed_words, decided
from vmplace.agent.news import parse_news
from vmplace.agent.standing_orders import StandingOrders
from vmplace.interfaces.policy_view import policy_view
from vmplace.interfaces.protocol import parse_request
from vmplace.topology.domain_policy import domain_policy
from vmplace.topology.stated_guests import StatedGuest, StatedGuests, encoded

CONFIG = b"""window_ms = 500
source = "idle"
[budget]
call_ms = 5
[guests."db*"]
allowed_nids = [0, 1]
"""


def domain_words(data: bytes) -> None:
    """Decide by what a domain's XML says of vmplace."""
    what = decided(parse_config("", Path("x")), "db1", domain_policy(text_of(data)), (0, 1))
    changed_words(Decided(what.settings), what)
    policy_view("db1", what, None)


def datagram(data: bytes) -> None:
    """Take what libvirt's hook sends."""
    if news := parse_news(data):
        printed = (news.operation + news.guest + news.uuid).replace("\t", "")
        assert printed.isprintable() or not printed


def stated(data: bytes) -> None:
    """Take what an orchestrator states, and decide by it."""
    path = SCRATCH / "stated-guests.json"
    path.write_bytes(data)
    path.chmod(0o600)
    found = StatedGuests(path, owner=os.getuid(), now_s=lambda: 100.0)
    for policy in found.policies().values():
        policy_view("db1", decided(parse_config("", Path("x")), "db1", policy, (0, 1)), None)
    found.migrating()
    assert all(note.isprintable() for note in found.notes)


def standing_orders(data: bytes) -> None:
    """Take up what an earlier agent kept; what is written anew must say the same."""
    path, proc = SCRATCH / "standing-orders.json", SCRATCH / "proc-of-orders"
    boot = proc / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text("boot")
    path.write_bytes(data)
    found = StandingOrders(path, proc)
    assert found.paused or not found.notes
    assert all(note.isprintable() for note in found.notes)
    found.hold_all(held=True)
    again = StandingOrders(path, proc)
    assert again.paused and not again.notes


def journal(data: bytes) -> None:
    """Read a journal; what is written anew must say the same."""
    contents = parse_journal(data)
    again = JournalContents()
    for record in contents.records():
        again.fold(record)
    assert written_anew(again) == written_anew(contents)


def written_anew(contents: JournalContents) -> list[Record]:
    """Return the records of all that is left to undo."""
    left = {key: guest for key, guest in contents.guests.items() if not guest.is_empty}
    return list(JournalContents(left, contents.sysctls).records())


def journal_records(data: bytes) -> None:
    """Read a journal whose frames are sound: records between lines.

    A block takes 96 KiB for a single page: of root's own file that is believed, of a fuzzer's it is not.
    """
    if sum(map(pages_spread, data.split(b"\n--\n"))) > 1 << 10:
        return
    journal(MAGIC + b"".join(framed(payload) for payload in data.split(b"\n--\n")))


def pages_spread(payload: bytes) -> int:
    """Return how many pages the runs of a record have, at most; 0 for what is no such record."""
    try:
        record: Record = msgspec.msgpack.decode(payload, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    runs = [record.runs] if isinstance(record, PagesRecord) else list(getattr(record, "rest", ()))
    count = 0
    for one in runs:
        # The sound ones are taken in also where others are not.
        with contextlib.suppress(ValueError):
            count += decode_runs(one).total_pages
    return count


def recorded_moves() -> list[bytes]:
    """Return records of each kind."""
    guest = GuestId("db1", 7, 8, "boot")
    hva, one = np.arange(9, dtype=np.uint64) * np.uint64(4096), np.ones(9, np.uint32)
    runs, to = (encode_pages(hva, one, np.full(9, nid)).encoded() for nid in (0, 1))
    affinity = AffinityRecord(guest, 0, 9, 10, (0, 1), by_libvirt=False, set_to=(1,))
    records: list[Record] = [
        PagesRecord(guest, runs, to),
        affinity,
        SysctlRecord("kernel/numa_balancing", "1", "0", "boot"),
        SysctlReturnedRecord("kernel/numa_balancing"),
        GuestUndoneRecord(guest, (runs,), (affinity,), (to,)),
    ]
    return [msgspec.msgpack.encode(record) for record in records]


ORDER_TARGETS: Mapping[str, Target] = {
    "domain_policy": Target(lambda data: domain_policy(text_of(data)), captured(*XML)),
    "config": Target(lambda data: parse_config(text_of(data), Path("x")), just(CONFIG)),
    "policy_words": Target(domain_words, lambda: [domain_xml(WHOLE, {"mode": "auto"}).encode()]),
    "stated_guests": Target(
        stated, lambda: [encoded((StatedGuest(7, 9, "kube", (("vmplace.io/mode", "auto"),), 200.0),))]
    ),
    "standing_orders": Target(
        standing_orders,
        just(b'{"version": 1, "paused": false, "boot_id": "boot", "held": [[7, 9]]}'),
    ),
    "news": Target(datagram, just(b"1\0migrate\0begin\0-\0db1\0uuid")),
    "protocol": Target(parse_request, just(b'{"version": 1, "command": "show", "guest": "a"}')),
    "journal": Target(journal, lambda: [MAGIC + b"".join(map(framed, recorded_moves()))]),
    "journal_records": Target(journal_records, lambda: [b"\n--\n".join(recorded_moves())]),
}
