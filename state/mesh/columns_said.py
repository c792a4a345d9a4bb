"""Stored messages in columns, as one broker says them to another, and stored as they are heard.

A message keeps its id wherever it goes; what else is known of it goes with it (S1, X4, H4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...protocol.dead_letters import DeadLetters, GoBack
    from ...protocol.granting import Grant
    from ..broker import Broker
    from ..queue import Queue
    from ..storage import Array
    from ..storage.blocks import Content


def columns(
    broker: Broker, queue: Queue, seqs: Array, contents: list[Content]
) -> dict[str, list[Any]]:
    """What is said of messages whatever becomes of them. refs: our rows; ids: by which they are
    known."""
    spool, ids = broker.spool, queue.gather(seqs, "id")
    names = ("priority", "time", "ttl_ends", "dmq")
    priorities, times, ttl_ends, dmq = (one.tolist() for one in spool.columns(ids, *names))
    return {
        "refs": ids.tolist(), "ids": spool.origins(ids).tolist(),
        "payloads": [c[0] for c in contents], "keys": [c[1] for c in contents],
        "headers": [c[2] for c in contents], "sizes": queue.gather(seqs, "size").tolist(),
        "priorities": priorities, "times": times, "ttl_ends": ttl_ends,
        "dmq": [bool(one) for one in dmq],
    }  # fmt: skip


def stage(broker: Broker, queue: Queue, said: Grant | DeadLetters | GoBack, at: int) -> int:
    """Store one of them, for the next place of the queue; gives its row."""
    return broker.spool.stage(
        [said.payloads[at]], said.keys[at], said.headers[at], [said.sizes[at]], [said.times[at]],
        said.ttl_ends[at], said.priorities[at], said.dmq[at], queue.header.vpn_number,
        [(queue.number, queue.next_place())], origin=said.ids[at],
    )  # fmt: skip
