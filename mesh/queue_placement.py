"""Counts over all queues that placing a new one needs (M1), kept up to date."""

from __future__ import annotations

from collections import Counter

from .facts import Entry, MeshFacts


class QueuePlacement:
    """loads: how many queues with one host each broker has; dying: the names of queues by VPN and
    dead message queue."""

    def __init__(self, facts: MeshFacts) -> None:
        self.loads: Counter[int] = Counter()
        self.dying: dict[tuple[str, str], set[str]] = {}
        for vpn, entries in facts.entries.items():
            for name, entry in entries.items():
                self.change(vpn, name, None, entry)

    def change(self, vpn: str, name: str, before: Entry | None, after: Entry | None) -> None:
        """Update the counts for a queue's change. None: it did not exist, or was deleted."""
        for entry, n in ((before, -1), (after, 1)):
            if entry is None or entry.bridge is not None:
                continue
            if len(entry.hosts) == 1:
                self.loads[entry.hosts[0]] += n
            target = entry.definition.dead_message_queue
            if target and n > 0:
                self.dying.setdefault((vpn, target), set()).add(name)
            elif target:
                self.dying[vpn, target].discard(name)
