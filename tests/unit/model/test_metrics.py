"""The metrics mean what Carrefour (ASPLOS'13) section 2 and its table 1 say."""

from collections.abc import Sequence

import numpy as np
import pytest

from vmplace.model.metrics import TrafficMatrix, imbalance, link_imbalance, local_access_ratio, mc_imbalance


def traffic(*rows: Sequence[float], nids: tuple[int, ...] | None = None) -> TrafficMatrix:
    return TrafficMatrix(nids or tuple(range(len(rows))), np.array(rows, float))


def test_lar_counts_only_the_diagonal():
    assert local_access_ratio(traffic([30, 10], [20, 40])) == 0.7


def test_lar_is_undefined_without_accesses():
    assert local_access_ratio(traffic([0, 0], [0, 0])) is None


def test_all_load_on_one_of_four_controllers_is_200_percent():
    assert mc_imbalance(traffic(*[[0, 5, 0, 0]] * 4)) == pytest.approx(2.0)


def test_even_load_is_balanced():
    assert mc_imbalance(traffic([1, 1], [1, 1])) == 0


def test_imbalance_is_undefined_without_load():
    assert imbalance(np.zeros(4)) is None


def test_a_node_without_memory_is_no_idle_controller():
    assert mc_imbalance(traffic([1, 0, 1], [1, 0, 1], [0, 0, 0]), memory_nids=(0, 2)) == 0


def test_links_do_not_carry_local_traffic():
    assert link_imbalance(traffic([99, 1], [1, 5])) == 0


def test_traffic_of_other_nodes_is_not_added():
    with pytest.raises(ValueError, match="cannot be added"):
        traffic([1]) + traffic([1, 0], [0, 1])
