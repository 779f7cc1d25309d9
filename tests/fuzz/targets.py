"""What is fed to whom: every reader of what comes from outside, as a function of bytes.

A target may raise VmplaceError and nothing else.  The targets stand by subject in files of their own.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.fuzz.file_targets import FILE_TARGETS
from tests.fuzz.guest_targets import GUEST_TARGETS
from tests.fuzz.order_targets import ORDER_TARGETS
from tests.fuzz.sample_targets import SAMPLE_TARGETS
from tests.fuzz.target import DATA, Target

TARGETS: Mapping[str, Target] = {**GUEST_TARGETS, **SAMPLE_TARGETS, **FILE_TARGETS, **ORDER_TARGETS}
"""By name: one row of the table that `make fuzz` prints."""


@cache
def corpus(name: str) -> Path:
    """Return the folder of inputs that are kept for a target."""
    return DATA / "fuzz" / name


def inputs(name: str) -> Iterator[bytes]:
    """Yield a target's seeds, then what fuzzing found and is kept."""
    yield from TARGETS[name].seeds()
    for path in sorted(corpus(name).glob("*")) if corpus(name).is_dir() else ():
        yield path.read_bytes()
