"""What is read of accesses: perf, recordings, handovers from other hosts."""

import base64
import zlib
from collections.abc import Mapping
from functools import cache

import msgspec

from tests.fuzz.target import DATA, SCRATCH, Target, captured, first_lines, text_of
from tests.unit.agent.agent_world import HOST as HANDOVER_HOST
from tests.unit.model.test_handover import a_guest, halves, window
from tests.unit.model.test_handover import handed_over as handover_of_halves
from tests.unit.sampling.test_recording import HOST, batch, guest, with_users
from vmplace.agent.rehearsal import rehearse
from vmplace.model.handover import parse_handover
from vmplace.model.prior_pages import prior_pages
from vmplace.policy import home
from vmplace.policy.plan import GuestSettings
from vmplace.sampling.perf_recording import perf_recording
from vmplace.sampling.perf_script import RecordedHeader, RecordedSamples, parse_header, parse_samples
from vmplace.sampling.recording import (
    FILE_HEAD,
    FILE_MAGIC,
    FRAME_HEAD,
    FRAME_MAGIC,
    VERSION,
    Recorder,
    iter_recording,
)
from vmplace.sampling.recording_frames import PlanFrame, PlannedGuest, RunFrame

PERF = DATA / "perf"


@cache
def header() -> RecordedHeader:
    """Return the header of a recording of perf."""
    return parse_header((PERF / "two-vcpus.header.txt").read_text().splitlines())


@cache
def samples() -> RecordedSamples:
    """Return some samples of it."""
    return parse_samples((PERF / "two-vcpus.samples.txt").read_text().splitlines()[:50])


def perf_samples(data: bytes) -> None:
    """Make a recording of samples, with a header that is sound."""
    recording = perf_recording(header(), parse_samples(text_of(data).split("\n")))
    for at, _ in enumerate(recording.iter_batches(1000)):
        if at > 4:
            break


def perf_header(data: bytes) -> None:
    """Make a recording with a header that may not be."""
    recording = perf_recording(parse_header(text_of(data).split("\n")), samples())
    next(recording.iter_batches(1000))


def recording(data: bytes) -> None:
    """Run a policy over a recording."""
    path = SCRATCH / "x.vmptrace"
    path.write_bytes(data)
    rehearse(iter_recording(path), home.plan, lambda _: GuestSettings())


def frames(data: bytes) -> None:
    """Run a policy over frames whose lengths and sums are right: lines, head and body in turn."""
    parts = data.split(b"\n")
    content = FILE_HEAD.pack(FILE_MAGIC, VERSION)
    for head, raw in zip(parts[::2], parts[1::2], strict=False):
        body = zlib.compress(raw, 1) if raw else b""
        content += FRAME_HEAD.pack(FRAME_MAGIC, len(head), len(body), zlib.crc32(head + body)) + head + body
    recording(content)


def recorded() -> list[bytes]:
    """Return a recording."""
    path = SCRATCH / "seed.vmptrace"
    with Recorder(path, HOST, overwrite=True) as recorder:
        for window in range(2):
            recorder.add(guest("a"), batch("a", window))
    plain = path.read_bytes()
    with Recorder(path, HOST, overwrite=True) as recorder:
        recorder.tell(RunFrame("auto", acted=True))
        recorder.add(guest("a"), with_users(batch("a", 2), 2))
        known = PlannedGuest("a", {"mode": "auto"}, 1.5, 2.0)
        recorder.tell(PlanFrame(1e9, 1.0, 1 << 20, 0.25, True, (known,), 0))
    return [plain, path.read_bytes()]


def recorded_frames() -> list[bytes]:
    """Return heads and bodies of a small recording, a line each."""
    lines, data, at = [], recorded()[0], FILE_HEAD.size
    while at < len(data):
        _, head, body, _ = FRAME_HEAD.unpack_from(data, at)
        at += FRAME_HEAD.size
        lines += [data[at : at + head], b""]
        at += head + body
    # With two ranges of 8 pages instead of thousands: 17 bytes each.
    small = [
        line.replace(b'"npages":3000', b'"npages":8').replace(b'"npages":700', b'"npages":8')
        for line in lines
    ]
    return [b"\n".join(b"\1" * 16 + b"\0" + b"\1" * 16 + b"\0" if b'"batch"' in small[i - 1] else one
                       for i, one in enumerate(small))]  # fmt: skip


def handed_over(data: bytes) -> None:
    """Take a handover for granted: the packed one, as its text would be a code of it."""
    handover = parse_handover(base64.b64encode(data).decode())
    prior_pages(handover, HANDOVER_HOST, a_guest(1, 0), window(a_guest(1, 0), None, early=True))


def handovers() -> list[bytes]:
    """Return packed handovers."""
    reported = (handover_of_halves(halves(), 0, 1, early=early) for early in (False, True))
    return [msgspec.msgpack.encode(one) for one in reported]


SAMPLE_TARGETS: Mapping[str, Target] = {
    "handover": Target(handed_over, handovers),
    "handover_text": Target(
        lambda data: parse_handover(text_of(data)),
        lambda: [base64.b64encode(one) for one in handovers()],
    ),
    "perf_header": Target(perf_header, captured(PERF / "two-vcpus.header.txt")),
    "perf_samples": Target(perf_samples, first_lines(PERF / "two-vcpus.samples.txt", 6)),
    "recording": Target(recording, recorded),
    "recording_frames": Target(frames, recorded_frames),
}
