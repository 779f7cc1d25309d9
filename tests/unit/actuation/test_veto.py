import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

from vmplace.actuation.veto import PingPongVeto
from vmplace.agent.config_sections import Config

HUGE = 2 << 20


def pages(*hvas: int) -> npt.NDArray[np.uint64]:
    return np.array(hvas, np.uint64)


def move(veto: PingPongVeto, hva: int, from_nid: int, to_nid: int) -> None:
    veto.start_window()
    veto.moved(pages(hva), np.array([from_nid], np.int16), np.array([to_nid], np.int16))


def rests_of_a_page_always_wanted_elsewhere(veto: PingPongVeto, windows: int) -> list[int]:
    rests, resting, nid = [], 0, 0
    for _ in range(windows):
        veto.start_window()
        if not veto.allowed(pages(0))[0]:
            resting += 1
            continue
        rests += [resting] if resting else []
        veto.moved(pages(0), np.array([nid], np.int16), np.array([1 - nid], np.int16))
        resting, nid = 0, 1 - nid
    return rests


def test_there_and_back_is_left_alone_for_a_growing_while():
    assert rests_of_a_page_always_wanted_elsewhere(PingPongVeto(), 600) == [4, 8, 16, 32, 64, 128, 256]


@pytest.mark.slow
@pytest.mark.parametrize("window_ms", [20, Config().shortest_window_ms, Config().window_ms])
def test_what_moves_to_and_fro_in_each_window_takes_little_however_short_windows_are(window_ms: int):
    """Ten minutes; 2 MiB move each time: of the shortest windows that may be set, 0.8 MB/s."""
    windows = 600 * 1000 // window_ms
    resting = sum(rests_of_a_page_always_wanted_elsewhere(PingPongVeto(), windows))
    # There, back, and a rest of 256 windows; the first rests are shorter, and the last one is not over.
    assert windows - resting - 256 <= 16 + 2 * windows / 258


def test_ping_pong_is_forgiven_after_long_quiet():
    veto = PingPongVeto()
    rests_of_a_page_always_wanted_elsewhere(veto, 100)
    for _ in range(700):
        veto.start_window()
    assert rests_of_a_page_always_wanted_elsewhere(veto, 10) == [4]


def test_moving_on_is_no_ping_pong():
    veto = PingPongVeto()
    for to_nid in range(1, 8):
        move(veto, 0, to_nid - 1, to_nid)
    assert veto.allowed(pages(0)).all()


def test_coming_back_much_later_is_no_ping_pong():
    veto = PingPongVeto(memory_windows=8)
    move(veto, 0, 0, 1)
    for _ in range(8):
        veto.start_window()
    move(veto, 0, 1, 0)
    assert veto.allowed(pages(0)).all()


def test_only_the_block_of_the_page_rests():
    veto = PingPongVeto()
    move(veto, 0, 0, 1)
    move(veto, 0, 1, 0)
    assert veto.allowed(pages(4096, HUGE)).tolist() == [False, True]


def test_memory_follows_recent_moves_not_time():
    veto = PingPongVeto(most_entries=100_000)
    hva = np.arange(50_000, dtype=np.uint64) * np.uint64(4096)
    tracemalloc.start()
    for window in range(100):
        veto.start_window()
        at = hva + np.uint64(window << 32)
        veto.moved(at, np.zeros(50_000, np.int16), np.ones(50_000, np.int16))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert veto.entries <= 100_000
    assert peak < 8 << 20
