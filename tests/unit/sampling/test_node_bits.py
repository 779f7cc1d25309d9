"""Bitmaps of pages by node."""

import numpy as np

from vmplace.sampling.sample import NodeBits


def test_a_page_is_touched_if_any_node_touched_it() -> None:
    rows = np.array([[1 << 63, 0], [0, 1], [0, 0]], np.uint64)
    assert np.flatnonzero(NodeBits(rows, None).anywhere(70)).tolist() == [63, 64]
