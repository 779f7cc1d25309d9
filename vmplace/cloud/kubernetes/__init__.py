"""Kubernetes: labels of the node by Node Feature Discovery."""
