"""Every public method, called with any value, either raises at once and changes nothing, or has its
effect.

Most commands and all publishes get no answer if the engine cannot read them. So messages that a
client counts as settled, sent or renewed must be so in the engine: after each call the test
compares the client's records with the engine's, and none of the client's records may be among those
that the engine could not read.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import lakequeue
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lakequeue.aio import Connection as AsyncConnection
from lakequeue.client.admin import Admin
from lakequeue.client.asyncio_client import AsyncConsumer, AsyncProducer
from lakequeue.client.connection import Connection
from lakequeue.client.consumer.consumer import Consumer
from lakequeue.client.message import Message
from lakequeue.client.producer.producer import MODES, Producer
from lakequeue.client.values import duration_ms
from lakequeue.memory.pytest_plugin import EngineForTest
from lakequeue.protocol import ConfigError, LakequeueError

QUEUE, OTHER, DEAD = "orders", "other", "dead"
DEFINITIONS: list[dict[str, Any]] = [
    {"name": DEAD, "message_type": "text"},
    {"name": OTHER, "message_type": "json", "dead_message_queue": DEAD},
    {
        "name": QUEUE, "message_type": "text", "lease_period": "30s", "max_deliveries": 5,
        "max_per_subscription_backlog": 4, "dead_message_queue": DEAD,
    },
]  # fmt: skip


class Text(str):
    """A subclass of str."""


class Silent:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Wordless(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def strange() -> Any:
    """Values that applications pass by mistake, and some that are right elsewhere."""
    fixed: list[Any] = [
        None, True, False, 0, 1, -1, 255, 256, 1_000_001, 1 << 31, 1 << 53, 1 << 62, 1 << 64,
        10**30, 10**5_000, 0.5, -0.0, 1e-9, 3.2e9, 1e300, float("nan"), float("inf"), -float("inf"),
        Decimal("1.5"), 1j, "", " ", "x", QUEUE, OTHER, "nowhere", "\0", "\ud800", "tr\udc80ce",
        "ё" * 251, "x" * 1_001, "Traceback …\n" * 1_000, "0", "0s", "0.1ms", "5s", "100h", "36500d",
        "36501d", "10675199d", "9" * 400 + "d", "-5s", "5 parsecs", "٣s", "1-", "5-1", "1-4",
        "18446744073709551616", "1,2,1", "/a = ", "/a > 1", "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999-14:00", "1969-12-31T00:00:00Z", b"", b"orders", b"\xff",
        bytearray(b"orders"), memoryview(b"orders"), datetime(2026, 1, 1), datetime.min,
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
        datetime(1969, 1, 1, tzinfo=UTC), date(2026, 1, 1), timedelta(days=1), [], [1], ["1", "2"],
        [1.5], [True], ["1-4"], [b"1"], (1, 2), {1, 2}, {}, {"a": "b"}, {"a": 1}, {"a": None},
        {"a": ["b"]}, {5: "x"}, {"\ud800": "x"}, {"a": "\ud800"}, {"lq": "{}"}, {"a\0b": "c"},
        {"name": b"orders"}, {"name": "new", "message_type": "text"},
        {"name": "new", "message_type": "text", "expiration": float("inf")}, object(), Silent(),
        Text(QUEUE), ValueError("no"), Wordless(), range(10), int, len,
    ]  # fmt: skip
    return st.one_of(
        st.sampled_from(fixed),
        st.integers(),
        st.floats(),
        st.text(st.characters(exclude_categories=())),
        st.binary(max_size=20),
        st.datetimes(),
        st.dictionaries(st.text(max_size=3), st.sampled_from(fixed), max_size=2),
        st.lists(st.sampled_from(fixed), max_size=2),
    )


Call = tuple[type, str, dict[str, Any]]
STRANGE = strange()
# Correct values, by the parameter's name: strange ones are mixed with them.
RIGHT: dict[str, Any] = {
    "destination": [QUEUE, OTHER], "queue": [OTHER], "payload": [b"{}", "{}"],
    "ids": ["1-2", ["1"], [3]], "up_to": ["1", 2], "where": ["/@priority > 3"],
    "timeout": [0, 0.1], "most": [2], "delay": ["5s"], "ttl": ["1h"], "period": ["1m", 60],
    "reason": ["broken"], "definition": DEFINITIONS, "to": [DEAD], "topic": ["a/b", "a/>"],
    "headers": [{"a": "b"}], "limit": [3], "max_backlog": [0, 2, 4], "callback": [lambda _: None],
    "delivery_mode": list(MODES), "ack_mode": ["individual", "auto", "dups_ok"],
    "deliver_at": [datetime(2100, 1, 1, tzinfo=UTC)], "priority": [3], "window": [7],
    "producer_id": ["app"], "name": ["worker"], "key": [b"k", "k"], "filter": ["/@priority > 1"],
    "dry_run": [True], "ack_immediately": [True], "dmq_eligible": [False], "state": ["ready"],
}  # fmt: skip
# Methods without values of the application, of the session, or for tests.
NOT_FOR_VALUES = {
    Producer: {"send_gathered", "receipt_of", "on_receipt", "retransmit"},
    Consumer: {
        "subscribe", "kill", "check_open", "check_why", "close_by", "on_record", "on_end",
        "on_terms", "tick", "due",
    },
    Message: {"settle", "end_span", "lease", "live", "lease_state", "restore_lease"},
    Admin: set(),
    Connection: {name for name in dir(Connection) if name not in ("producer", "consumer")},
    AsyncProducer: set(),
    AsyncConsumer: set(),
}  # fmt: skip


def methods() -> list[tuple[type, str]]:
    """All public methods that take values of the application."""
    found = []
    for face, passed_over in NOT_FOR_VALUES.items():
        for name, function in inspect.getmembers(face, inspect.isfunction):
            takes = len(inspect.signature(function).parameters) > 1
            if not name.startswith("_") and name not in passed_over and takes:
                found.append((face, name))
    return found


METHODS = methods()
OPTIONS: dict[tuple[type, str], Callable[..., Any]] = {
    (Connection, "producer"): Producer.__init__,
    (Connection, "consumer"): Consumer.__init__,
    (AsyncProducer, "send"): Producer.send,
    (AsyncProducer, "send_async"): Producer.send_async,
    (AsyncConsumer, "ack"): Consumer.ack,
}


@st.composite
def calls(draw: Any) -> Call:
    """A method and its arguments: mostly one strange value among correct ones."""
    face, name = draw(st.sampled_from(METHODS))
    function = OPTIONS.get((face, name), getattr(face, name))
    given: dict[str, Any] = {}
    parameters = [
        p for p in inspect.signature(function).parameters.values()
        if p.name not in ("self", "session") and p.kind is not p.VAR_KEYWORD
    ]  # fmt: skip
    odd = draw(st.sampled_from(parameters)).name
    for parameter in parameters:
        right = RIGHT.get(parameter.name)
        needed = parameter.default is parameter.empty
        if parameter.name == odd or (needed and right is None):
            given[parameter.name] = draw(STRANGE)
        elif needed or (right is not None and draw(st.integers(0, 4)) == 0):
            given[parameter.name] = draw(st.sampled_from(right))
    return face, name, given


class World:
    """A client of an engine in this process, with messages in every state."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.connection = lakequeue.connect("memory://")
        self.admin = self.connection.admin()
        for definition in DEFINITIONS:
            self.admin.define(definition)
        self.producer = self.connection.producer()
        self.consumer = self.connection.consumer(QUEUE, ack_mode="individual", max_backlog=4)
        for n in range(6):
            self.producer.send(QUEUE, str(n))
            self.producer.send(OTHER, "{}", priority=n)
        self.first, _ = self.consumer.receive_many(2, 0)
        asynchronous = AsyncConnection(self.connection)
        self.faces: dict[type, Any] = {
            Producer: self.producer, Consumer: self.consumer, Admin: self.admin,
            Connection: self.connection, AsyncProducer: AsyncProducer(asynchronous, self.producer),
            AsyncConsumer: self.loop.run_until_complete(self._asynchronous(asynchronous)),
        }  # fmt: skip

    async def _asynchronous(self, connection: Any) -> AsyncConsumer:
        return AsyncConsumer(connection, self.consumer)

    def message(self) -> Message:
        """A message that the application holds."""
        held = self.consumer._prefetch.held
        if not held and self.consumer.receive(0) is None:
            self.producer.send(QUEUE, "one more")
            self.consumer.receive(0)
        return next(iter(held.values()), self.first)

    def call(self, face: type, name: str, given: dict[str, Any]) -> None:
        """Make the call, and clean up its results."""
        subject = self.message() if face is Message else self.faces[face]
        made = getattr(subject, name)(**given)
        if inspect.isawaitable(made):
            made = self.loop.run_until_complete(_awaited(made))
        if isinstance(made, Consumer) or (isinstance(made, Producer) and made is not self.producer):
            made.close()

    def books(self) -> list[Any]:
        """The client's view, and the engine's."""
        own, session = self.consumer, self.connection
        here = [*own._prefetch.held.values(), *own._prefetch.buffer]
        return [
            [(m.number, m.lease_ends, m.lease_expires_at, m.settled) for m in here],
            (own._rule.backlog, own._wanted, own._settling._acks, own.is_closed),
            [(w.sequence, len(w)) for w in self.producer._windows.values()],
            sorted(session._consumers), [p.producer_id for p in session._producers()],
            sorted(session._asked),
            self.admin.queues(),
        ]  # fmt: skip

    def check(self) -> None:
        """The client and the engine agree, and the engine could read everything sent."""
        assert not self.producer.unacknowledged(), "it would be repeated for ever"
        assert not self.admin.usage()["vpn"]["refused"].get("malformed"), (
            "the engine has not read it"
        )
        prefetch = self.consumer._prefetch
        known = {m.id: m for m in [*prefetch.held.values(), *prefetch.buffer]}
        there = QUEUE in [queue["name"] for queue in self.admin.queues()]
        for row in self.admin.browse(QUEUE, state="leased") if there else ():
            assert row.id in known, "it is leased to a consumer that has forgotten it"
            assert row.lease_expires_at == known[row.id].lease_expires_at

    def end(self) -> None:
        """A good message is processed, and everything closes."""
        if self.producer._closed:
            self.producer = self.connection.producer()
        self.admin.define({"name": "good", "message_type": "text"})
        receipt = self.producer.send("good", "still")
        with self.connection.consumer("good", ack_mode="individual") as good:
            message = good.receive(0)
            assert message.id == receipt.message_id
            message.ack()
        assert not self.admin.browse("good")
        self.connection.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


# Helpers for tests, which an application's tests call with values of their own.
AIDS: list[tuple[str, dict[str, Any]]] = [
    ("publish_raw", {"topic": "flights", "value": b"x"}),
    ("publish_raw", {"topic": "default.publish", "value": b"x", "headers": {"lq": b"{}"}}),
    ("trace", {}), ("advance", {"duration": "1s"}), ("define", {"name": "new"}),
    ("unacknowledged", {}), ("assert_all_acknowledged", {}),
]  # fmt: skip


@settings(max_examples=80)
@given(st.sampled_from(AIDS), st.data())
def test_helpers_for_tests_refuse_wrong_values(
    aid: tuple[str, dict[str, Any]], data: st.DataObject
) -> None:
    name, right = aid
    engine = EngineForTest()
    engine.define("live", message_type="text", underlying_topic="flights")
    subject = engine if hasattr(EngineForTest, name) else engine.connection
    function = getattr(subject, name)
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    arguments: list[Any] = []
    given_ = dict(right)
    odd = data.draw(STRANGE)
    if name == "advance" and _is_long(odd):
        return  # correct, but slow
    if named:
        given_[data.draw(st.sampled_from(named))] = odd
    else:
        arguments = [odd]
    with contextlib.suppress(LakequeueError, ValueError, AssertionError):
        function(*arguments, **given_)
    engine.define("after")
    engine.connection.producer().send("after", b"{}")
    assert engine.admin.describe("after")["depth"] == 1
    engine.close()


def _is_long(value: Any) -> bool:
    try:
        return duration_ms(value, "duration") > 60_000
    except ConfigError:
        return False


@pytest.mark.parametrize("config", [7, [1], object(), b"x", True])
def test_a_configuration_of_a_wrong_type_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match="config: "):
        EngineForTest(config)


async def _awaited(made: Any) -> Any:
    return await made


@settings(max_examples=60)
@given(st.lists(calls(), min_size=1, max_size=4))
@example([(Producer, "close", {"timeout": 10**5_000})])
def test_any_value_is_refused_or_has_its_effect(
    said: list[tuple[type, str, dict[str, Any]]],
) -> None:
    world = World()
    world.check()
    for face, name, given_ in said:
        if face is Message:
            world.message()
        if face in (Producer, AsyncProducer) and world.producer._closed:
            continue
        before = world.books()
        try:
            world.call(face, name, given_)
        except ConfigError:
            assert world.books() == before
        except LakequeueError:
            pass  # it was read, and is refused
        world.check()
    world.end()
