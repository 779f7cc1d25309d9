"""Do node roots hold with Intel's page tables what they hold with AMD's?  The series' own tests, in Bochs."""

import pytest

from vmplace.lab.progress import Progress
from vmplace.lab.selftests_intel import run_selftests_on_intel

pytestmark = pytest.mark.lab


def test_harvests_are_exact_and_replicas_coherent_on_ept() -> None:
    run = run_selftests_on_intel(Progress(), "patched", only="placement_(harvest|replica)")
    assert run.results == {
        "x86_64/placement_harvest_test": "ok",
        "x86_64/placement_replica_test": "ok",
    }, run.said
    assert run.complaints == ()
