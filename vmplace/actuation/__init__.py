"""Carry out plans, within a budget and with a journal: the only stage that changes placement."""
