"""The pure step alone: where the CPU time of a message's life goes."""

from __future__ import annotations

import time
from typing import Any

from ..protocol import commands as c
from ..protocol import wire
from ..protocol.ids import format_ranges
from ..protocol.messages import PublishHeader, Records, encode_publish_header
from ..protocol.outputs import Deliveries
from ..state import Batch, DictStore, step

PAYLOAD = b"x" * 1000


def _commands(*given: c.Command) -> Records:
    n = len(given)
    values: list[bytes | None] = [c.encode_command(g) for g in given]
    return Records(
        ["default.commands"] * n, [0] * n, list(range(n)), [0] * n, [None] * n, values,
        [None] * n, [None] * n,
    )  # fmt: skip


def publishes(first: int, n: int) -> Records:
    """Records of one producer, from sequence ``first`` on."""
    metas: list[bytes | None] = [
        encode_publish_header(PublishHeader(to="orders", producer="bench", seq=first + i))
        for i in range(n)
    ]
    return Records(
        ["default.publish"] * n, [0] * n, list(range(first, first + n)), [0] * n, [None] * n,
        [PAYLOAD] * n, metas, [None] * n,
    )  # fmt: skip


def run(messages: int, batch: int) -> list[dict[str, Any]]:
    """µs of CPU per message in each part of its life."""
    store = DictStore()
    definition = {
        "name": "orders", "message_type": "binary", "max_per_subscription_backlog": batch,
        "max_delivered_unacked_per_flow": batch,
    }  # fmt: skip
    inbox = c.Inbox("default.deliveries")
    subscribe = c.Subscribe(
        queue="orders", subscription="s", inbox=inbox, max_backlog=batch, framing="batch"
    )
    step(store, Batch(_commands(c.Define(definition=definition), subscribe)), 1)
    spent = {"publish_deliver_us": 0.0, "encode_us": 0.0, "ack_us": 0.0}
    for start in range(1, messages + 1, batch):
        records = publishes(start, batch)
        t0 = time.process_time()
        outputs = step(store, Batch(publishes=records), start)
        t1 = time.process_time()
        list(wire.encode(outputs))
        t2 = time.process_time()
        ids = [i for o in outputs if isinstance(o, Deliveries) for i in o.ids]
        ack = _commands(c.Ack(queue="orders", subscription="s", ids=format_ranges(ids)))
        t3 = time.process_time()
        list(wire.encode(step(store, Batch(commands=ack), start)))
        t4 = time.process_time()
        spent["publish_deliver_us"] += t1 - t0
        spent["encode_us"] += t2 - t1
        spent["ack_us"] += t4 - t3
    per = {k: v / messages * 1e6 for k, v in spent.items()}
    return [{"messages": messages, "batch": batch, **per, "life_us": sum(per.values())}]
