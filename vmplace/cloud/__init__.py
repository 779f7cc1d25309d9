"""What clouds are told, and tell: processes of their own beside the agent, each an extra of the package."""
