"""On which nodes are copies of a guest's pages that serve none of its vCPUs any more?

KVM gives further nodes copies, but takes them from none alone: a page keeps all copies, or loses them all.
So where vCPUs left a node for good all copies are dropped, and made again for the nodes that are left.  That
costs as much as to make them at first, so vCPUs have to stay away for some plans.
"""

MOST_AWAY = 4
"""Plans in a row that want no copies on a node that may have some, until all are dropped."""


class ServedNodes:
    """What is remembered of one guest: nodes that may have copies, as a bitmap."""

    def __init__(self) -> None:
        self._have = self._away = 0

    def note_copies(self, nodes: int) -> None:
        """Note which nodes may have copies now."""
        self._have |= nodes

    def useless(self, nodes: int) -> int:
        """Note on which nodes a plan wants copies; return those that should have none any more."""
        useless = self._have & ~nodes
        self._away = self._away + 1 if useless else 0
        return useless if self._away >= MOST_AWAY else 0

    def note_drop(self) -> None:
        """Note that no node has copies any more."""
        self._have = self._away = 0
