"""Commands that nobody answers: what the engine could not read is refused here, before the client
acts on it (C7, L10, L11, L13, B3). `test_any_value` looks for the next one of this kind."""

from datetime import timedelta
from typing import Any

import pytest
from client.threaded import Wire, connect, engine
from lakequeue.protocol import ConfigError, commands
from lakequeue.protocol.bounds import BACKLOG_MAX, IDS_CHARACTERS_MAX, TEXT_CHARACTERS_MAX
from lakequeue.protocol.checked import COMMAND_BYTES_MAX, checked
from lakequeue.protocol.ids import RANGES_MAX, format_parts, parse_ranges
from rules.harness import Bench, drain

TRACEBACK = "Traceback …\n" * 1_000


@pytest.fixture
def bench() -> Bench:
    """An engine with a queue, its dead message queue, and two messages."""
    made = Bench()
    made.define("dead", message_type="text")
    made.define(
        "orders", message_type="text", dead_message_queue="dead", lease_period="30s",
        max_per_subscription_backlog=1,
    )  # fmt: skip
    for body in (b"bad", b"good"):
        made.send(body)
    return made


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


# ---------------------------------------------------------------- settling


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("broken", "broken"),
        (TRACEBACK, TRACEBACK[: TEXT_CHARACTERS_MAX - 1] + "…"),
        (ValueError("no"), "ValueError: no"),
        (ValueError(TRACEBACK), ("ValueError: " + TRACEBACK)[: TEXT_CHARACTERS_MAX - 1] + "…"),
        (Wordless(), "Wordless"),
        ("half \ud83d of it", "half \\ud83d of it"),
        (None, None),
        ("", None),
    ],
)
def test_C7_whatever_the_reason_the_message_goes(bench: Bench, reason: Any, says: Any) -> None:
    consumer = bench.consumer()
    consumer.receive().reject(reason)
    (dead,) = bench.admin.browse("dead")
    assert (dead.payload, dead.headers.get("lq-dead-detail")) == (b"bad", says)
    assert consumer.receive().payload == b"good"


@pytest.mark.parametrize("reason", [5, b"no", ["no"], object()])
def test_C7_what_is_no_reason_is_refused_and_the_message_is_still_in_hand(
    bench: Bench, reason: Any
) -> None:
    message = bench.consumer().receive()
    with pytest.raises(ConfigError, match=r"reason: .* – allowed are text and exceptions"):
        message.reject(reason)
    message.reject("no")
    assert [m.payload for m in bench.admin.browse("dead")] == [b"bad"]


@pytest.mark.parametrize("delay", ["36501d", "9" * 400 + "d", 1e300, float("nan"), -1, b"5s", True])
def test_L11_a_delay_that_is_none_is_refused_and_the_message_is_still_in_hand(
    bench: Bench, delay: Any
) -> None:
    consumer = bench.consumer()
    message = consumer.receive()
    with pytest.raises(ConfigError, match=r"delay: .* – allowed is a duration"):
        message.cancel(delay)
    message.cancel("36500d")
    assert [m.state for m in bench.admin.browse("orders")] == ["delayed", "leased"]
    assert consumer.receive().payload == b"good"


@pytest.mark.parametrize("period", [0, "0s", "36501d", 3.2e9, "soon", b"5s"])
def test_L10_a_period_that_is_none_leaves_the_lease(bench: Bench, period: Any) -> None:
    message = bench.consumer().receive()
    before = message.lease_expires_at
    with pytest.raises(ConfigError, match="period: "):
        message.renew(period)
    assert message.lease_expires_at == before
    (leased,) = bench.admin.browse("orders", state="leased")
    assert leased.lease_expires_at == before


def test_L10_a_renewal_that_the_engine_refuses_puts_the_lease_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = bench.consumer()
    message = consumer.receive()
    before = message.lease_expires_at
    consumer._settling.subscription.epoch = 99  # of another home: whatever is said is refused
    message.renew("10m")
    assert message.lease_expires_at == before
    assert f"the lease of '{message.id}' was not renewed: " in caplog.text
    bench.advance("31s")
    assert drain(bench.consumer()), "it has ended, here and there"


def test_L11_what_could_not_be_sent_is_still_in_hand(bench: Bench) -> None:
    consumer = bench.consumer()
    message = consumer.receive()
    transport = bench.connection._transport
    send, transport.command = transport.command, _broken
    with pytest.raises(OSError, match="away"):
        message.cancel()
    with pytest.raises(OSError, match="away"):
        message.ack()
    transport.command = send
    bench.connection.attend()
    assert consumer.receive().payload == b"good", "the ack has gone with the next ones"


def _broken(*_: Any) -> None:
    raise OSError("away")


# ---------------------------------------------------------------- ids


def test_L13_what_a_client_collects_goes_in_parts_that_fit() -> None:
    apart = range(1 << 62, (1 << 62) + 2 * 60_000, 2)
    parts = format_parts(apart)
    assert len(parts) == 2
    assert max(map(len, parts)) <= IDS_CHARACTERS_MAX
    assert [low for part in parts for low, _ in parse_ranges(part)] == list(apart)
    assert (format_parts([]), format_parts([3, 1, 2])) == ([], ["1-3"])


def test_L13_very_many_acks_are_several_commands() -> None:
    class Deaf(Wire):
        def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
            self.commands.append(commands.decode_command(value))
            if not isinstance(self.commands[-1], commands.Ack):
                super(Wire, self).command(topic, key, value, partition)

    connection, wire = connect(engine({"name": "orders", "message_type": "text"}), kind=Deaf)
    consumer = connection.consumer("orders", ack_mode="individual")
    consumer._settling._acks = list(range(0, 2 * (RANGES_MAX + 1), 2))
    consumer._settling.flush()
    assert sum(isinstance(c, commands.Ack) for c in wire.commands) == 3


@pytest.mark.parametrize(
    "ids",
    [[1.5], [True], ["1-4"], [b"1"], [-1], [1 << 64], b"1", 5, "", "4-1", "x", [], object(),
     "1," * 100_001, ",".join(str(10**19 + 2 * n) for n in range(100_000))],
)  # fmt: skip
def test_L13_R6_ids_that_are_none_are_refused_by_all_that_take_some(bench: Bench, ids: Any) -> None:
    consumer = bench.consumer()
    consumer.receive()
    for use in (bench.admin.purge, bench.admin.redrive):
        with pytest.raises(ConfigError, match="ids: "):
            use("orders", ids=ids)
    with pytest.raises(ConfigError, match="ids: "):
        bench.admin.move("orders", "dead", ids=ids)
    with pytest.raises(ConfigError, match="ids: "):
        bench.admin.edit("orders", {"a": "b"}, ids=ids)
    with pytest.raises(ConfigError, match="ids: "):
        consumer.ack(ids=ids)
    assert [m.state for m in bench.admin.browse("orders")] == ["leased", "ready"]


# ---------------------------------------------------------------- backlogs


@pytest.mark.parametrize("backlog", [-1, BACKLOG_MAX + 1, 1 << 40, 1.5, "5", None, True])
def test_B3_a_backlog_that_is_none_leaves_the_old_one(bench: Bench, backlog: Any) -> None:
    consumer = bench.consumer(backlog=1)
    if backlog is not None:
        with pytest.raises(ConfigError, match="max_backlog: "):
            bench.consumer(backlog=backlog)
    with pytest.raises(ConfigError, match=r"max_backlog: .* – allowed are 0 to 1,000,000"):
        consumer.set_max_backlog(backlog)
    (seen,) = bench.seen()["consumers"]
    assert (seen["backlog"], consumer._rule.backlog) == (1, 1)


@pytest.mark.parametrize("mode", ["client", "individual", "auto", "dups_ok", "pre_ack", "no_ack"])
def test_B3_with_a_backlog_of_0_nothing_is_delivered_until_it_is_raised(
    bench: Bench, mode: str
) -> None:
    consumer = bench.consumer(backlog=0, ack_mode=mode)
    assert consumer.receive(0) is None
    assert bench.seen()["ready"] == 2
    consumer.set_max_backlog(1)
    assert consumer.receive(0).payload == b"bad"


# ---------------------------------------------------------------- the commands themselves


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (commands.Delete(queue=b"orders"), "queue: b'orders' – allowed is text"),
        (commands.Delete(queue="\ud800"), "queue: .* – allowed is valid Unicode text"),
        (commands.Delete(queue="x" * 251), "queue: 'xxx.* – expected `str` of length <= 250"),
        (commands.Delete(queue=None), "queue: None – expected `str`"),
        (commands.Events(limit=float("nan")), "limit: nan – allowed are finite numbers"),
        (commands.Shutdown(queue="q", ingress=1), "ingress: 1 – expected `bool`"),
        (commands.Edit(queue="q", headers={5: "x"}), "headers, a key: 5 – allowed is text"),
        (commands.Define(definition={"name": b"q"}), "definition.name: b'q' – allowed is text"),
        (commands.Define(definition={"a": [{"b": {1}}]}), r"definition.a\[0\].b: \{1\} – allowed"),
        (commands.Define(definition={"a": timedelta(1)}), "definition.a: .* not a timedelta"),
        (commands.Define(definition={"a": float("inf")}), "definition.a: inf – allowed"),
        (
            commands.Define(definition={"a": "x" * COMMAND_BYTES_MAX}),
            "define: .* bytes – a command has at most",
        ),
    ],
)
def test_a_command_that_the_engine_could_not_read_is_refused_by_name(
    command: commands.Command, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        checked(command)


def test_one_within_itself() -> None:
    round_and_round: dict[str, Any] = {}
    round_and_round["a"] = round_and_round
    with pytest.raises(ConfigError, match="allowed are 100 levels"):
        checked(commands.Define(definition=round_and_round))


class Name(str):
    """A text of a class of its own, as other libraries give."""


def test_what_is_like_text_or_a_list_is_taken(bench: Bench) -> None:
    checked(commands.Define(definition={"a": (1, 2)}))
    bench.admin.define({"name": Name("sub"), "message_type": "text"})
    assert bench.admin.describe(Name("sub"))["name"] == "sub"
    bench.producer.send(Name("sub"), Name("x"), headers={Name("a"): Name("b")})
    (message,) = bench.admin.browse("sub")
    assert (message.payload, message.headers) == (b"x", {"a": "b"})
