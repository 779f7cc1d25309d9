"""What ought to change.  Pure: one Snapshot of the whole host in, one PlacementPlan out."""
