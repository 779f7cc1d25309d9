"""Notes of a window: kept for status, logged when they are news."""

import pytest

from vmplace.agent.notes import Notes


def test_what_goes_wrong_in_two_windows_is_logged_once_and_again_after_a_good_one(
    caplog: pytest.LogCaptureFixture,
):
    notes = Notes()
    for trouble, logged in ((True, 1), (True, 1), (False, 1), (True, 2)):
        notes.renew("found")
        if trouble:
            notes.complain("it broke")
        assert notes.now == (("found", "it broke") if trouble else ("found",))
        assert len(caplog.records) == logged
