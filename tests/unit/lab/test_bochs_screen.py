"""What Bochs draws is taken: a terminal that nobody reads fills, and whoever draws on it waits for ever."""

import os
import pty
import tty
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest

from lab.bochs import _Screen

DRAWN = b"\x1b[1;1H"
TIMES = 50_000
"""Several times what a terminal holds."""


@pytest.fixture
def terminal() -> Iterator[tuple[int, str]]:
    """Yield a terminal as Bochs has it: one end to draw on, the other by name, open and in raw mode."""
    drawn, end = pty.openpty()
    tty.setraw(end)
    yield drawn, os.ttyname(end)
    os.close(end)
    os.close(drawn)


def test_who_draws_goes_on_while_the_screen_is_read(terminal: tuple[int, str], tmp_path: Path):
    drawn, name = terminal
    log = tmp_path / "log"
    log.write_text(f'Bochs connected to screen "{name}"\n')
    thread = Thread(target=lambda: [os.write(drawn, DRAWN) for _ in range(TIMES)], daemon=True)
    thread.start()
    thread.join(1.0)
    assert thread.is_alive(), "the terminal holds more than is drawn here"

    with ExitStack() as stack:
        screen = _Screen(log, stack)
        for _ in range(1000):
            screen.read()
            thread.join(0.01)
            if not thread.is_alive():
                break

    assert not thread.is_alive()


def test_a_screen_that_is_not_there_yet_or_gone_is_no_error(tmp_path: Path):
    log = tmp_path / "log"
    log.touch()
    with ExitStack() as stack:
        screen = _Screen(log, stack)
        screen.read()
        log.write_text('Bochs connected to screen "/dev/pts/99999"\n')
        screen.read()
