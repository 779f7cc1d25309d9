"""What does it mean that something in the emulated host took too long?"""

from lab.errors import LabTimeoutError, TooSlowError
from lab.scenario_observe import too_slow_for

TIMEOUT = LabTimeoutError("in the emulated host: virsh list took over 120 s")


def test_on_a_machine_that_was_mostly_others_nothing_is_judged():
    verdict = too_slow_for(TIMEOUT, 0.4)
    assert isinstance(verdict, TooSlowError)
    assert "others used 60% of it" in str(verdict) and "virsh list took over 120 s" in str(verdict)


def test_on_a_free_machine_it_hangs():
    assert too_slow_for(TIMEOUT, 0.9) is TIMEOUT
