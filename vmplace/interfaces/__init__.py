"""How people and machines see the agent and command it."""
