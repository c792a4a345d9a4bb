"""Queues that do not move, each for its own reason, in an engine in memory.

One engine has them all; a queue's name is the reason's code. `prepare` brings each case about and
returns the objects that must stay alive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import lakequeue

Prepare = Callable[[Any, str], Any]


@dataclass(frozen=True)
class Case:
    """code: of the reason, and the queue's name; keys: of its definition; text: the expected
    explanation."""

    code: str
    keys: dict[str, Any]
    prepare: Prepare
    text: str
    stuck: bool = True


def send(connection: Any, queue: str, *bodies: dict[str, Any], **options: Any) -> list[str]:
    producer = connection.producer()
    sent = [
        producer.send(queue, json.dumps(body).encode(), **options).message_id for body in bodies
    ]
    producer.close()
    return sent


def consumer(connection: Any, queue: str, name: str, backlog: int = 1, **options: Any) -> Any:
    """A consumer whose subscription has the client's name."""
    client = lakequeue.connect(connection.case_url, client_name=name)
    own = client.consumer(queue, max_backlog=backlog, ack_mode="individual", **options)
    return client, own


def egress(connection: Any, queue: str) -> Any:
    send(connection, queue, {"n": 1}, {"n": 2})
    connection.admin().shutdown(queue, egress=True)


def no_consumer(connection: Any, queue: str) -> Any:
    send(connection, queue, {"n": 1})


def queue_backlog(connection: Any, queue: str) -> Any:
    kept = [consumer(connection, queue, f"worker-{n}", 5) for n in (1, 2)]
    send(connection, queue, *({"n": n} for n in range(5)))
    return kept


def backlog(connection: Any, queue: str) -> Any:
    kept = [consumer(connection, queue, "worker-1", 2), consumer(connection, queue, "worker-2", 1)]
    send(connection, queue, *({"n": n} for n in range(6)))
    return kept


def barrier(connection: Any, queue: str) -> Any:
    kept = [consumer(connection, queue, "worker-2", 10)]
    send(connection, queue, {"n": 1}, {"n": 2}, {"n": 3})
    send(connection, queue, {"n": 4}, deliver_at=connection.now() + timedelta(minutes=5))
    send(connection, queue, {"sync": 1}, {"n": 5})
    return kept


def key_busy(connection: Any, queue: str) -> Any:
    kept = [consumer(connection, queue, "worker-3", 10)]
    send(connection, queue, {"customer": "c-7"}, {"customer": "c-7"}, {"customer": "c-7"})
    return kept


def no_match(connection: Any, queue: str) -> Any:
    kept = [consumer(connection, queue, "rich", 10, filter="/price > 100")]
    send(connection, queue, {"price": 5}, {"price": 7})
    return kept


def barrier_filter(connection: Any, queue: str) -> Any:
    kept = [consumer(connection, queue, "rich", 10, filter="/price > 100")]
    send(connection, queue, {"sync": 1}, {"price": 101})
    return kept


def delayed(connection: Any, queue: str) -> Any:
    send(connection, queue, {"n": 1}, deliver_at=connection.now() + timedelta(hours=4))
    send(connection, queue, {"n": 2}, deliver_at=connection.now() + timedelta(minutes=10))


def held(connection: Any, queue: str) -> Any:
    kept = [consumer(connection, queue, "worker-4", 10)]
    send(connection, queue, {"n": 1}, {"n": 2}, {"n": 3})
    return kept


def per_flow(connection: Any, queue: str) -> Any:
    kept = [consumer(connection, queue, "worker-5", 10)]
    send(connection, queue, *({"n": n} for n in range(4)))
    return kept


CASES = (
    Case("egress", {}, egress,
         "Egress is shut down: 2 messages wait until it is opened "
         "(lakequeue shutdown egress --open-egress)."),
    Case("no_consumer", {}, no_consumer, "No consumer is subscribed: 1 message waits for one."),
    Case("queue_backlog", {"max_backlog": 3}, queue_backlog,
         "The backlog of the queue is full: consumers hold 3 of max_backlog 3 "
         "(worker-1 holds 2, worker-2 holds 1). An ack makes room."),
    Case("backlog", {}, backlog,
         "The backlog of every consumer is full: worker-1 holds 2 of 2, worker-2 holds 1 of 1. "
         "An ack makes room."),
    Case("barrier", {"barrier_expression": "/sync = 1"}, barrier,
         "Barrier {4} waits for 4 messages before it: worker-2 holds 3, 1 is delayed, the last "
         "due in 5 min. Behind it 1 is ready."),
    Case("key_busy", {"partition_key": "/customer"}, key_busy,
         "The key (/customer) of each ready message is busy, and one message of a key is in "
         "progress at a time. key 'c-7': message {0} is with worker-3."),
    Case("filter", {}, no_match,
         "No filter of a consumer with room matches one of the ready messages: "
         "rich has /price > 100."),
    Case("barrier_filter", {"barrier_expression": "/sync = 1"}, barrier_filter,
         "Barrier {0} is next, and no consumer's filter matches it: rich has /price > 100."),
    Case("delayed", {}, delayed,
         "All 2 messages are delayed until they are due; the next one is due in 10 min.",
         stuck=False),
    Case("held", {"lease_period": "10m"}, held,
         "All 3 messages are with consumers: worker-4 holds 3. The next lease ends in 10 min.",
         stuck=False),
    Case("per_flow", {"max_delivered_unacked_per_flow": 2}, per_flow,
         "The backlog of every consumer is full: worker-5 holds 2 of 2. An ack makes room. The "
         "limit is the queue's max_delivered_unacked_per_flow."),
)  # fmt: skip


def prepared(url: str, cases: tuple[Case, ...] = CASES) -> Any:
    """A connection to an engine with all these cases; keep it."""
    base = {"message_type": "json", "max_per_subscription_backlog": 100}
    queues = [base | {"name": case.code} | case.keys for case in cases]
    connection = lakequeue.connect(url, config={"queues": queues})
    connection.case_url = url
    connection.case_kept = [case.prepare(connection, case.code) for case in cases]
    return connection
