"""The agent: wires topology, sampling, model, policy and actuation into one loop."""
