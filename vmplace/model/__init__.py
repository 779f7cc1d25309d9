"""What the samples mean.  Pure: no I/O, no clock."""
