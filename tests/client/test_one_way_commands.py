"""Commands without answers: the client refuses values that the engine could not read, before it
acts on them (C7, L10, L11, L13). `test_any_value` searches for further ones."""

from datetime import timedelta
from typing import Any

import pytest
from client.threaded import Threaded, Wire
from lakequeue.protocol import ConfigError, commands
from lakequeue.protocol.bounds import IDS_CHARACTERS_MAX, TEXT_CHARACTERS_MAX
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
def test_C7_a_message_can_be_rejected_with_any_reason(bench: Bench, reason: Any, says: Any) -> None:
    consumer = bench.consumer()
    consumer.receive().reject(reason)
    (dead,) = bench.admin.browse("dead")
    assert (dead.payload, dead.headers.get("lq-dead-detail")) == (b"bad", says)
    assert consumer.receive().payload == b"good"


DELAYS = ["36501d", "9" * 400 + "d", 1e300, float("nan"), -1, b"5s", True]


@pytest.mark.parametrize(
    ("settle", "wrong", "says"),
    [
        *(("reject", wrong, r"reason: .* – allowed are text and exceptions")
          for wrong in (5, b"no", ["no"], object())),
        *(("cancel", wrong, r"delay: .* – allowed is a duration") for wrong in DELAYS),
        *(("renew", wrong, "period: ") for wrong in (0, "0s", "36501d", 3.2e9, "soon", b"5s")),
    ],
)  # fmt: skip
def test_C7_L10_L11_a_refused_call_leaves_the_message_leased(
    bench: Bench, settle: str, wrong: Any, says: str
) -> None:
    consumer = bench.consumer()
    message = consumer.receive()
    before = message.lease_expires_at
    with pytest.raises(ConfigError, match=says):
        getattr(message, settle)(wrong)
    (leased,) = bench.admin.browse("orders", state="leased")
    assert leased.lease_expires_at == message.lease_expires_at == before
    message.cancel("36500d")
    assert [m.state for m in bench.admin.browse("orders")] == ["delayed", "leased"]
    assert consumer.receive().payload == b"good"


def test_L10_a_refused_renewal_restores_the_lease(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = bench.consumer()
    message = consumer.receive()
    before = message.lease_expires_at
    consumer._settling.subscription.epoch = 99  # of another home: every command is refused
    message.renew("10m")
    assert message.lease_expires_at == before
    assert f"the lease of '{message.id}' was not renewed: " in caplog.text
    bench.advance("31s")
    assert drain(bench.consumer()), "the lease has not ended"


def test_L11_a_message_stays_leased_if_the_command_was_not_sent(bench: Bench) -> None:
    def broken(*_: Any) -> None:
        raise OSError("away")

    consumer = bench.consumer()
    message = consumer.receive()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.connection._transport, "command", broken)
        for settle in (message.cancel, message.ack):
            with pytest.raises(OSError, match="away"):
                settle()
    bench.connection.attend()
    assert consumer.receive().payload == b"good", "the ack was sent with the next ones"


# ---------------------------------------------------------------- ids


def test_L13_collected_acks_are_sent_in_parts() -> None:
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

    bench = Threaded(Deaf)
    consumer = bench.consumer()
    consumer._settling._acks = list(range(0, 2 * (RANGES_MAX + 1), 2))
    consumer._settling.flush()
    assert sum(isinstance(c, commands.Ack) for c in bench.wire.commands) == 3


@pytest.mark.parametrize(
    "ids",
    [[1.5], [True], ["1-4"], [b"1"], [-1], [1 << 64], b"1", 5, "", "4-1", "x", [], object(),
     "1," * 100_001, ",".join(str(10**19 + 2 * n) for n in range(100_000))],
    ids=lambda ids: str(ids)[:9],
)  # fmt: skip
def test_L13_R6_invalid_ids_are_refused_everywhere(bench: Bench, ids: Any) -> None:
    consumer, admin = bench.consumer(), bench.admin
    consumer.receive()
    for use, given in (
        (admin.purge, ("orders",)), (admin.redrive, ("orders",)), (admin.move, ("orders", "dead")),
        (admin.edit, ("orders", {"a": "b"})), (consumer.ack, ()),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="ids: "):
            use(*given, ids=ids)
    assert [m.state for m in admin.browse("orders")] == ["leased", "ready"]


# ---------------------------------------------------------------- the commands themselves


ROUND: dict[str, Any] = {}
ROUND["a"] = ROUND
DEFINITIONS: list[tuple[dict[str, Any], str]] = [
    ({"name": b"q"}, "definition.name: b'q' – allowed is text"),
    ({"a": [{"b": {1}}]}, r"definition.a\[0\].b: \{1\} – allowed"),
    ({"a": timedelta(1)}, "definition.a: .* not a timedelta"),
    ({"a": float("inf")}, "definition.a: inf – allowed"),
    ({"a": "x" * COMMAND_BYTES_MAX}, "define: .* bytes – a command has at most"),
    (ROUND, "allowed are 100 levels"),
]


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
        *((commands.Define(definition=definition), says) for definition, says in DEFINITIONS),
    ],
)
def test_an_unreadable_command_is_refused_by_name(command: commands.Command, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        checked(command)


class Name(str):
    """A subclass of str, as other libraries use."""


def test_text_like_and_list_like_values_are_accepted(bench: Bench) -> None:
    checked(commands.Define(definition={"a": (1, 2)}))
    bench.admin.define({"name": Name("sub"), "message_type": "text"})
    assert bench.admin.describe(Name("sub"))["name"] == "sub"
    bench.producer.send(Name("sub"), Name("x"), headers={Name("a"): Name("b")})
    (message,) = bench.admin.browse("sub")
    assert (message.payload, message.headers) == (b"x", {"a": "b"})
