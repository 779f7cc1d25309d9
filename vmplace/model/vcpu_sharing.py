"""How much do vCPUs share memory?

Two vCPUs share as much as both access the same parts of it, as kMAF counts it (PACT'14, section 3.4.1).
"""

import numpy as np

from vmplace.model.metrics import Matrix


def vcpu_sharing(use: Matrix) -> Matrix:
    """Return, of a use [S, V] of parts of memory, how much each two vCPUs access the same ones [V, V].

    Of a vCPU with itself: 0.
    """
    touched = use[use.any(axis=1)]
    share = touched / np.maximum(touched.sum(axis=1, keepdims=True), 1.0)
    matrix: Matrix = touched.T @ share
    return (matrix + matrix.T) / 2 * (1 - np.eye(use.shape[1]))
