"""A queue used with only a Kafka client.

    python examples/plain_kafka.py 127.0.0.1:9092 orders

Describes the queue, creates the queue's underlying topic if it does not exist, subscribes,
publishes messages to that topic without any header, reads the deliveries, acknowledges them, and
describes the queue again. `lakequeue` is not imported: docs/reference/protocol.md describes all of
this. Exit status 0 if every message was delivered and acknowledged, else 1 with a sentence. Needs
`pip install kafka-python`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError

HEARTBEAT_S = 4.0  # the engine ends a session after 15 s without one (heartbeat_timeout)


class Failed(Exception):
    """The example failed; the text has the reason."""


class Client:
    """One session with the engine: an inbox to read from, commands to write."""

    def __init__(self, bootstrap: str, vpn: str, timeout: float) -> None:
        self.bootstrap = bootstrap
        self.deadline = time.monotonic() + timeout
        self.session = f"plain-{uuid.uuid4().hex[:8]}"
        self.commands = f"{vpn}.commands"
        self.inbox = {"topic": f"{vpn}.deliveries", "partition": 0}
        self.replies: dict[str, dict] = {}
        self.deliveries: list = []
        self._heartbeat_at = 0.0
        self.producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
        self.consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        place = TopicPartition(self.inbox["topic"], self.inbox["partition"])
        self.consumer.assign([place])
        # The inbox is shared and has old records: start at its end, before any request is sent.
        self.consumer.seek(place, self.consumer.end_offsets([place])[place])

    def make(self, topic: str) -> None:
        """Create a topic if it does not exist. The engine finds it within 10 s, and reads all of
        it."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            if topic not in admin.list_topics():
                admin.create_topics([NewTopic(topic, 1, -1)])
        finally:
            admin.close()

    def publish(self, topic: str, value: bytes) -> None:
        """A plain record: no key, no header. Returns when Kafka has it."""
        self.producer.send(topic, value).get(timeout=self._left())

    def command(self, **fields: object) -> None:
        """One command: a JSON object. The key keeps a session's commands in their order."""
        value = json.dumps(fields).encode()
        self.producer.send(self.commands, value, key=self.session.encode()).get(
            timeout=self._left()
        )

    def ask(self, **fields: object) -> Any:
        """Send a command with `reply`; returns its answer."""
        request = f"{self.session}-{uuid.uuid4().hex[:8]}"
        self.command(**fields, reply={**self.inbox, "request": request})
        while request not in self.replies:
            self.poll(f"an answer to {fields['command']!r}")
        answer = self.replies.pop(request)
        if answer["error"] is not None:
            raise Failed(f"the engine refused {fields['command']!r}: {answer['error']}")
        return answer["result"]

    def poll(self, what: str) -> None:
        """Read new records of the inbox: replies and deliveries of this session."""
        self._left(what)
        if time.monotonic() >= self._heartbeat_at:
            self._heartbeat_at = time.monotonic() + HEARTBEAT_S
            self.command(command="heartbeat", session=self.session)
        for records in self.consumer.poll(timeout_ms=500).values():
            for record in records:
                headers = dict(record.headers)
                name = (record.key or b"").decode(errors="replace")
                if headers.get("lq-framing") == b"reply":
                    self.replies[name] = json.loads(record.value)
                elif name == self.session and "lq-id" in headers:
                    self.deliveries.append((headers, record.value))

    def close(self) -> None:
        """End the session; its leased messages return to the queue."""
        try:
            self.command(command="bye", session=self.session)
        finally:
            self.producer.close()
            self.consumer.close()

    def _left(self, what: str = "Kafka") -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Failed(f"waited in vain for {what}; is the engine running?")
        return left


def receive(client: Client, queue: str, wanted: set[bytes]) -> None:
    """Acknowledge deliveries until each of our messages has arrived."""
    missing = set(wanted)
    seen: set[bytes] = set()
    while missing:
        client.poll(f"{len(missing)} deliveries")
        numbers, epoch = [], 0
        for headers, value in client.deliveries:
            delivery = headers["lq-delivery"]
            if delivery in seen:  # a repeated step writes the same delivery again
                continue
            seen.add(delivery)
            epoch = int(headers["lq-epoch"])
            number = headers["lq-id"].decode()
            print(
                f"delivered   id {number}, delivery {headers['lq-delivery-count'].decode()}, "
                f"redelivered {headers['lq-redelivered'].decode()}: {(value or b'').decode()}"
            )
            numbers.append(number)
            missing.discard(value)
        client.deliveries.clear()
        if numbers:
            ids = ",".join(numbers)
            client.command(
                command="ack", queue=queue, subscription=client.session, ids=ids, epoch=epoch
            )  # ids belong to one epoch of the engine
            print(f"acked       {ids}")


def run(client: Client, queue: str, count: int) -> None:
    """Run the whole example."""
    before = client.ask(command="describe", queue=queue)
    definition = before["definition"]
    topic = definition["default_publish_target"]
    print(f"queue       {queue}, fed by topic {topic}, {before['depth']} messages in it")
    run_id = uuid.uuid4().hex
    # Only this run's messages if the queue can read payloads; otherwise all messages.
    mine = f"/run = '{run_id}'" if definition["message_type"] == "json" else None
    client.ask(
        command="subscribe", queue=queue, subscription=client.session, session=client.session,
        name="plain-kafka-example", inbox=client.inbox, framing="single", max_backlog=10,
        filter=mine,
    )  # fmt: skip
    print(f"subscribed  {client.session}, inbox {client.inbox}")
    client.make(topic)
    payloads = {json.dumps({"run": run_id, "n": n}).encode() for n in range(count)}
    for payload in sorted(payloads):
        client.publish(topic, payload)
    print(f"published   {count} records to {topic}, no header")
    receive(client, queue, payloads)
    after = client.ask(command="describe", queue=queue)
    held = [c["held"] for c in after["consumers"] if c["subscription"] == client.session]
    gone = after["counters"]["acknowledged"] - before["counters"]["acknowledged"]
    print(f"described   {after['depth']} messages in it, {gone} acknowledged since the start")
    if held != [0] or gone < count:
        raise Failed(f"{count} messages were acknowledged; the engine counts {gone}, {held} leased")
    client.command(command="unsubscribe", queue=queue, subscription=client.session)


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments, run, and print the error if there is one."""
    parser = argparse.ArgumentParser(description="A queue used with a plain Kafka client.")
    parser.add_argument("bootstrap", help="Kafka's address, such as 127.0.0.1:9092")
    parser.add_argument("queue", help="a queue that is defined, such as orders")
    parser.add_argument("--vpn", default="default", help="the message VPN (default: default)")
    parser.add_argument("--count", type=int, default=3, help="messages to send (default: 3)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds in all (default: 60)")
    options = parser.parse_args(arguments)
    try:
        client = Client(options.bootstrap, options.vpn, options.timeout)
        try:
            run(client, options.queue, options.count)
        finally:
            client.close()
    except (Failed, KafkaError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print("done        every message was delivered and acknowledged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
