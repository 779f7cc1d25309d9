"""How does an emulated host without a network card reach services outside?  IP packets through a serial port.

The lab's emulator has no network device: hosts that need none boot faster.  Each end has a TUN device and
this program, which copies packets between the device and a stream of bytes.  An IPv4 packet says its own
length.

It needs nothing but Python, as it runs inside the emulated host, too:
``packet_link.py PORT ADDRESS``, with the path of a virtio-serial port and the address of this end.
"""

import fcntl
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

PORT = "vmplace.network"
OUTSIDE, INSIDE = "10.77.0.1", "10.77.0.2"
# Large packets: each costs an emulated CPU a millisecond.
MTU = 32_000
DEVICE = "lab0"
IPV4 = 4
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_HEADER = 20


def open_tun(address: str) -> int:
    """Make the TUN device of this end, in the caller's network namespace; it ends with its descriptor."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _TUN_WITHOUT_HEADER))
    peer = INSIDE if address == OUTSIDE else OUTSIDE
    subprocess.run(["ip", "address", "add", address, "peer", peer, "dev", DEVICE], check=True)
    subprocess.run(["ip", "link", "set", DEVICE, "mtu", str(MTU), "up"], check=True)
    return tun


def split_packets(received: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole packets at the start of what was received, and the rest."""
    packets, start = [], 0
    while len(received) - start >= _HEADER:
        (length,) = struct.unpack_from(">H", received, start + 2)
        if length < _HEADER or received[start] >> 4 != IPV4:
            raise ValueError(f"no IPv4 packet: {received[start : start + _HEADER].hex()}")
        if len(received) - start < length:
            break
        packets.append(received[start : start + length])
        start += length
    return packets, received[start:]


def send_packets(tun: int, write: Callable[[bytes], int]) -> None:
    """Copy packets from the device into the stream, until either is closed."""
    while packet := os.read(tun, MTU + _HEADER):
        # Linux also sends IPv6 of its own accord.
        rest = packet if packet[0] >> 4 == IPV4 else b""
        while rest:
            rest = rest[write(rest) :]


def receive_packets(tun: int, read: Callable[[int], bytes]) -> None:
    """Copy packets from the stream into the device, for ever; a stream without a peer reads as empty."""
    left = b""
    while True:
        received = read(1 << 16)
        if not received:
            time.sleep(0.1)
        packets, left = split_packets(left + received)
        for packet in packets:
            os.write(tun, packet)


def main(port: str, address: str) -> None:
    """Connect this end, for ever."""
    stream, tun = os.open(port, os.O_RDWR), open_tun(address)
    threading.Thread(
        target=send_packets, args=(tun, lambda data: os.write(stream, data)), daemon=True
    ).start()
    receive_packets(tun, lambda size: os.read(stream, size))


if __name__ == "__main__":
    main(*sys.argv[1:])
