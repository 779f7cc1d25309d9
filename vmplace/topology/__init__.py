"""What host and guests are: nodes, distances, vCPUs, RAM layout.  Reads, changes nothing."""
