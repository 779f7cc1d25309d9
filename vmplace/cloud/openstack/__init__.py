"""OpenStack: traits in Placement, Nova's provider.yaml, a strategy for Watcher."""
