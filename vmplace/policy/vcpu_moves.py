"""What becomes of a guest's heat by node when its vCPUs move: it goes where they go."""

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Indexes


def vcpu_shift(before: Indexes, after: Indexes, nodes: int) -> Matrix:
    """Return which share of each node's vCPUs runs on each other node then: rows sum to 1."""
    moved = np.zeros((nodes, nodes))
    np.add.at(moved, (before, after), 1.0)
    total = moved.sum(axis=1, keepdims=True)
    shares: Matrix = np.where(total > 0, moved / np.maximum(total, 1.0), np.eye(nodes))
    return shares
