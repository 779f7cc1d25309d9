"""Sharing among vCPUs, from declared accesses to parts of memory."""

import numpy as np

from vmplace.model.vcpu_sharing import vcpu_sharing


def test_vcpus_share_what_both_touch() -> None:
    sharing = vcpu_sharing(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]))
    assert sharing[0, 1] == sharing[1, 0] == 0.5
    assert not sharing[2].any() and not np.diag(sharing).any()


def test_vcpus_that_use_different_parts_share_nothing() -> None:
    assert not vcpu_sharing(np.eye(3)).any()
