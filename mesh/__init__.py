"""The brokers of one home working together, each a client of the others (M1–M6, Q5, H4)."""
