"""Connections to clouds: processes of their own beside the agent, each an extra of the package."""
