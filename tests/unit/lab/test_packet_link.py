"""Packets through a stream of bytes come out as they went in, wherever the stream is cut."""

import struct

import pytest

from lab.packet_link import split_packets


def packet(payload: bytes) -> bytes:
    """Return an IPv4 packet as RFC 791 has it: version and header length, then the total length."""
    return bytes([0x45, 0]) + struct.pack(">H", 20 + len(payload)) + bytes(16) + payload


PACKETS = [packet(b""), packet(b"hello"), packet(bytes(range(256)) * 100)]


@pytest.mark.parametrize("step", [1, 3, 19, 1000, 1 << 20])
def test_packets_come_out_whole_wherever_the_stream_is_cut(step):
    stream, left, found = b"".join(PACKETS), b"", []
    for start in range(0, len(stream), step):
        packets, left = split_packets(left + stream[start : start + step])
        found += packets
    assert found == PACKETS and left == b""


@pytest.mark.parametrize("wrong", [b"\x60" + bytes(39), packet(b"")[:2] + bytes(18)])
def test_what_is_no_ipv4_packet_is_refused(wrong):
    with pytest.raises(ValueError, match="no IPv4 packet"):
        split_packets(wrong)
