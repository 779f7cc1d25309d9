"""Times of the week."""

import pytest

from vmplace.policy.schedule import is_open, parse_stretch

MON, FRI, SAT, SUN = 0, 4, 5, 6
CASES = [
    ("22:00-06:00", MON, 22 * 60, True),
    ("22:00-06:00", MON, 6 * 60, False),
    ("Mon-Fri 22:00-06:00", SAT, 5 * 60, True),
    ("Mon-Fri 22:00-06:00", MON, 5 * 60, False),
    ("Fri 22:00-06:00", FRI, 23 * 60, True),
    ("Sat,Sun 00:00-24:00", SUN, 1439, True),
    ("Sat,Sun 00:00-24:00", MON, 0, False),
    ("Sat-Mon 08:00-09:00", SUN, 8 * 60 + 59, True),
    ("Sat-Mon 08:00-09:00", FRI, 8 * 60 + 59, False),
]


@pytest.mark.parametrize(("text", "day", "minute", "is_in"), CASES)
def test_a_minute_lies_in_a_stretch_or_not(text, day, minute, is_in):
    assert is_open((parse_stretch(text),), day, minute) is is_in


def test_without_stretches_every_minute_is_open():
    assert is_open((), MON, 0)


@pytest.mark.parametrize(
    "text", ["", "Mon", "8:00-9:00", "08:00-08:00", "24:00-01:00", "08:60-09:00", "mon 08:00-09:00"]
)
def test_what_is_no_stretch_is_refused(text):
    with pytest.raises(ValueError, match=r"time|minute"):
        parse_stretch(text)
