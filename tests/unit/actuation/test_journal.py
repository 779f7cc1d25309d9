import os
import random
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.unit.actuation.child_guest import child_guest, guest_of
from tests.unit.actuation.fake_kernel import FakeKernel
from vmplace.actuation import journal as journal_module
from vmplace.actuation import journal_contents
from vmplace.actuation.identity import GuestIdentity, read_boot_id, read_identity
from vmplace.actuation.journal import Journal, Pin, read_journal
from vmplace.actuation.journal_contents import guest_id, parse_journal
from vmplace.actuation.journal_records import GuestId, PagesRecord, framed
from vmplace.actuation.page_runs import (
    BLOCK_PAGES,
    NOWHERE,
    OriginMap,
    PageRuns,
    decode_runs,
    encode_pages,
)
from vmplace.actuation.undo import undo
from vmplace.errors import JournalError


@pytest.fixture
def me() -> GuestIdentity:
    return read_identity(guest_of(os.getpid(), 0, 1))


def one_run(frame: int, nid: int, npages: int = 1) -> PageRuns:
    return encode_pages(np.array([frame * 4096], np.uint64), np.array([npages], np.uint16), np.array([nid]))


def first_nids(origins: OriginMap) -> dict[int, int]:
    return {
        int(frame): int(nid)
        for runs in origins.iter_runs()
        for frame, nid in zip(*runs.page_frames(), strict=True)
    }


def written(path: Path, me: GuestIdentity, count: int) -> bytes:
    with Journal(path) as journal:
        for frame in range(count):
            journal.record_pages(me, one_run(frame, frame % 7))
    return path.read_bytes()


def test_what_was_first_stays_over_restarts(tmp_path: Path, me: GuestIdentity):
    for nid in (3, 1):
        with Journal(tmp_path / "journal") as journal:
            journal.record_pages(me, one_run(5, nid))
    assert first_nids(read_journal(tmp_path / "journal").guest(me).pages) == {5: 3}


def test_a_second_agent_is_turned_away(tmp_path: Path):
    with Journal(tmp_path / "journal"), pytest.raises(JournalError, match="another vmplace"):
        Journal(tmp_path / "journal")


def test_an_absent_journal_is_empty(tmp_path: Path):
    assert not read_journal(tmp_path / "journal").guests


def test_a_file_that_is_no_journal_is_not_touched(tmp_path: Path):
    (tmp_path / "journal").write_text("precious\n")
    with pytest.raises(JournalError, match="not a journal"):
        Journal(tmp_path / "journal")
    assert (tmp_path / "journal").read_text() == "precious\n"


@pytest.mark.parametrize("keep", range(0, 400, 7))
def test_cut_anywhere_all_whole_records_are_read(tmp_path: Path, me: GuestIdentity, keep: int):
    path = tmp_path / "journal"
    sound = written(path, me, 4)
    path.write_bytes(sound[:keep])
    nids = first_nids(read_journal(path).guest(me).pages)
    assert nids == {frame: frame for frame in range(len(nids))}
    with Journal(path) as journal:
        journal.record_pages(me, one_run(99, 2))
    assert first_nids(read_journal(path).guest(me).pages) == nids | {99: 2}
    assert not read_journal(path).damage


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_bit_costs_one_record_and_is_reported(tmp_path: Path, me: GuestIdentity, seed: int):
    path = tmp_path / "journal"
    data = bytearray(written(path, me, 20))
    bit = random.Random(seed).randrange(8 * 8, 8 * len(data))  # noqa: S311 - not for secrets
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    contents = read_journal(path)
    assert len(first_nids(contents.guest(me).pages)) == 19
    assert len(contents.damage) == 1


def test_guests_that_ended_and_other_boots_drop_out(tmp_path: Path, me: GuestIdentity):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for other in (
            GuestIdentity("reused-pid", me.pid, me.start_time + 1, me.boot_id),
            GuestIdentity("last-boot", me.pid, me.start_time, "another boot"),
            me,
        ):
            journal.record_pages(other, one_run(1, 0))
    with Journal(path) as journal:
        assert [g.identity for g in journal.contents().guests.values()] == [me]


_OPEN = """
import sys
from pathlib import Path
from vmplace.actuation.journal import Journal
with Journal(Path(sys.argv[1])) as journal:
    journal.compact()
"""


def test_a_journal_of_another_pid_namespace_is_refused_and_kept(tmp_path: Path, me: GuestIdentity):
    """There this process has no pid, as if it had ended."""
    path = tmp_path / "journal"
    before = written(path, me, 3)
    words = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("may make no namespaces")
    there = subprocess.run(
        [*words, sys.executable, "-c", _OPEN, str(path)], capture_output=True, text=True, check=False
    )
    assert "JournalError: " in there.stderr and "is of another PID namespace" in there.stderr
    assert "hostPID: true" in there.stderr and path.read_bytes() == before
    with Journal(path) as journal:
        journal.compact()
        (guest,) = journal.contents().guests.values()
    assert (guest.identity, guest.pages.total_pages) == (me, 3)


@pytest.mark.parametrize(
    ("boot_id", "namespace"), [("another boot", 7), (None, 0)], ids=["another boot", "earlier version"]
)
def test_the_pid_namespace_matters_within_a_boot_alone_and_where_it_is_known(
    tmp_path: Path, me: GuestIdentity, boot_id: str | None, namespace: int
):
    path = tmp_path / "journal"
    written(path, replace(me, boot_id=boot_id or me.boot_id, pid_namespace=namespace), 1)
    with Journal(path) as journal:
        assert len(journal.contents().guests) == (boot_id is None)


def test_a_journal_of_another_pid_namespace_is_refused_where_it_can_only_be_read(
    tmp_path: Path, me: GuestIdentity
):
    """Inodes of namespaces are those of nsfs; 7 is none of a PID namespace."""
    path = tmp_path / "journal"
    written(path, replace(me, pid_namespace=7), 1)
    for settles in (True, False):
        with pytest.raises(JournalError, match="another PID namespace"):
            Journal(path, settles=settles)


def test_compaction_keeps_the_sum(tmp_path: Path, me: GuestIdentity):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for nid in range(50):
            journal.record_pages(me, one_run(7, nid, 512))
        journal.record_sysctl("kernel/numa_balancing", "1", "0")
        size, before = path.stat().st_size, first_nids(journal.origins(me))
        journal.compact()
        assert path.stat().st_size < size / 10
        assert first_nids(journal.origins(me)) == before
        assert journal.contents().sysctls["kernel/numa_balancing"].before == "1"


_FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from vmplace.actuation.identity import GuestIdentity
from vmplace.actuation.journal import Journal
from vmplace.actuation.page_runs import encode_pages
from vmplace.actuation.undo import undo
from vmplace.errors import JournalError
path, pid, start, boot = Path(sys.argv[1]), *sys.argv[2:]
me = GuestIdentity("db1", int(pid), int(start), boot)
def run(frame):
    return encode_pages(np.array([frame * 4096], np.uint64), np.array([1], np.uint16), np.array([0]))
with Journal(path) as journal:
    journal.record_pages(me, run(1))
    full = path.stat().st_size + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, full))
    try:
        journal.record_pages(me, run(2))
    except JournalError as err:
        print(err)
"""


def test_a_full_disk_is_an_error_and_leaves_whole_records(tmp_path: Path, me: GuestIdentity):
    path = tmp_path / "journal"
    # In a process of its own: the limit would hold for the test's own output, too.
    words = [sys.executable, "-c", _FULL_DISK, str(path), str(me.pid), str(me.start_time), me.boot_id]
    reported = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "nothing is moved" in reported
    contents = read_journal(path)
    assert first_nids(contents.guest(me).pages) == {1: 0}
    assert not contents.damage


_WRITER = """
import os, sys
from pathlib import Path
import numpy as np
from vmplace.actuation.identity import GuestIdentity
from vmplace.actuation.journal import Journal
from vmplace.actuation.page_runs import encode_pages
path, pid, start, boot = sys.argv[1:]
me = GuestIdentity("db1", int(pid), int(start), boot)
with Journal(Path(path)) as journal:
    for frame in range(1 << 20):
        hva, one = np.array([frame * 4096], np.uint64), np.array([1], np.uint16)
        journal.record_pages(me, encode_pages(hva, one, np.array([frame % 5])))
        os.write(1, b"%d\\n" % frame)  # "acted upon"
        if frame % 50 == 49:
            journal.compact()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_kill_9_loses_nothing_that_was_acted_upon(tmp_path: Path, me: GuestIdentity, seed: int):
    argv = [sys.executable, "-c", _WRITER, str(tmp_path / "journal")]
    argv += [str(me.pid), str(me.start_time), read_boot_id()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        writer.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, 0.1))  # noqa: S311 - not for secrets
        writer.send_signal(signal.SIGKILL)
        # What came before the last line break was recorded in full.
        acted = writer.stdout.read().count(b"\n") + 1
    nids = first_nids(read_journal(tmp_path / "journal").guest(me).pages)
    assert len(nids) in (acted, acted + 1)
    assert nids == {frame: frame % 5 for frame in range(len(nids))}


def test_a_guest_is_found_by_the_name_that_it_has_now(tmp_path: Path, me: GuestIdentity):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.record_pages(replace(me, name="db1-77"), one_run(1, 0))
        journal.record_pages(replace(me, name="db1"), one_run(2, 1))
        journal.compact()
    (found,) = read_journal(path).guests.values()
    assert found.identity.name == "db1" and first_nids(found.pages) == {1: 0, 2: 1}


def test_a_guest_keeps_its_present_name_when_only_pins_of_an_earlier_one_are_left(
    tmp_path: Path, me: GuestIdentity
):
    path, now = tmp_path / "journal", replace(me, name="db1")
    with Journal(path) as journal:
        journal.record_affinities(replace(me, name="db1-77"), [Pin(0, 1, 1, (0,))], by_libvirt=False)
        journal.record_undone(now, (), tuple(journal.contents().guest(now).affinities.values()))
        journal.compact()
    (found,) = read_journal(path).guests.values()
    assert found.identity.name == "db1" and list(found.affinities) == [1]


@pytest.mark.parametrize("take_away", [Path.unlink, lambda path: path.rename(f"{path}.old")])
def test_a_journal_that_was_taken_away_is_written_anew_with_all_that_was_in_it(
    tmp_path: Path, me: GuestIdentity, take_away: Callable[[Path], object]
):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.record_pages(me, one_run(1, 0))
        take_away(path)
        journal.record_pages(me, one_run(2, 1))
        assert first_nids(read_journal(path).guest(me).pages) == {1: 0, 2: 1}


def test_a_directory_that_cannot_be_synced_lets_nothing_be_appended_and_loses_nothing(
    tmp_path: Path, me: GuestIdentity, monkeypatch: pytest.MonkeyPatch
):
    path, sync = tmp_path / "journal", os.fsync

    def fails(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == tmp_path:
            raise OSError(5, "input/output error")
        sync(fd)

    with Journal(path) as journal:
        journal.record_pages(me, one_run(1, 0))
        monkeypatch.setattr(os, "fsync", fails)
        for step in (journal.compact, lambda: journal.record_pages(me, one_run(2, 1))):
            with pytest.raises(JournalError, match="nothing is moved"):
                step()
        monkeypatch.setattr(os, "fsync", sync)
        journal.record_pages(me, one_run(3, 2))
    assert first_nids(read_journal(path).guest(me).pages) == {1: 0, 3: 2}


@pytest.mark.parametrize("name", ["journal", "journal.lock"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, name: str):
    (tmp_path / "precious").write_bytes(b"")
    (tmp_path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(JournalError):
        Journal(tmp_path / "journal")
    assert (tmp_path / "precious").read_bytes() == b""


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode(PagesRecord(GuestId("db1", 1, 1, "boot"), b"")).replace(b"db1", b"\xff" * 3),
        msgspec.msgpack.encode(PagesRecord(GuestId("db1", 1, 1, "boot"), b"\xff" * 8 + b"no deflate")),
        msgspec.msgpack.encode(PagesRecord(GuestId("db1", 1, 1, "boot"), bytes(8) + b"no deflate")),
    ],
    ids=["bad UTF-8", "too many runs", "no runs"],
)
def test_a_record_that_is_wrong_though_its_sum_is_right_is_damage(
    tmp_path: Path, me: GuestIdentity, payload: bytes
):
    path = tmp_path / "journal"
    sound = written(path, me, 1)
    head = struct.pack("<4sII", b"\xa5VMR", len(payload), zlib.crc32(payload))
    path.write_bytes(sound + head + payload)
    contents = read_journal(path)
    assert contents.damage and first_nids(contents.guest(me).pages) == {0: 0}


def test_what_an_earlier_version_wrote_is_read():
    old = bytes.fromhex(
        "564d504a524e4c01a5564d524300000037e38bcf83a474797065a57061676573a5677565737494a36462314d58a4626f6f74"
        "a472756e73c41e02000000000000007801636080020508cd04a44098818199010002aa0028a5564d5256000000dc4c87c984"
        "a474797065a6756e646f6e65a5677565737494a36462314d58a4626f6f74a47265737491c41e020000000000000078016360"
        "80020508cd04a44098818199010002aa0028af726573745f616666696e697469657390"
    )
    contents = parse_journal(old)
    (guest,) = contents.guests.values()
    assert not contents.damage and first_nids(guest.pages) == {0: 0, 1: 0, 2: 3, 3: 3}
    assert all((pages.to == NOWHERE).all() for pages in guest.pages.iter_pages())


def test_a_guest_that_gives_itself_a_name_that_is_no_text_keeps_nobody_from_the_journal(
    tmp_path: Path, me: GuestIdentity, monkeypatch: pytest.MonkeyPatch
):
    """prctl(2), PR_SET_NAME, takes any bytes, and they are shown in /proc/PID/stat as they are."""
    path = tmp_path / "journal"
    with child_guest(1) as child:
        strange, kernel = replace(read_identity(child.guest), name="strange"), FakeKernel({child.hva: 1})
        with Journal(path) as journal:
            journal.record_pages(strange, one_run(child.hva // 4096, 0), one_run(child.hva // 4096, 1))
            child.rename(b"\xff\xfe) Z")
            monkeypatch.setattr(journal_module, "_COMPACT_BYTES", 0)
            journal.record_pages(me, one_run(1, 0))
            journal.compact()
        with Journal(path) as journal:
            assert set(journal.contents().guests) == {strange.key, me.key}
            done = undo(journal, kernel=kernel, guests={strange})
        assert done.failures == () and kernel.nid_of == {child.hva: 0}
    with Journal(path) as journal:
        assert set(journal.contents().guests) == {me.key}


def test_a_guest_that_cannot_be_asked_whether_it_runs_stays_in_the_journal(tmp_path: Path, me: GuestIdentity):
    proc = tmp_path / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text(me.boot_id)
    (proc / str(me.pid)).mkdir()
    for number, said in enumerate((b"", b"7", b"7 (a) S 1", b"7 (a) S " + b"x " * 50)):
        (proc / f"{me.pid}/stat").write_bytes(said)
        with Journal(tmp_path / "journal", proc=proc) as journal:
            journal.record_pages(me, one_run(number, 0))
            journal.compact()
            assert set(journal.contents().guests) == {me.key}
    (proc / "sys/kernel/random/boot_id").write_bytes(bytes(1 << 17))
    with pytest.raises(JournalError, match="more than"):
        Journal(tmp_path / "journal", proc=proc)


def test_to_open_a_journal_takes_no_look_at_pages(
    tmp_path: Path, me: GuestIdentity, monkeypatch: pytest.MonkeyPatch
):
    """Those of a TiB take a minute, and a service has to start, and to stop, within a limit."""
    path, ended = tmp_path / "journal", replace(me, name="ended", start_time=me.start_time + 1)
    with Journal(path) as journal:
        for frame in range(5):
            journal.record_pages(me, one_run(frame, frame), one_run(frame, 6))
            journal.record_pages(ended, one_run(frame, 0))
    decoded: list[bytes] = []

    def decode(data: bytes) -> PageRuns:
        decoded.append(data)
        return decode_runs(data)

    monkeypatch.setattr(journal_contents, "decode_runs", decode)
    with Journal(path) as journal:
        assert set(journal.without_pages().guests) == {me.key} and not decoded
        assert b"ended" not in path.read_bytes()
        assert first_nids(journal.origins(me)) == {frame: frame for frame in range(5)} and len(decoded) == 10


def test_only_pages_of_guests_that_are_asked_for_are_decoded(tmp_path: Path, me: GuestIdentity):
    with child_guest(1) as child, Journal(tmp_path / "journal") as journal:
        other = read_identity(child.guest)
        for guest in (me, other):
            journal.record_pages(guest, one_run(guest.pid, 3))
        contents = journal.contents((other,))
        assert first_nids(contents.guest(other).pages) == {other.pid: 3}
        assert first_nids(contents.guest(me).pages) == {}


def test_long_work_on_a_journal_tells_that_it_goes_on(tmp_path: Path, me: GuestIdentity):
    beats: list[int] = []
    with Journal(tmp_path / "journal", beat=lambda: beats.append(1)) as journal:
        for block in range(9):
            journal.record_pages(me, one_run(block * BLOCK_PAGES, 0))
        for step in (journal.contents, journal.without_pages):
            beats.clear()
            step()
            assert len(beats) == 9
        beats.clear()
        journal.compact()
        # To read them, and to write them again behind the magic.
        assert len(beats) == 9 + 10


def test_a_damaged_record_of_pages_is_reported_once_these_are_asked_for_and_stays(
    tmp_path: Path, me: GuestIdentity
):
    path, ended = tmp_path / "journal", replace(me, start_time=me.start_time + 1)
    payload = msgspec.msgpack.encode(PagesRecord(guest_id(me), bytes(8) + b"no deflate"))
    with Journal(path) as journal:
        journal.record_pages(ended, one_run(1, 0))
    path.write_bytes(path.read_bytes() + framed(payload))
    with Journal(path) as journal:
        journal.record_pages(me, one_run(2, 0))
        assert journal.damage == () and payload in path.read_bytes()
        assert first_nids(journal.origins(me)) == {2: 0}
        assert len(journal.damage) == 1 and "no sound record" in journal.damage[0]
