"""A strip shows heat and node of each part, and blanks where nothing is."""

import numpy as np

from tests.unit.agent.agent_world import batch, guest
from tests.unit.model.known_pages import known_pages
from vmplace.agent.heat_strip import heat_strips
from vmplace.model.pages import GuestPages


def test_a_strip_tells_hot_cold_and_absent_parts_apart():
    (sample,) = batch(guest("db1")).ranges
    quarter = sample.ram.npages // 4
    heat = np.repeat(np.array([255, 0, 255, 0], np.uint8), quarter)
    nodes = np.repeat(np.array([0, 1, -1, 1], np.int8), quarter)
    pages = GuestPages("db1", (0, 5), 1, (known_pages(sample.ram, heat, nodes, sample.huge),))
    (strip,) = heat_strips(pages, cells=4)
    assert strip.heat == (1.0, 0.0, None, 0.0)
    assert strip.nid == (0, 5, None, 5)
    assert strip.pages_by_node == {0: quarter, 5: 2 * quarter}
