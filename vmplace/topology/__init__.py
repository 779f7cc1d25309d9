"""What host and guests are: nodes, distances, vCPUs, RAM layout.  Reads, changes nothing."""

from vmplace.topology.sysfs import read_host

__all__ = ["read_host"]
