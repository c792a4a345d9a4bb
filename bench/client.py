"""The cost of the client alone: one Python process against a peer that only answers.

The peer is another process at the real topics. It acknowledges each message and sends prepared
deliveries. It keeps no state, so the bench measures the client.
"""

from __future__ import annotations

import os
import time
from typing import Any

import click

from ..client import connect
from ..client.kafka import LIBRARIES, LIBRARY_VARIABLE, open_kafka
from ..client.session.transport import Record, Transport
from ..protocol import commands as c
from ..protocol import topics, wire
from ..protocol.messages import HEADER, decode_publish_header
from ..protocol.outputs import Deliveries, Receipts, Reply
from ..streaming.kafka.topics_admin import ensure_topics
from .harness import BACKLOG, PAYLOAD, QUEUE, Say, broker, ready_processes
from .subcommands import messages

OPTIONS = (
    messages(100_000),
    click.Option(
        ["--library"], type=click.Choice(LIBRARIES), default=LIBRARIES[0], show_default=True
    ),
)
VPN = "default"
ROUNDS = 3


class _Peer:
    def __init__(self, address: str, library: str, partitions: dict[str, int]) -> None:
        self.transport: Transport = open_kafka(address, "peer", library)
        self._partitions = partitions
        self._answered: dict[str, int] = {}
        self._given = 0
        self.publishes = topics.topic(VPN, topics.PUBLISH)
        for name in (self.publishes, topics.topic(VPN, topics.COMMANDS)):
            for partition in range(partitions[name]):
                self.transport.listen(name, partition)

    def turn(self, messages: int) -> None:
        """Answer the records that have arrived; a new subscription gets this many messages."""
        last: dict[int, Record] = {}
        for record in self.transport.poll(0.05):
            if record.topic == self.publishes:
                last[record.partition] = record  # a producer's messages are in order
            else:
                self._command(c.decode_command(record.value or b""), messages)
        for record in last.values():
            header = decode_publish_header(dict(record.headers)[HEADER])
            first = self._answered.get(header.producer, 0) + 1
            newest = header.seq + max(header.count, 1) - 1
            self._answered[header.producer] = newest
            runs = [[first, newest - first + 1, first]]
            self._send(
                Receipts(
                    vpn=VPN, producer=header.producer, partition=header.reply, up_to=newest,
                    runs=runs, nacks=[],
                )
            )  # fmt: skip

    def _command(self, command: Any, messages: int) -> None:
        if command.reply is not None:
            result = {
                "removes_on_send": False, "heartbeat_timeout_ms": 15_000, "backlog": BACKLOG,
            }  # fmt: skip
            to = command.reply
            self._send(Reply(to.topic, to.partition, to.request, result))
        if isinstance(command, c.Subscribe):
            inbox = command.inbox
            for _ in range(0, messages, 1_000):
                ids = list(range(self._given + 1, self._given + 1_001))
                self._given += 1_000
                n = len(ids)
                self._send(
                    Deliveries(
                        queue=QUEUE, subscription=command.subscription, topic=inbox.topic,
                        partition=inbox.partition, framing="batch", lease_ms=0, barrier=False,
                        ids=ids, numbers=ids, counts=[1] * n, priorities=[4] * n, expires=[0] * n,
                        times=[1] * n, payloads=[PAYLOAD] * n, keys=[None] * n,
                        headers=[None] * n, dead={},
                    )
                )  # fmt: skip

    def _send(self, output: Any) -> None:
        for r in wire.encode([output], self._partitions):
            headers = wire.headers_list(r.headers)
            self.transport.publish(r.topic, r.value or b"", r.key, headers, r.partition)


def _serve(
    address: str, library: str, partitions: dict[str, int], messages: int, ready: Any
) -> None:
    peer = _Peer(address, library, partitions)
    ready.put("ready")
    while True:
        peer.turn(messages)


def run(messages: int, library: str, say: Say) -> list[dict[str, Any]]:
    """Messages a second, and CPU µs of this process per message; the best of three rounds."""
    os.environ[LIBRARY_VARIABLE] = library  # `connect` reads it
    with broker() as (kafka, _):
        address = kafka.bootstrap_servers
        partitions = ensure_topics(address, [VPN], [])
        (peer,), _ = ready_processes(_serve, (address, library, partitions, messages))
        try:
            sent, received = [], []
            for number in range(1, ROUNDS + 1):
                say(f"round {number} of {ROUNDS}")
                sent.append(_send(address, messages))
                received.append(_receive(address, messages))
        finally:
            peer.kill()
            peer.join()
    send_s, send_cpu_s = min(sent)
    receive_s, receive_cpu_s = min(received)
    return [
        {
            "library": library,
            "messages": messages,
            "send_msgs_s": messages / send_s,
            "send_us": send_cpu_s / messages * 1e6,
            "receive_ack_msgs_s": messages / receive_s,
            "receive_ack_us": receive_cpu_s / messages * 1e6,
        }
    ]


def _send(address: str, messages: int) -> tuple[float, float]:
    """From the first send until the last is acknowledged."""
    with connect(f"kafka://{address}") as connection:
        producer = connection.producer(window=messages)
        cpu, begin = time.process_time(), time.perf_counter()
        for _ in range(messages):
            producer.send_async(QUEUE, PAYLOAD)
        producer.flush(300)
        return time.perf_counter() - begin, time.process_time() - cpu


def _receive(address: str, messages: int) -> tuple[float, float]:
    """From the subscription until the last message is acknowledged on the wire."""
    with connect(f"kafka://{address}") as connection:
        cpu, begin = time.process_time(), time.perf_counter()
        consumer = connection.consumer(QUEUE, ack_mode="individual", max_backlog=BACKLOG)
        for _ in range(messages):
            message = consumer.receive(60)
            assert message is not None, "a message did not arrive"
            message.ack()
        consumer.send_acks()
        return time.perf_counter() - begin, time.process_time() - cpu
