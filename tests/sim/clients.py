"""Clients on the wire: producers, consumers, an administrator. They trust the engine's answers,
repeat what is not answered, and report their observations to the accounts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
from lakequeue.protocol import commands as c
from lakequeue.protocol import topics, wire
from lakequeue.protocol.ids import format_ranges
from lakequeue.protocol.messages import (
    HEADER,
    PublishHeader,
    encode_publish_header,
    encode_run,
)

from .accounts import Accounts, Seen, Sent, must
from .kafka import Kafka, Record
from .poison import POISONED_STORE

VPN = "default"
INBOX, RECEIPTS = topics.topic(VPN, topics.DELIVERIES), topics.topic(VPN, topics.RECEIPTS)


class Net:
    """The clients' records on their way to Kafka: some are lost, some come twice."""

    def __init__(self, kafka: Kafka, rng: random.Random) -> None:
        self.kafka, self.rng = kafka, rng
        self.lost = self.twice = 0.0

    def copies(self) -> int:
        chance = self.rng.random()
        return 0 if chance < self.lost else 2 if chance > 1 - self.twice else 1

    def command(self, broker: int, command: c.Command) -> int:
        """A command to a broker; returns how often it arrives. Clients' producers are idempotent,
        and `Returned` relies on it."""
        place = topics.topic(VPN, topics.COMMANDS), topics.commands_partition(broker)
        copies = min(self.copies(), 1 if isinstance(command, c.Returned) else 2)
        for _ in range(copies):
            self.kafka.append(place, c.encode_command(command))
        return copies


class Producer:
    """Sends to one broker, and reads its receipts in a partition of its own."""

    def __init__(self, name: str, broker: int, number: int, net: Net, accounts: Accounts) -> None:
        self.name, self.broker, self.number = name, broker, number
        self._net, self._accounts = net, accounts
        self._seq = self._read = 0
        self._last: tuple[tuple[str, int], bytes, PublishHeader] | None = None
        self._open: dict[int, tuple[tuple[str, int], bytes, PublishHeader]] = {}

    @property
    def waits(self) -> list[int]:
        return sorted(self._open)

    def send(self, to: str, n: int, rng: random.Random, **given: Any) -> None:
        """Send a message, or a run of messages."""
        count = rng.choice((1, 1, 1, 3))
        header = PublishHeader(
            to=to, producer=self.name, seq=self._seq + 1, reply=self.number,
            count=count if count > 1 else 0, **given,
        )  # fmt: skip
        payloads = []
        for at in range(count):
            self._seq += 1
            payload = {"p": self.name, "s": self._seq, "n": n + at, "k": (n + at) % 3}
            payloads.append(json.dumps(payload).encode() + b" " * rng.choice((0, 0, 30)))
            self._accounts.sent[self.name, self._seq] = Sent(
                to,
                n + at,
                "ttl_ms" in given or given.get("priority", 0) >= POISONED_STORE,
                "delay_ms" in given,
                at,
            )
        value = encode_run(payloads) if count > 1 else payloads[0]
        first = topics.publish_partitions(self.broker)[0]
        place = topics.topic(VPN, topics.PUBLISH), first + self.number % 2
        for seq in range(header.seq, header.seq + count):
            self._open[seq] = place, value, header
        self._last = place, value, header
        self._write(place, value, header)

    def send_again(self) -> None:
        """Repeat unanswered messages."""
        for header_seq in sorted({header.seq for _, _, header in self._open.values()}):
            self._write(*next(o for o in self._open.values() if o[2].seq == header_seq))

    def arrive_late(self) -> None:
        """The last record reaches Kafka once more, answered or not."""
        if self._last is not None:
            self._write(*self._last)

    def _write(self, place: tuple[str, int], value: bytes, header: PublishHeader) -> None:
        for _ in range(self._net.copies()):
            at = self._net.kafka.append(
                place, value, None, [(HEADER, encode_publish_header(header))]
            )
            for seq in range(header.seq, header.seq + max(header.count, 1)):
                self._accounts.sent[self.name, seq].copies.append((*place, at))

    def listen(self) -> None:
        """Read new receipts."""
        for record in self._net.kafka.read((RECEIPTS, self.number), self._read, 1000):
            self._read = record.at + 1
            told = json.loads(record.own_value or b"")
            must(told["producer"] == self.name, "a receipt of somebody else")
            said: set[int] = set()
            for first, count, number in told["runs"]:
                for n in range(count):
                    own = int(number) + n if int(number) else 0
                    if (self.name, first + n) in self._accounts.sent:
                        self._accounts.stored((self.name, first + n), own)
                    said.add(first + n)
            for one in told["discarded"]:
                self._accounts.sent[self.name, one["seq"]].discarded.add(one["queue"])
            for one in told["nacks"]:
                self._accounts.nacked((self.name, one["seq"]), one["reason"])
                said.add(one["seq"])
            for seq in said:
                self._open.pop(seq, None)


class Consumer:
    """One subscription of one session, under a new name after each restart."""

    def __init__(
        self, name: str, queue: str, broker: int, inbox: int, mode: str, rng: random.Random,
        net: Net, accounts: Accounts, where: str | None = None,
    ) -> None:  # fmt: skip
        self.name, self.queue, self.broker, self.inbox, self.mode = name, queue, broker, inbox, mode
        self._net, self._accounts = net, accounts
        self._starts = self._requests = self._read = self._flow = 0
        self.is_bound = self.is_gone = False
        self.held: dict[int, Seen] = {}
        self._asked: dict[str, str] = {}
        self.framing = rng.choice(("single", "batch"))
        self.confirms = mode != "none" and rng.random() < 0.3
        self.backlog = rng.choice((1, 2, 5))
        self.filter = where
        if where:
            accounts.loose.add(queue)
        self.bind()

    @property
    def subscription(self) -> str:
        return f"{'take-' if self.mode == 'none' else ''}{self.name}.{self._starts}"

    def _ask(self, what: str, make: Callable[[c.ReplyTo], c.Command]) -> None:
        self._requests += 1
        request = f"{self.name}/{self._requests}"
        self._asked[request] = what
        self._net.command(self.broker, make(c.ReplyTo(INBOX, self.inbox, request)))

    def bind(self) -> None:
        """Subscribe, or repeat the request."""
        self._ask(
            "subscribe",
            lambda reply: c.Subscribe(
                queue=self.queue, subscription=self.subscription, session=self.subscription,
                inbox=c.Inbox(INBOX, self.inbox), max_backlog=self.backlog, filter=self.filter,
                acks="none" if self.mode == "none" else "explicit", framing=self.framing,
                transport_acks=self.confirms, reply=reply,
            ),
        )  # fmt: skip

    def begin_again(self) -> None:
        """Restart under a new name: messages held under the old one are not ours."""
        self._starts += 1
        self._flow = 0
        self.is_bound = False
        self.held.clear()
        self.bind()

    def adjust(self, most: int | None) -> None:
        """Set the backlog; None: end the subscription under this name."""
        about = {"queue": self.queue, "subscription": self.subscription}
        if most is None:
            self._net.command(self.broker, c.Unsubscribe(**about))
            self.begin_again()
        else:
            self._net.command(self.broker, c.SetBacklog(**about, max_backlog=most))

    def beat(self) -> None:
        """Send a heartbeat, and read whether the broker knows the session."""
        if not self.is_bound:
            self.bind()
            return
        self._ask("beat", lambda reply: c.Heartbeat(session=self.subscription, reply=reply))

    def close(self) -> None:
        self._net.command(self.broker, c.Bye(session=self.subscription))
        self.is_gone = True

    def listen(self) -> int:
        """Read new deliveries; returns the number of messages."""
        found = 0
        for record in self._net.kafka.read((INBOX, self.inbox), self._read, 1000):
            self._read = record.at + 1
            headers = dict(record.own_headers or [])
            if headers.get(wire.FRAMING) == b"reply":
                self._answered(json.loads(record.own_value or b""))
            elif headers.get(wire.FRAMING) == b"batch":
                found += self._batch(record)
            else:
                found += self._single(record, headers)
        return found

    def _answered(self, told: dict[str, Any]) -> None:
        what = self._asked.pop(told["request"], None)
        if what == "subscribe":
            if told["error"] is None:
                self.is_bound = True
            elif told["kind"] == "Moved":
                self.broker = min(told["result"]["hosts"].values())
                self.begin_again()
            elif "no such queue" in told["error"]:
                self.is_gone = True
            else:
                self.begin_again()
        elif what == "beat" and told["result"] is False:
            self.begin_again()

    def _batch(self, record: Record) -> int:
        d = wire.decode_batch(record.own_value or b"")
        for at, number in enumerate(d.ids):
            self._got(d.queue, d.subscription, number, d.numbers[at], d.counts[at], d.payloads[at])
        if d.flow:
            self._arrived(d.subscription, d.flow[0], d.flow[1], len(d.ids))
        return len(d.ids)

    def _single(self, record: Record, headers: dict[str, bytes]) -> int:
        def number(name: str) -> int:
            return int(headers[name])

        queue, subscription = headers["lq-queue"].decode(), headers["lq-subscription"].decode()
        count, payload = number("lq-delivery-count"), record.own_value or b""
        must((count > 1) == (headers["lq-redelivered"] == b"true"), "redelivered says no truth")
        self._got(queue, subscription, number("lq-id"), number("lq-delivery"), count, payload)
        if "lq-flow" in headers:
            self._arrived(subscription, number("lq-flow-base"), number("lq-flow"), 1)
        return 1

    def _got(
        self, queue: str, subscription: str, number: int, delivery: int, count: int, payload: bytes
    ) -> None:
        body = json.loads(payload)
        seen = Seen(delivery, count, queue, number, (body["p"], body["s"]), subscription)
        is_new = self._accounts.delivered(seen, body)
        if is_new and subscription == self.subscription and self.mode != "none":
            self.held.pop(number, None)  # the order is that of receipt (L13)
            self.held[number] = seen
            if self.mode == "auto":
                self.settle("ack", [number])

    def _arrived(self, subscription: str, base: int, first: int, n: int) -> None:
        """Transport acks: everything up to a number of the flow has arrived (C1)."""
        if subscription != self.subscription:
            return
        self._flow = max(self._flow, base - 1)
        if first <= self._flow + 1:
            self._flow = max(self._flow, first + n - 1)
            self._net.command(self.broker, c.TransportAck(
                queue=self.queue, subscription=subscription, received=self._flow
            ))  # fmt: skip

    def settle(self, what: str, ids: list[int], delay: int | None = None) -> None:
        """Acknowledge, cancel, reject, renew or hand back messages that we hold."""
        if not ids:
            return
        a, place = self._accounts, {"queue": self.queue, "subscription": self.subscription}
        named = format_ranges(ids)
        command: c.Command
        if what in ("ack", "up_to"):
            if what == "up_to":
                a.happened.add("up_to")
                held, last = list(self.held), ids[-1]
                ids = held[: held.index(last) + 1]
                command = c.Ack(**place, up_to=str(last))  # type: ignore[arg-type]
            else:
                command = c.Ack(**place, ids=named)  # type: ignore[arg-type]
            a.acked.update((self.queue, one) for one in ids)
        elif what == "cancel":
            command = c.Cancel(**place, ids=named, delay_ms=delay)  # type: ignore[arg-type]
        elif what == "reject":
            a.rejected.update((self.queue, one) for one in ids)
            command = c.Reject(**place, ids=named)  # type: ignore[arg-type]
        elif what == "return":
            a.untouched.update((self.queue, one) for one in ids)
            a.loose.add(self.queue)
            command = c.Returned(**place, ids=named)  # type: ignore[arg-type]
        else:
            command = c.Renew(**place, ids=named)  # type: ignore[arg-type]
        self._net.command(self.broker, command)
        if what != "renew":
            for one in ids:
                self.held.pop(one, None)


class Admin:
    """Gives commands to brokers, and reads the answers. asked: the commands without one."""

    def __init__(self, inbox: int, net: Net) -> None:
        self.inbox, self._net = inbox, net
        self._requests = self._read = 0
        self.asked: dict[str, tuple[int, c.Command]] = {}

    def tell(self, broker: int, command: c.Command) -> str:
        """Give a command. Returns the name of its answer."""
        self._requests += 1
        request = f"admin/{self._requests}"
        reply = c.ReplyTo(INBOX, self.inbox, request)
        if self._net.command(broker, msgspec.structs.replace(command, reply=reply)):
            self.asked[request] = broker, command
        return request

    def listen(self) -> list[Any]:
        """The new results. The next part of a long one is requested."""
        found = []
        for record in self._net.kafka.read((INBOX, self.inbox), self._read, 1000):
            self._read = record.at + 1
            told = json.loads(record.own_value or b"")
            broker, command = self.asked.pop(told["request"], (0, None))
            more = told.get("more")
            if more is not None and command is not None:
                name = "after" if isinstance(command, c.Queues) else "start"
                self.tell(broker, msgspec.structs.replace(command, **{name: more}))
            found.append(told["result"])
        return found
