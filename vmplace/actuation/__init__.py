"""Make it so, within a budget, with a journal: the only stage that changes placement."""
