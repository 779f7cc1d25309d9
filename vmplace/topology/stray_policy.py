"""Which element was meant for vmplace's policy, and is none?  Its guest is not one of which nothing was said.

Elements of other products that happen to be called ``policy`` are none of these.
"""

_PREFIX, _OURS, _OF_POLICIES = "vmplace", "urn:vmplace", "urn:vmplace:policy"


class StrayPolicies:
    """Tells them by their namespace and name, as expat has both, or by the prefix that they were given."""

    def __init__(self) -> None:
        self._prefixed: set[str] = set()

    def declare(self, prefix: str | None, space: str) -> None:
        """Take in that a prefix stands for a namespace, somewhere in the document."""
        if (prefix or "").lower() == _PREFIX:
            self._prefixed.add(space)

    def is_stray(self, name: str, *, is_alone: bool) -> bool:
        """Tell whether an element under ``<metadata>``, or the document itself, was meant for a policy."""
        space, _, word = name.rpartition(" ")
        is_ours = is_alone or space.lower().startswith(_OURS) or space in self._prefixed
        return space.lower().startswith(_OF_POLICIES) or (word.lower() == "policy" and is_ours)
