"""Many hosts at once: sweeps over recordings, their summary, and a model of a fleet in virtual time."""
