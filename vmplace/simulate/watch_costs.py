"""What does it cost a guest to be watched?  Of vCPUs, in ns; assumed, not measured (docs/simulate.md)."""

SET_BIT_NS = 50.0
"""The page walk that sets an accessed bit."""
SAMPLE_NS = 2000.0
"""The interrupt of a sample."""
HINT_FAULT_NS = 1500.0
"""The fault on a page that was unmapped to see who touches it."""
