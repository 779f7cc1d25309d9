"""A test in the emulated host gets one more try.

Now and then emulation loses a nested guest (docs/lab.md).  Every rerun is in the summary (-ra); a rule
that is broken fails twice.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, but for those that say themselves how often they are tried."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("flaky") is None:
            item.add_marker(pytest.mark.flaky(reruns=1))
