"""Passes records of `mutations` to the step in batches, as the job does, and keeps accounts.

Possible outcomes of a record: it was carried out, it was answered with an error, or it went to
``<vpn>.rejected``.
"""

import random
from collections import Counter
from typing import Any

import msgspec
from lakequeue.protocol import wire
from lakequeue.protocol.messages import Records
from lakequeue.protocol.outputs import Deadline, Receipts, RejectedRecord, Reply
from lakequeue.state import Batch, Broker, DictStore, Home, Limits, check, step
from model.batches import shortest

from .mutations import INBOX, QUEUES, Incoming, Mutator, encode

NOW = 1_700_000_000_000
RECORD_BYTES_MAX = 12 * 1024 * 1024
STEPS_MAX = 2_000
OF_THE_ENGINE = ("receipts", "journal", "rejected", "directory")
# Differences allowed between two refused commands: their counts, and their events.
ACCOUNTS = ("refused", "events")


class StepFailed(AssertionError):
    """A step raised; the cause is chained. Its text has the first of the fewest records that make
    it fail."""

    def __init__(self, records: list[Incoming]) -> None:
        shown = [(r.topic, (r.value or b"")[:300], (r.meta or b"")[:300]) for r in records[:3]]
        super().__init__(f"{len(records)} records: {shown}")


class Fuzz:
    """An engine under mutated records."""

    def __init__(self, seed: int, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.random = random.Random(seed)
        self.mutator = Mutator(seed)
        self.broker = Broker.load(DictStore(), Home(), self.limits)
        self.now = NOW
        self.offsets = 0
        self.counts: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        """Define the queues that all records are addressed to."""
        wide = {"max_per_subscription_backlog": 50, "message_type": "json"}
        for name in QUEUES:
            more: dict[str, Any] = {"orders": {"dead_message_queue": "dead"},
                                    "copies": {"underlying_topic": "orders", "filter": "/k = 1"},
                                    "keyed": {"priority": "/p"}}.get(name, {})  # fmt: skip
            definition = {"name": name, **wide, **more}
            self.hand_over([_command({"command": "define", "definition": definition})])
        for n in range(3):
            one = {"command": "subscribe", "queue": "orders", "subscription": f"s{n}",
                   "inbox": INBOX, "max_backlog": 20}  # fmt: skip
            self.hand_over([_command(one)])

    def pages(self) -> dict[str, bytes]:
        """The state as bytes."""
        self.broker.mark()
        pages: dict[str, bytes] = self.broker.store.pages  # type: ignore[attr-defined]
        return dict(pages)

    def load(self, pages: dict[str, bytes]) -> None:
        """Continue from this state."""
        self.broker = Broker.load(DictStore(pages), Home(), self.limits)

    # Batches

    def records(self, incoming: list[Incoming]) -> Batch:
        batch = Batch()
        for one in incoming:
            into = batch.commands if one.topic.endswith(".commands") else batch.publishes
            self.offsets += 1
            time = self.now if one.timestamp is None else one.timestamp
            columns = (one.topic, 0, self.offsets, time, one.key, one.value, one.meta, one.headers)
            for name, column in zip(Records.__struct_fields__, columns, strict=True):
                getattr(into, name).append(column)
        return batch

    def hand_over(self, incoming: list[Incoming]) -> list[Any]:
        """Take one batch, and steps until the engine is idle. Returns the outputs."""
        batch = self.records(incoming)
        out = list(step(self.broker, batch, self.now))
        for _ in range(STEPS_MAX):
            at = [o.at for o in out if isinstance(o, Deadline)][-1]
            if not 0 < at <= self.now:
                break
            out += step(self.broker, Batch(), self.now)
        else:
            raise AssertionError(f"the engine is not idle after {STEPS_MAX} steps")
        for record in wire.encode(out):
            self.check_record(record)
        self.account(batch, incoming, out)
        return out

    def check_record(self, record: wire.WireRecord) -> None:
        """The output fits into Kafka, and goes only to its client."""
        inner = wire.headers_list(record.headers)
        size = len(record.key or b"") + len(record.value or b"")
        size += sum(len(k) + len(v) for k, v in inner)
        assert size <= RECORD_BYTES_MAX, f"a record of {size} bytes for {record.topic}"
        vpn, _, kind = record.topic.partition(".")
        own = kind.startswith("deliveries") if vpn == "default" else False
        assert own or kind in OF_THE_ENGINE, f"a record for {record.topic!r}"

    def run(self, total: int, largest: int = 60) -> None:
        """Take this many records, in batches of every size. Raises StepFailed."""
        done = 0
        while done < total:
            size = min(self.random.choice((1, 3, 10, largest)), total - done)
            incoming = [
                self.mutator.command() if self.random.random() < 0.6 else self.mutator.message()
                for _ in range(size)
            ]
            done += size
            self.counts["records"] += size
            self.try_batch(incoming)
            if self.random.random() < 0.1:
                self.now += self.random.choice((1, 50, 2_000, 16_000))
            if self.random.random() < 0.02:
                self.load(self.pages())
            if self.random.random() < 0.02:
                check(self.broker)
        check(self.broker)

    def try_batch(self, incoming: list[Incoming]) -> None:
        before = self.pages()

        def fails(some: list[Incoming]) -> bool:
            self.load(before)
            try:
                self.hand_over(some)
            except Exception:
                return True
            return False

        try:
            self.hand_over(incoming)
        except Exception as error:
            raise StepFailed(shortest(incoming, fails)) from error

    # Accounts

    def account(self, batch: Batch, incoming: list[Incoming], out: list[Any]) -> None:
        """Every record with a key was answered, or is among the rejected."""
        rejected = {(o.topic, o.offset) for o in out if isinstance(o, RejectedRecord)}
        answered = Counter(o.request for o in out if isinstance(o, Reply))
        errors = {o.request for o in out if isinstance(o, Reply) and o.error is not None}
        asked = [one for one in incoming if one.topic.endswith(".commands")]
        for one, place in zip(asked, _places(batch.commands), strict=True):
            if place in rejected:
                self.counts["rejected"] += 1
            elif one.request in errors:
                self.counts["answered with an error"] += 1
            elif one.request and answered[one.request]:
                self.counts["carried out"] += 1
            else:  # no answer was requested: refused without one, or carried out
                assert not _readable(one), f"neither answered nor rejected: {one.value!r:.500}"
        receipts = [o for o in out if isinstance(o, Receipts)]
        taken = {(r.producer, number) for r in receipts for number in _settled(r)}
        up_to = {r.producer: r.up_to for r in receipts}
        for place, meta in zip(_places(batch.publishes), batch.publishes.metas, strict=True):
            header = _read(meta)
            name = header.get("producer"), header.get("seq")
            if place in rejected:
                self.counts["rejected"] += 1
            elif name[0]:
                assert name in taken or up_to[name[0]] >= name[1], f"no receipt for {name}"
                self.counts["receipts"] += 1


def _places(records: Records) -> list[tuple[str, int]]:
    return list(zip(records.topics, records.offsets, strict=True))


def _settled(receipt: Receipts) -> list[int]:
    stored = [n for first, count, _ in receipt.runs for n in range(first, first + count)]
    return stored + [nack[0] for nack in receipt.nacks]


def _read(value: bytes | None) -> dict[str, Any]:
    """The JSON object in these bytes; an empty one if there is none."""
    try:
        found = msgspec.json.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _readable(one: Incoming) -> bool:
    """Whether it is JSON with exactly this request, so that a client waits for the answer."""
    reply = _read(one.value).get("reply")
    return bool(one.request) and isinstance(reply, dict) and reply.get("request") == one.request


def _command(value: dict[str, Any]) -> Incoming:
    return Incoming("default.commands", encode(value))


def without_accounts(pages: dict[str, bytes]) -> dict[str, Any]:
    """The pages without the differences allowed between two refused commands."""
    found: dict[str, Any] = {k: v for k, v in pages.items() if not k.startswith("e/")}
    header = msgspec.msgpack.decode(found["broker"], strict=False)
    return found | {"broker": {k: v for k, v in header.items() if k not in ACCOUNTS}}
