"""The life of a message in a queue, as one literal table. The diagram in `docs/` is made from it.

A message is *ready*, *leased*, *delayed*, or gone. Each row: state before, what happens, state
after, the journal's event, the rule. `GONE` is the state of a row that holds no message.
"""

from __future__ import annotations

GONE, READY, LEASED, DELAYED = 0, 1, 2, 3
NAMES = {GONE: "gone", READY: "ready", LEASED: "leased", DELAYED: "delayed"}

TRANSITIONS: tuple[tuple[str, str, str, str, str], ...] = (
    ("new", "taken in", "ready", "spooled", "S1"),
    ("new", "taken in, due later", "delayed", "spooled", "L12"),
    ("new", "acknowledged before it came", "gone", "acknowledged", "L9"),
    ("ready", "sent to a subscription", "leased", "delivered", "L3"),
    ("ready", "sent again", "leased", "redelivered", "L7"),
    ("ready", "sent at most once", "gone", "acknowledged", "L2"),
    ("ready", "barrier sent to all", "gone", "barrier_delivered", "O3"),
    ("ready", "acknowledged unleased", "gone", "acknowledged", "L8"),
    ("ready", "time to live over", "gone", "expired", "X1"),
    ("ready", "purged", "gone", "purged", "R6"),
    ("ready", "replaced by the next, quota 0", "gone", "replaced", "S10"),
    ("ready", "redriven from a dead message queue", "gone", "redriven", "X6"),
    ("leased", "acknowledged", "gone", "acknowledged", "L1"),
    ("leased", "lease ended", "ready", "lease_ended", "L4"),
    ("leased", "lease extended", "leased", "renewed", "L10"),
    ("leased", "consumer gone", "ready", "returned", "L1"),
    ("leased", "canceled", "ready", "canceled", "L6"),
    ("leased", "canceled with a delay", "delayed", "canceled", "L11"),
    ("leased", "canceled too often", "gone", "expired", "L6"),
    ("leased", "would return, delivered too often", "gone", "expired", "L5"),
    ("leased", "rejected", "gone", "consumer_rejected", "C7"),
    ("leased", "time to live over", "gone", "expired", "X3"),
    ("leased", "purged", "gone", "purged", "R6"),
    ("leased", "replaced by the next, quota 0", "gone", "replaced", "S10"),
    ("delayed", "due", "ready", "ready", "L11"),
    ("delayed", "acknowledged unleased", "gone", "acknowledged", "L8"),
    ("delayed", "time to live over", "gone", "expired", "X1"),
    ("delayed", "purged", "gone", "purged", "R6"),
    ("delayed", "redriven from a dead message queue", "gone", "redriven", "X6"),
    ("delayed", "replaced by the next, quota 0", "gone", "replaced", "S10"),
)
