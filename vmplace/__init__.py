"""vmplace: the placement manager of a KVM host (docs/how-it-works.md is the map)."""

__version__ = "0.1.0"
