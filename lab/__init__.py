"""The lab: an emulated NUMA host that boots in seconds (docs/lab.md)."""
