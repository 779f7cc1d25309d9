"""What clouds learn, and answer: processes of their own beside the agent, each an extra of the package."""
