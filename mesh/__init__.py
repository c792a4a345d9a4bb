"""Brokers of one home that work together, each a client of its neighbours (M1–M6, Q5, H4)."""
