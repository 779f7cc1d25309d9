"""Is a plan of whole pages better than what is there, or only in the fractions that it was made of?

1. The descent mixes placements in any proportion; pages follow one or the other (``descent.rounded``).  Of
   guests with few pages, or beside a controller that is nearly full, that may cost more than the gain.
2. So the plan as it is rounded is solved for, with what it pays.  If it gains nothing, it is tried for the
   half of the guests that gain most, and so on.  What gains nothing stays: else each window would undo what
   the one before did.

Example: two pages of a guest are alike, and one is on each node.  To swap them gains nothing.

>>> from vmplace.model.described_memory import described_memory
>>> from vmplace.policy.host_view import GuestEvidence
>>> distances, mib_per_s = np.array([[10.0, 20.0], [20.0, 10.0]]), np.array([[2e3, 1e3], [1e3, 2e3]])
>>> system = described_memory((0, 1), distances, mib_per_s, np.ones(2))
>>> guest = GuestEvidence(
...     name="db", heat=np.array([[9.0, 9.0], [8.0, 8.0]]), written=np.ones(2, bool),
...     node=np.array([0, 1], np.int8), worker=np.ones(2, bool), windows=np.ones(2, np.int64),
...     read_ratio=0.5, parallelism=2.0, think_ns=50.0, mlp=2.5,
... )
>>> task = PageTask(guest, replicable=np.zeros(2, bool), move_price=np.full(2, 10.0))
>>> worthwhile(system, [task], [np.array([1, 0], np.int8)])[0].tolist()
[0, 1]
"""

from collections.abc import Sequence

import numpy as np

from vmplace.model.memory_system import MemorySystem, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import NodeIndexes, demand
from vmplace.policy.page_task import PageTask


def worthwhile(
    system: MemorySystem, tasks: Sequence[PageTask], plans: Sequence[NodeIndexes]
) -> list[NodeIndexes]:
    """Return the plans of all guests, or of those that gain most by them, whose rises are below 0 together.

    A guest's rise is by how much its time grows, moves and copies included, as a share of its time now; it
    counts by the guest's weight in the descent.
    """
    here = [task.guest.node for task in tasks]
    changed = [n for n, plan in enumerate(plans) if not np.array_equal(plan, here[n])]
    now = _times(system, tasks, here)
    tried = list(plans)
    while changed:
        rises = _rises(system, tasks, tried, now)
        if float(rises.sum()) < 0:
            return tried
        # With fewer there is less to be rounded: of hundreds, one may gain what the others lose.
        changed = sorted(changed, key=lambda n: float(rises[n]))[: len(changed) // 2]
        tried = [plans[n] if n in changed else here[n] for n in range(len(plans))]
    return here


def _rises(
    system: MemorySystem, tasks: Sequence[PageTask], plans: Sequence[NodeIndexes], now: Matrix
) -> Matrix:
    """Return each guest's rise by the plans, times its weight."""
    accesses = np.array([max(float(task.traffic(task.guest.node).sum()), 1e-300) for task in tasks])
    vcpus = np.array([task.guest.mlp * task.guest.parallelism for task in tasks])
    prices = np.array([task.price_of_way(system, plan) for task, plan in zip(tasks, plans, strict=True)])
    then = _times(system, tasks, plans, 1 / now) + prices / (vcpus * accesses)
    rises: Matrix = np.array([task.importance for task in tasks]) * vcpus * (then - now) / now
    return rises


def _times(
    system: MemorySystem,
    tasks: Sequence[PageTask],
    places: Sequence[NodeIndexes],
    guess: Matrix | None = None,
) -> Matrix:
    """Return the time of an access of each guest's vCPUs together; ``guess``: their rates, nearly."""
    traffics = [task.traffic(one) for task, one in zip(tasks, places, strict=True)]
    times: Matrix = 1 / solved(system, demand(tuple(task.guest for task in tasks), traffics), guess).rates
    return times
