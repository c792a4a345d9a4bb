"""Batches for the step itself, as the job passes them, without a client.

Records are encoded as for Kafka. One batch may have many commands and publishes; `run` continues
until the engine wants no further step at this time.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from lakequeue.protocol import commands as c
from lakequeue.protocol.messages import PublishHeader, Records, encode_publish_header
from lakequeue.protocol.outputs import Deadline, Deliveries, RejectedRecord, Reply
from lakequeue.state import Batch, Broker, DictStore, Home, Limits, check, step

NOW = 1_700_000_000_000
INBOX = c.Inbox("default.deliveries")
REPLY = c.ReplyTo("default.deliveries")
STEPS_MAX = 5_000
WIDE = {"max_per_subscription_backlog": 100_000}


class Steps:
    """An engine's state and its inputs. watch: called with each step's outputs."""

    def __init__(
        self,
        store: DictStore | None = None,
        watch: Callable[[list[Any]], None] | None = None,
        checked: bool = True,
        home: Home | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.home, self.limits = home or Home(), limits or Limits()
        self.broker = Broker.load(store or DictStore(), self.home, self.limits)
        self.watch = watch
        self.checked = checked
        self.now = NOW
        self.offsets = 0

    def run(
        self, commands: list[c.Command | bytes] = (), publishes: list[tuple[Any, ...]] = ()
    ) -> list[Any]:
        """Pass one batch. Returns the outputs of its step and the following ones.

        publishes: (to, payload[, keys of the header `lq`]).
        """
        return [one for said in self.each(commands, publishes) for one in said]

    def each(self, commands: Any = (), publishes: Any = ()) -> Iterator[list[Any]]:
        """Like `run`, step by step."""
        batch = Batch(self.command_records(commands), self.publish_records(publishes))
        for _ in range(STEPS_MAX):
            said = self.step(batch)
            if self.watch is not None:
                self.watch(said)
            yield said
            deadline = [o.at for o in said if isinstance(o, Deadline)][-1]
            if not 0 < deadline <= self.now:
                return
            batch = Batch()
        raise AssertionError(f"the engine is not idle after {STEPS_MAX} steps")

    def ask(self, command: c.Command) -> Any:
        """The result of a command that must not fail."""
        (answer,) = replies(self.run([asking(command)]))
        assert answer.error is None, answer.error
        return answer.result

    def error(self, command: c.Command) -> str:
        """The reason why a command is refused."""
        (answer,) = replies(self.run([asking(command)]))
        assert answer.error is not None
        return answer.error

    def events(self, event: str = "") -> list[dict[str, Any]]:
        return [e for e in self.ask(c.Events()) if event in ("", e["event"])]

    def step(self, batch: Batch) -> list[Any]:
        """One step and its outputs."""
        said = self.step_alone(batch)
        if self.checked:
            self.check()
        return said

    def step_alone(self, batch: Batch) -> list[Any]:
        """One step, without a check of the state afterwards."""
        return step(self.broker, batch, self.now)

    def check(self) -> None:
        """The invariants after a step."""
        check(self.broker)

    def restart(self) -> None:
        """Write the state to bytes and load it again."""
        self.broker = Broker.load(DictStore(self.marked()), self.home, self.limits)

    def marked(self) -> dict[str, bytes]:
        """The pages of the state, as a mark writes them now."""
        self.broker.mark()
        pages: dict[str, bytes] = self.broker.store.pages  # type: ignore[attr-defined]
        return pages

    def tick(self, ms: int) -> list[Any]:
        self.now += ms
        return self.run()

    def command_records(self, commands: Any) -> Records:
        """Records of commands, each in a topic that allows it."""
        records = Records()
        for command in commands:
            value = command if isinstance(command, bytes) else c.encode_command(command)
            if isinstance(command, (*c.OF_ENGINE, c.Begin)):
                self._add(records, "broker-0.instructions", value, b"default")
            if not isinstance(command, c.OF_ENGINE):
                self._add(records, "default.commands", value)
        return records

    def instructions(self, told: list[tuple[str, bytes]]) -> Records:
        """The engine's instructions to a broker, one for each VPN."""
        records = Records()
        for vpn, value in told:
            self._add(records, "broker-0.instructions", value, vpn.encode())
        return records

    def publish_records(self, publishes: Any) -> Records:
        records = Records()
        for to, payload, *rest in publishes:
            options = dict(rest[0]) if rest else {}
            key, headers = options.pop("key", None), options.pop("headers", None)
            meta = encode_publish_header(PublishHeader(to=to, **options))
            self._add(records, "default.publish", payload, key, meta, headers)
        return records

    def _add(
        self, records: Records, topic: str, value: bytes, key: bytes | None = None,
        meta: bytes | None = None, headers: str | None = None,
    ) -> None:  # fmt: skip
        self.offsets += 1
        columns = (topic, 0, self.offsets, self.now, key, value, meta, headers)
        for name, column in zip(Records.__struct_fields__, columns, strict=True):
            getattr(records, name).append(column)


def define(name: str = "orders", **keys: Any) -> c.Define:
    return c.Define(definition={"name": name, "message_type": "json"} | keys)


def subscribe(subscription: str, backlog: int = 100, queue: str = "orders", **keys: Any) -> Any:
    given = {"inbox": INBOX, "max_backlog": backlog, **keys}
    return c.Subscribe(queue=queue, subscription=subscription, **given)


def delivered(outputs: list[Any], subscription: str = "") -> list[int]:
    """The delivered ids, in order."""
    return [
        i for d in of(Deliveries, outputs) if subscription in ("", d.subscription) for i in d.ids
    ]


def replies(outputs: list[Any]) -> list[Reply]:
    return of(Reply, outputs)


def refused(outputs: list[Any]) -> int:
    """The number of errors and rejected records."""
    wrong = [o for o in replies(outputs) if o.error is not None]
    return len(wrong) + sum(isinstance(o, RejectedRecord) for o in outputs)


def described(steps: Steps, queue: str = "orders") -> dict[str, Any]:
    (answer,) = replies(steps.run([c.Describe(queue=queue, reply=REPLY)]))
    assert answer.error is None, answer.error
    return answer.result


def started(*commands: c.Command | bytes, **options: Any) -> Steps:
    """An engine that has carried out these commands."""
    steps = Steps(**options)
    steps.run(list(commands))
    return steps


def asking(command: c.Command) -> Any:
    return msgspec.structs.replace(command, reply=REPLY)


def delivery(
    ids: list[int], framing: str = "batch", topic: str = "default.deliveries", **columns: Any
) -> Deliveries:
    """A delivery to a consumer; columns: further ones by message."""
    n = len(ids)
    usual = {"payloads": [b"x"] * n, "keys": [None] * n, "headers": [None] * n, **columns}
    return Deliveries(
        "q", "s", topic, 3, framing, 0, ids=ids, numbers=[*range(n)],
        counts=[1] * n, priorities=[4] * n, expires=[0] * n, times=[0] * n, **usual,
    )  # fmt: skip


def of(kind: type, outputs: list[Any]) -> list[Any]:
    return [o for o in outputs if isinstance(o, kind)]


def body(**values: Any) -> bytes:
    return json.dumps(values).encode()
