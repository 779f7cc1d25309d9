"""Which pages of a guest have copies, as far as KVM tells?

KVM drops copies of pages that are written, or when memory is short, and tells how many, but not which.  Then
all are in doubt, and are asked for again, some at a time.  Meanwhile those in doubt count as there, if
as many copies are left as would take at least half of them.
"""

from vmplace.model.copied_pages import CopiedPages
from vmplace.sampling.page_set import NO_PAGES, PageSet

MOST_DOUBTED = 1 << 16
"""Pages with copies that are asked for again at once: some 10 ms."""


class ReplicatedPages:
    """The pages of one guest that were given copies; ``nids``: on which nodes, all of them."""

    def __init__(self) -> None:
        self.nids: tuple[int, ...] = ()
        self.pages = self._doubted = NO_PAGES
        self._dropped = 0
        self._known: tuple[PageSet, PageSet, CopiedPages] | None = None

    def note(self, tried: PageSet, done: PageSet) -> int:
        """Note which of the pages that were tried have copies; return how many had none before."""
        new = done - self.pages
        self.pages = (self.pages - (tried - done)) | new
        self._doubted -= tried
        return len(new)

    def take(self, pages: PageSet) -> PageSet:
        """Forget those of ``pages`` that have copies, and return them."""
        taken = self.pages & pages
        self.pages, self._doubted = self.pages - taken, self._doubted - taken
        return taken

    def note_drops(self, dropped: int) -> None:
        """Doubt all pages, if KVM has dropped copies since it was asked; ``dropped``: so many, ever."""
        if dropped != self._dropped:
            self._doubted, self._dropped = self.pages, dropped

    def to_ask(self, wanted: PageSet) -> tuple[PageSet, PageSet]:
        """Return which of the pages have no copies, and which of those in doubt to ask for again."""
        return wanted - self.pages, (wanted & self._doubted).first(MOST_DOUBTED)

    def there(self, present: int) -> CopiedPages:
        """Return which pages have copies; ``present``: how many copies KVM counts, on all nodes."""
        sure, held = len(self.pages) - len(self._doubted), present / max(len(self.nids) - 1, 1)
        doubted = NO_PAGES if held >= sure + len(self._doubted) / 2 else self._doubted
        pages = self.pages if held >= sure / 2 else NO_PAGES
        known = self._known
        if known is None or known[0] is not pages or known[1] is not doubted or known[2].nids != self.nids:
            self._known = known = pages, doubted, CopiedPages(pages - doubted, self.nids)
        return known[2]
