"""What does numad's log say that it did?  On lines as numad 0.5 of Debian writes them."""

from lab.scenario_managers import notes_of_numad

LOG = """\
Tue Nov 24 10:02:11 2026: Changing THP scan time in /sys/kernel/mm/transparent_hugepage/khugepaged to 1000 ms.
Tue Nov 24 10:02:11 2026: Nodes: 4
Tue Nov 24 10:02:16 2026: Advising pid 453 (qemu-system-x86) move from nodes (0-3) to nodes (2)
Tue Nov 24 10:02:16 2026: Bad sched_setaffinity() on PID 453, TID 467 -- errno: 22
Tue Nov 24 10:02:16 2026: Bad sched_setaffinity() on PID 453, TID 468 -- errno: 22
"""


def test_moves_and_refusals_are_told():
    assert notes_of_numad(LOG) == (
        "it moved process 453 from nodes 0-3 to 2",
        "2 of its changes of affinity were refused",
    )


def test_a_daemon_that_let_all_be_did_not_act():
    assert notes_of_numad("\n".join(LOG.splitlines()[:2])) == ("it did not act",)
