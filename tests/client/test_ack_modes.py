"""C4, C5, C6, L8, L13: the behaviour of each acknowledgement mode, on memory and with the client's
thread.

Redeliveries after a crash in each mode: `test_failures.py`; failing callbacks: `test_callbacks.py`.
"""

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from client.threaded import WAIT_S, CtrlC, Threaded, wait_for
from lakequeue.client.consumer import settling
from lakequeue.client.message import Message
from lakequeue.protocol import ConfigError, LakequeueError, commands
from rules.harness import Bench, drain, ids


def send(bench: Bench, count: int) -> list[str]:
    return [bench.send({"n": n}) for n in range(count)]


# ---------------------------------------------------------------- dups_ok


def test_C4_dups_ok_does_not_acknowledge_the_message_in_hand(bench: Bench) -> None:
    """The interval ends while a callback runs: only finished messages are acknowledged."""
    consumer = bench.consumer(ack_mode="dups_ok", dups_ok_count=0, dups_ok_interval="1s")
    acknowledged: list[int] = []

    def work(message: Any) -> None:
        if message.id == "3":
            bench.advance("5s")
            acknowledged.append(bench.seen()["acknowledged"])

    send(bench, 3)
    consumer.on_message(work)
    assert acknowledged == [2]
    bench.advance("1s")
    assert bench.seen()["acknowledged"] == 3


@pytest.mark.parametrize(("n", "same"), [(0, "client"), (1, "auto")])
@pytest.mark.parametrize("fails", [False, True])
def test_C4_dups_ok_is_client_or_auto_where_k_is_0(n: int, same: str, fails: bool) -> None:
    """The same events, whatever happens; n=0,k=0 is CLIENT, n=1,k=0 is AUTO."""

    def events(**options: Any) -> list[tuple[Any, ...]]:
        bench = Bench()
        bench.define(max_per_subscription_backlog=5, max_cancels=2)
        consumer = bench.consumer(backlog=5, name="c", **options)
        send(bench, 4)
        consumer.receive(timeout=0)
        second = consumer.receive(timeout=0)
        if same == "client":
            second.ack()

        def work(message: Any) -> None:
            if fails:
                raise ValueError("a mistake of the application")

        consumer.on_message(work)
        for _ in range(2):  # failed messages come again as the clock moves
            bench.advance("1m")
        consumer.close()
        return [(e["event"], e["message_id"], e["deliveries"]) for e in bench.engine.journal()]

    found = events(ack_mode="dups_ok", dups_ok_count=n, dups_ok_interval=0)
    assert found == events(ack_mode=same)
    assert ("acknowledged", "1", 0) in [(e, str(i), 0) for e, i, _ in found]


# ---------------------------------------------------------------- pre_ack, and settled messages


@pytest.mark.parametrize(("what", "done"), [("cancel", "canceled"), ("reject", "rejected")])
@pytest.mark.parametrize("mode", ["auto", "pre_ack", "no_ack"])
def test_C4_a_message_already_acknowledged_cannot_be_returned(
    bench: Bench, caplog: pytest.LogCaptureFixture, mode: str, what: str, done: str
) -> None:
    send(bench, 1)
    getattr(bench.consumer(ack_mode=mode).receive(timeout=0), what)()
    assert f"message 1 of queue 'orders' is not {done}: it was settled before" in caplog.text
    assert bench.seen()["acknowledged"] == 1


@pytest.mark.parametrize("mode", ["auto", "client", "individual"])
def test_C3_C4_close_waits_for_the_running_callback(mode: str) -> None:
    """Its message is acknowledged, by itself or by the mode; messages behind it return."""
    bench = Threaded()
    consumer = bench.consumer(ack_mode=mode)
    entered, go_on = threading.Event(), threading.Event()

    def work(message: Any) -> None:
        entered.set()
        assert go_on.wait(WAIT_S)
        if mode != "auto":
            message.ack()

    consumer.on_message(work)
    send(bench, 3)
    assert entered.wait(WAIT_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    closing.join(WAIT_S)
    seen = bench.seen()
    assert (seen["acknowledged"], seen["ready"], seen["leased"]) == (1, 2, 0)


def test_C3_a_closing_connection_waits_for_a_closing_consumer() -> None:
    """The consumer waits for its callback, whose ack still has to be sent."""
    bench = Threaded()
    consumer = bench.consumer(ack_mode="auto")
    entered, go_on = threading.Event(), threading.Event()

    def work(_: Any) -> None:
        entered.set()
        assert go_on.wait(WAIT_S)
        consumer.close()  # it waits for this callback, so the callback must not wait for it

    consumer.on_message(work)
    send(bench, 1)
    assert entered.wait(WAIT_S)
    closing = [threading.Thread(target=one.close) for one in (consumer, bench.connection)]
    for thread in closing:
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    go_on.set()
    for thread in closing:
        thread.join(WAIT_S)
    assert bench.stored() == []


def test_C4_an_ack_beside_a_cancel_of_its_message_takes_no_later_ones_along(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread cancels the message while this one acknowledges it."""
    consumer = bench.consumer(ack_mode="client")
    send(bench, 3)
    first, *_ = drain(consumer)
    settler = consumer._settling
    is_held = settler._check_held

    def canceled_meanwhile(message: Any) -> bool:
        found = is_held(message)
        monkeypatch.undo()
        message.cancel("1h")
        return found

    monkeypatch.setattr(settler, "_check_held", canceled_meanwhile)
    first.ack()
    consumer.send_acks()
    assert (bench.seen()["acknowledged"], bench.seen()["leased"]) == (0, 2)


@pytest.mark.parametrize("taken", [1, 3])
def test_L13_an_ack_up_to_a_message_follows_the_order_of_receipt(bench: Bench, taken: int) -> None:
    """Whether the application has received it, or it waits in the client."""
    bench.define(max_per_subscription_backlog=9, priority="/n")
    sent = send(bench, 4)
    consumer = bench.consumer(backlog=9)
    held = consumer.receive_many(taken, 0)
    consumer.ack(up_to=sent[2])
    assert ids(bench.admin.browse("orders")) == [sent[1], sent[0]]
    assert ids(drain(consumer)) == [sent[1], sent[0]][max(taken - 2, 0) :]
    held[0].ack()  # nothing is left to do
    assert bench.seen()["ack_ignored"] == 0


# ---------------------------------------------------------------- on the wire


def test_C5_acks_are_batched_and_a_cancel_does_not_overtake_them() -> None:
    bench = Threaded()
    consumer = bench.consumer()
    for _ in range(60):
        bench.producer.send_async("orders", b"{}")
    messages: list[Any] = []
    while len(messages) < 60:
        messages += consumer.receive_many(60, timeout=10)
    with consumer._lock:  # the background thread sends no ack in between
        for message in messages[:40]:
            message.ack()
        messages[40].cancel()
        for message in messages[41:50]:
            message.ack()
        messages[50].reject(reason="broken")
        messages[51].ack()
        messages[52].renew("1m")
    sent = bench.wire.said("ack", "cancel", "reject", "renew")
    assert [(c["command"], c["ids"]) for c in sent] == [
        ("ack", "1-40"), ("cancel", "41"), ("ack", "42-50"), ("reject", "51"), ("ack", "52"),
        ("renew", "53"),
    ]  # fmt: skip
    messages[59].ack()
    consumer.close()
    assert [(c["command"], c.get("ids")) for c in bench.wire.commands[-4:]] == [
        ("ack", "60"), ("set_backlog", None), ("return", "41"), ("unsubscribe", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ids": "1", "up_to": "2"}, "ack: ids and up_to – give exactly one of ids, up_to, where"),
        ({"ids": "1", "where": "/n = 0"}, "ack: ids and where – give exactly one"),
        ({"up_to": "1", "where": "/n = 0"}, "ack: up_to and where – give exactly one"),
        ({"ids": "1", "up_to": "1", "where": "/n = 0"}, "ack: ids and up_to and where – give"),
        ({}, "ack: none of them – give exactly one"),
        ({"up_to": "1-3"}, "up_to: '1-3' – allowed is one message id"),
        ({"up_to": "1,3"}, "up_to: '1,3' – allowed is one message id"),
    ],
)
def test_L13_an_ack_selects_in_one_way_only(bench: Bench, given: dict[str, str], says: str) -> None:
    """The engine refuses it, whichever client wrote it, and acknowledges nothing."""
    consumer = bench.consumer()
    send(bench, 3)
    command = commands.Ack(queue="orders", subscription=consumer.subscription, **given)
    with pytest.raises(ConfigError, match=says):
        bench.connection.request(command)
    with pytest.raises(ConfigError, match=says.split(":")[0]):
        consumer.ack(**given)
    assert bench.seen()["depth"] == 3


@pytest.mark.parametrize("lease", [None, "30s"])
def test_L13_messages_acknowledged_by_expression_are_not_handed_over(
    empty: Bench, lease: str | None
) -> None:
    """Although they were in the client's buffer."""
    empty.define(max_per_subscription_backlog=9, lease_period=lease)
    consumer = empty.consumer(ack_mode="individual", backlog=9)
    sent = [empty.send({"n": n}) for n in range(6)]
    held = consumer.receive(0)
    consumer.ack(where="/n = 2 OR /n > 3")
    assert ids(drain(consumer)) == [sent[1], sent[3]]
    held.ack()
    assert (empty.seen()["acknowledged"], empty.seen()["ack_ignored"]) == (4, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inbox", commands.Inbox("default.deliveries", 3)),
        ("inbox", commands.Inbox("default.deliveries.other", 0)),
        ("framing", "batch"),
        ("acks", "none"),
        ("filter", "/n > 3"),
        ("session", "another"),
    ],
)
def test_C6_a_subscription_cannot_be_repeated_with_other_options(
    bench: Bench, key: str, value: object
) -> None:
    """The same command repeated succeeds; another one under the same id fails."""
    first: dict[str, Any] = {
        "queue": "orders", "subscription": "s", "session": "mine",
        "inbox": commands.Inbox("default.deliveries", 0), "max_backlog": 7,
    }  # fmt: skip
    answer = bench.connection.request(commands.Subscribe(**first))
    assert answer == {
        "removes_on_send": False, "heartbeat_timeout_ms": 15_000, "backlog": 7, "epoch": 0,
        "lease_ms": None,
    }  # fmt: skip
    assert bench.connection.request(commands.Subscribe(**first)) == answer
    with pytest.raises(LakequeueError, match=f"subscription: 's' – is bound already with {key}"):
        bench.connection.request(commands.Subscribe(**{**first, key: value}))
    assert [c["name"] for c in bench.seen()["consumers"]] == ["s"]
    send(bench, 1)
    assert bench.seen()["leased"] == 1


def test_acks_are_sent_for_half_of_the_backlog_or_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer with a small backlog gets its next message at once."""
    bench = Threaded()
    monkeypatch.setattr(settling, "ACKS_WAIT_MS", 3_600_000)
    send(bench, 12)

    def acked(backlog: int, count: int) -> list[str]:
        with bench.consumer(backlog=backlog) as consumer:
            for _ in range(count):
                consumer.receive(WAIT_S).ack()
            return [command["ids"] for command in bench.wire.said("ack")]

    assert acked(1, 1) == ["1"]
    assert acked(10, 4) == ["1"]
    assert acked(10, 5) == ["1", "2-5", "6-10"]  # the others are sent with `close`
    monkeypatch.setattr(settling, "ACKS_WAIT_MS", 0)
    with bench.consumer(backlog=10) as consumer:
        consumer.receive(WAIT_S).ack()
        wait_for(lambda: bench.wire.said("ack")[-1]["ids"] == "11")


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("mode", ["individual", "client"])
@pytest.mark.parametrize("is_settled", [False, True])
def test_C5_an_ack_that_is_interrupted_can_be_given_again(
    monkeypatch: pytest.MonkeyPatch, mode: str, is_settled: bool
) -> None:
    """Otherwise the engine would wait for the ack for ever, as would a small backlog for room."""
    bench = Threaded()
    consumer = bench.consumer(ack_mode=mode, backlog=2)
    send(bench, 5)
    messages = [consumer.receive(WAIT_S) for _ in range(2)]

    settle = Message.settle

    def interrupted(message: Message, outcome: str) -> None:
        if is_settled:
            settle(message, outcome)
        raise KeyboardInterrupt

    monkeypatch.setattr(Message, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        messages[1].ack()
    monkeypatch.undo()
    for message in messages:
        message.ack()
    for _ in range(3):
        consumer.receive(WAIT_S).ack()
    wait_for(lambda: bench.seen()["depth"] == 0)


@pytest.mark.parametrize("call", [Message.cancel, Message.put_back, Message.reject])
def test_L1_giving_up_that_is_interrupted_can_be_repeated(call: Callable[[Message], None]) -> None:
    bench = Threaded()
    consumer = bench.consumer(backlog=1)
    send(bench, 2)
    message = consumer.receive(WAIT_S)

    class Interrupted(dict[int, Message]):
        def pop(self, *given: Any) -> Any:
            super().pop(*given)
            consumer._prefetch.held = dict(self)
            raise KeyboardInterrupt

    consumer._prefetch.held = Interrupted(consumer._prefetch.held)
    with pytest.raises(KeyboardInterrupt):
        call(message)
    call(message)
    assert consumer.receive(WAIT_S).redelivered == (call is Message.cancel)


@pytest.mark.parametrize("mode", settling.ACK_MODES)
def test_C4_ctrl_c_around_a_callback_loses_no_message(bench: Bench, mode: str) -> None:
    """On memory:// it runs in the thread that Ctrl-C interrupts. A message that it did not get
    waits on; one that it got is settled as the mode says."""
    bench.define(max_per_subscription_backlog=2, lease_period="1h")
    for nth in itertools.count(1):
        got: list[Message] = []

        def work(message: Message, got: list[Message] = got) -> None:
            got.append(message)
            if mode in ("client", "individual"):
                message.ack()

        sent, moment = send(bench, 2), CtrlC(nth)
        with bench.consumer(ack_mode=mode, backlog=2) as consumer:
            with suppress(KeyboardInterrupt), moment:
                consumer.on_message(work)
            consumer.on_message(work)
            bench.advance("1s")
            assert sorted({int(m.id) for m in got}) == [int(n) for n in sent], f"moment {nth}"
            for message in got if mode in ("client", "individual") else ():
                message.ack()
            bench.advance("1s")
            assert bench.seen()["depth"] == 0, f"moment {nth}"
        if moment.left > 0:
            break
    assert nth > 20


@pytest.mark.parametrize("mode", settling.ACK_MODES)
def test_C3_ctrl_c_in_receive_loses_no_message(bench: Bench, mode: str) -> None:
    """At whatever moment: the application cannot settle a message that it did not get."""
    bench.define(max_per_subscription_backlog=2, lease_period="1h")
    consumer = bench.consumer(ack_mode=mode, backlog=2)
    for nth in itertools.count(1):
        sent, got, moment = send(bench, 2), [], CtrlC(nth)
        bench.advance("10m")  # so the lease is renewed before the application gets the message
        with suppress(KeyboardInterrupt), moment:
            got = consumer.receive_many(2, 0)
        got += consumer.receive_many(2, 0)
        assert ids(got) == sent, f"interrupted at moment {nth}"
        for message in got:
            message.ack()
        bench.advance("1s")
        assert bench.seen()["depth"] == 0
        if moment.left > 0:  # it was not interrupted any more
            break
    assert nth > 20
