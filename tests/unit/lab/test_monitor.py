"""What if QEMU's monitor says nothing, or is gone?"""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import GoneError, LabTimeoutError
from lab.monitor import Monitor


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[tuple[Path, threading.Event]]:
    """A monitor that answers once, and then says nothing until the event, when it goes."""
    path, over = tmp_path / "qmp.sock", threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            stream, _ = listening.accept()
            with stream:
                stream.sendall(b'{"QMP": {}}\n')
                stream.recv(1000)
                stream.sendall(b'{"return": {}}\n')
                over.wait(60)

        thread = threading.Thread(target=serve)
        thread.start()
        yield path, over
        over.set()
        thread.join()


def test_silence_is_a_timeout_of_the_labs_own_and_an_end_is_known(peer: tuple[Path, threading.Event]):
    path, over = peer
    monitor = Monitor(path)
    with pytest.raises(LabTimeoutError, match="did not answer query_status"):
        monitor.command("query_status", timeout=0.1)
    over.set()
    with pytest.raises(GoneError):
        monitor.command("query_status", timeout=60)
    monitor.close()
