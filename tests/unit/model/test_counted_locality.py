"""One factor makes up for what bits of huge pages do not tell of local accesses."""

import numpy as np
import pytest

from vmplace.model.counted_locality import MOST, as_local_as_counted
from vmplace.policy.host_view import REPLICATED

HUGE = np.ones(4, np.bool_)
NODE = np.array([0, 0, 1, 1], np.int8)


def shared() -> np.ndarray:
    """Return entries of which two nodes used three, and one node the last: 0.66 of that is local."""
    return np.array([[30.0, 30.0], [15.0, 20.0], [20.0, 40.0], [0.0, 50.0]])


def local_share(heat: np.ndarray, node: np.ndarray) -> float:
    own = heat[np.arange(len(node)), np.maximum(node, 0)]
    return float(np.where(node < 0, heat.sum(axis=1), own).sum() / heat.sum())


@pytest.mark.parametrize("lar", [0.7, 0.8, 0.95])
def test_pages_imply_what_was_counted(lar: float):
    heat = shared()
    as_local_as_counted(heat, NODE, HUGE, lar)
    assert local_share(heat, NODE) == pytest.approx(lar, abs=1e-4)
    assert heat.sum(axis=1) == pytest.approx(shared().sum(axis=1))


@pytest.mark.parametrize("lar", [0.0, 0.3, 0.65, -0.1, float("nan")])
def test_fewer_local_accesses_than_pages_imply_say_nothing_of_any_page(lar: float):
    heat = shared()
    assert local_share(heat, NODE) == pytest.approx(135 / 205)
    as_local_as_counted(heat, NODE, HUGE, lar)
    assert heat.tolist() == shared().tolist()


def test_small_pages_and_those_of_one_node_keep_what_bits_tell():
    heat, huge = shared(), np.array([False, False, True, True])
    as_local_as_counted(heat, NODE, huge, 0.9)
    assert heat[[0, 1, 3]].tolist() == shared()[[0, 1, 3]].tolist()
    assert heat[2, 1] > 40


def test_copies_are_local_and_stay_as_they_are():
    heat, node = shared(), np.array([REPLICATED, 0, 1, 1], np.int8)
    as_local_as_counted(heat, node, HUGE, 0.9)
    assert heat[0].tolist() == [30.0, 30.0]
    assert local_share(heat, node) == pytest.approx(0.9, abs=1e-4)


@pytest.mark.parametrize("lar", [1.0, 7.0])
def test_what_pages_cannot_explain_goes_as_far_as_is_allowed(lar: float):
    heat = shared()
    as_local_as_counted(heat, NODE, HUGE, lar)
    assert heat[0, 0] / heat[0, 1] == pytest.approx(MOST, rel=1e-3)
    assert np.isfinite(heat).all() and (heat >= 0).all()


def test_huge_pages_that_another_node_clearly_uses_more_keep_what_bits_tell():
    heat = np.array([[10.0, 90.0], [60.0, 40.0], [0.0, 9.0], [0.0, 9.0]])
    as_local_as_counted(heat, NODE, HUGE, 0.9)
    assert heat[0].tolist() == [10.0, 90.0] and heat[1, 0] > 60.0


def test_where_no_huge_page_is_shared_nothing_changes():
    heat = np.array([[0.0, 5.0], [7.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    as_local_as_counted(heat, NODE, HUGE, 0.9)
    assert heat.sum() == 13.0 and heat[0, 1] == 5.0
