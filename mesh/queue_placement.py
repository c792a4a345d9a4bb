"""What placing a queue asks of all others (M1), without a look at each."""

from __future__ import annotations

from collections import Counter

from .facts import Entry, MeshFacts


class QueuePlacement:
    """How many queues that have one place each broker has, and the names of those with a dead
    message queue, by VPN and that."""

    def __init__(self, facts: MeshFacts) -> None:
        self.loads: Counter[int] = Counter()
        self.dying: dict[tuple[str, str], set[str]] = {}
        for vpn, entries in facts.entries.items():
            for name, entry in entries.items():
                self.change(vpn, name, None, entry)

    def change(self, vpn: str, name: str, before: Entry | None, after: Entry | None) -> None:
        """A queue is so now."""
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
