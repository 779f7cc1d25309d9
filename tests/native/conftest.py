"""The tests of the C core say nothing of how fast a machine is."""

import tests.any_machine  # noqa: F401
