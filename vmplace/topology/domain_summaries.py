"""How do placement summaries get into domains' metadata?  By a process that libvirt may hold up."""

import json
from collections.abc import Mapping

from vmplace.errors import UnsupportedHostError, VmplaceError
from vmplace.outside import printable
from vmplace.topology.domain_policy import PLACEMENT
from vmplace.topology.guests_libvirt import CURE, SYSTEM_URI, Question


class DomainSummaries:
    """Writes the live metadata of domains, all of a time at once."""

    def __init__(self, uri: str = SYSTEM_URI) -> None:
        self._uri = uri
        self._question: Question | None = None

    def is_busy(self) -> bool:
        """Tell whether the last texts are still being written; raises VmplaceError if they could not be."""
        if self._question is None:
            return False
        try:
            self.finish(0.0)
        except TimeoutError:
            return True
        return False

    def write(self, texts: Mapping[str, str]) -> None:
        """Begin to write texts by UUID; an empty one is taken out.  Raises UnsupportedHostError."""
        elements = {
            uuid: f"<placement xmlns='{PLACEMENT}'>{text}</placement>" if text else ""
            for uuid, text in texts.items()
        }
        self._question = Question(self._uri, "summaries", PLACEMENT, text=json.dumps(elements))

    def finish(self, patience_s: float) -> None:
        """Wait until all is written.

        Raises TimeoutError while it is not, VmplaceError if it cannot be.
        """
        question = self._question
        if question is None:
            return
        try:
            reported = question.result(patience_s).text
        except TimeoutError:
            raise
        except VmplaceError:
            self._question = None
            raise
        self._question = None
        if reported:
            raise UnsupportedHostError(f"placement summaries: {printable(reported, 300)}", hint=CURE)

    def close(self) -> None:
        """Give up what is being written."""
        if self._question is not None:
            self._question.kill()
            self._question = None
