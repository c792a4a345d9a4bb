"""C4, C5, C6, L8, L13: what each acknowledgement mode does, on memory and with the client's thread.

What a crash redelivers in each mode is in `test_failures.py`.
"""

import threading
import time
from typing import Any

import pytest
from client.threaded import WAIT_S, connect, engine, wait_for
from lakequeue.client.consumer import settling
from lakequeue.protocol import ConfigError, LakequeueError, LeaseLost, commands
from rules.harness import Bench, drain, ids

ORDERS = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100}


def send(bench: Bench, count: int) -> list[str]:
    return [bench.send({"n": n}) for n in range(count)]


# ---------------------------------------------------------------- dups_ok


def test_C4_dups_ok_every_n_messages(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="dups_ok", dups_ok_count=3, dups_ok_interval=0)
    send(bench, 8)
    acknowledged = []
    while consumer.receive(timeout=0) is not None:
        acknowledged.append(bench.seen()["acknowledged"])
    assert acknowledged == [0, 0, 3, 3, 3, 6, 6, 6]
    bench.advance("1h")
    assert bench.seen()["acknowledged"] == 6


def test_C4_dups_ok_every_k_ms(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="dups_ok", dups_ok_count=0, dups_ok_interval="700ms")
    send(bench, 20)
    assert len(drain(consumer)) == 20
    bench.advance("699ms")
    assert bench.seen()["acknowledged"] == 0
    bench.advance("1ms")
    assert bench.seen()["acknowledged"] == 20


def test_C4_dups_ok_leaves_out_what_the_callback_works_on(bench: Bench) -> None:
    """Its time comes while a callback runs: only what is done is acknowledged."""
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


def test_C4_dups_ok_sends_what_is_due_when_it_closes(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="dups_ok", dups_ok_count=50, dups_ok_interval="1h")
    send(bench, 5)
    consumer.receive(timeout=0)
    consumer.receive(timeout=0)
    consumer.close()
    assert ids(drain(bench.consumer())) == ["3", "4", "5"]


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
        for _ in range(2):  # what failed comes again as the clock moves
            bench.advance("1m")
        consumer.close()
        return [(e["event"], e["message_id"], e["deliveries"]) for e in bench.engine.journal()]

    found = events(ack_mode="dups_ok", dups_ok_count=n, dups_ok_interval=0)
    assert found == events(ack_mode=same)
    assert ("acknowledged", "1", 0) in [(e, str(i), 0) for e, i, _ in found]


def test_C4_C6_n_is_at_most_the_prefetch(empty: Bench) -> None:
    empty.define(max_per_subscription_backlog=5)
    options: dict[str, Any] = {"ack_mode": "dups_ok", "dups_ok_interval": 0}
    with pytest.raises(ConfigError, match="dups_ok_count: 4 – allowed is at most the backlog, 3"):
        empty.connection.consumer("orders", max_backlog=3, dups_ok_count=4, **options)
    with pytest.raises(ConfigError, match="dups_ok_count: 6 – allowed is at most the backlog, 5"):
        empty.connection.consumer("orders", max_backlog=9, dups_ok_count=6, **options)
    with pytest.raises(ConfigError, match="dups_ok_count: 2 – allowed is at most the backlog, 1"):
        empty.connection.consumer("orders", dups_ok_count=2, **options)
    assert empty.seen()["consumers"] == []
    consumer = empty.connection.consumer("orders", max_backlog=5, dups_ok_count=5, **options)
    with pytest.raises(ConfigError, match="dups_ok_count: 5 – allowed is at most the backlog, 4"):
        consumer.set_max_backlog(4)
    for wrong in (-1, True, 1.5):
        with pytest.raises(ConfigError, match="dups_ok_count: "):
            empty.connection.consumer("orders", ack_mode="dups_ok", dups_ok_count=wrong)


def test_C4_dups_ok_without_a_count_never_stands_still(empty: Bench) -> None:
    """With a prefetch of one, waiting for ten would be waiting for ever."""
    empty.define()
    consumer = empty.connection.consumer("orders", ack_mode="dups_ok", dups_ok_interval=0)
    sent = send(empty, 3)
    assert ids(drain(consumer)) == sent


# ---------------------------------------------------------------- pre_ack


def test_C4_pre_ack_keeps_no_more_than_a_backlog(bench: Bench) -> None:
    """Who receives nothing must not draw the whole queue into its memory."""
    consumer = bench.consumer(ack_mode="pre_ack", backlog=4)
    sent = send(bench, 30)
    bench.advance("1m")
    seen = bench.seen()
    assert (seen["acknowledged"], seen["leased"], seen["ready"]) == (4, 4, 22)
    assert ids(drain(consumer)) == sent
    assert bench.seen()["acknowledged"] == 30
    assert bench.seen()["ack_ignored"] == 0


# ---------------------------------------------------------------- failures of callbacks


@pytest.mark.parametrize("mode", ["client", "individual"])
def test_C4_after_an_exception_the_message_stays_with_the_consumer(bench: Bench, mode: str) -> None:
    """Only auto and dups_ok acknowledge by themselves, so only they cancel by themselves."""
    consumer = bench.consumer(ack_mode=mode)
    kept: list[Any] = []

    def fail(message: Any) -> None:
        kept.append(message)
        raise ValueError("a mistake of the application")

    consumer.on_message(fail)
    send(bench, 2)
    assert bench.seen()["leased"] == 2
    assert bench.seen()["canceled"] == 0
    kept[1].ack()
    assert bench.seen()["acknowledged"] == (2 if mode == "client" else 1)


def test_C4_L11_dups_ok_cancels_what_failed_and_backs_off(empty: Bench) -> None:
    empty.define(max_per_subscription_backlog=9, redelivery_delay="10s")
    consumer = empty.consumer(ack_mode="dups_ok", backlog=9, dups_ok_count=9, dups_ok_interval="1s")
    seen: list[tuple[str, int]] = []

    def fail_once(message: Any) -> None:
        seen.append((message.id, message.delivery_count))
        if seen == [("1", 1), ("2", 1)]:
            raise ValueError("a mistake of the application")

    consumer.on_message(fail_once)
    send(empty, 3)
    empty.advance("2s")
    assert empty.seen()["acknowledged"] == 2
    empty.advance("8s")
    empty.advance("1s")
    assert seen == [("1", 1), ("2", 1), ("3", 1), ("2", 2)]
    assert empty.seen()["acknowledged"] == 3


def test_C4_a_cancel_in_the_callback_wins_over_auto(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="auto")
    counts: list[int] = []

    def work(message: Any) -> None:
        counts.append(message.delivery_count)
        if len(counts) == 1:
            message.cancel()

    consumer.on_message(work)
    send(bench, 1)
    assert counts == [1, 2]
    assert (bench.seen()["canceled"], bench.seen()["acknowledged"]) == (1, 1)


def test_C4_L4_auto_does_not_acknowledge_a_delivery_that_came_again(empty: Bench) -> None:
    """The lease ends while the callback runs: what it did does not count for the new delivery."""
    empty.define(lease_period="1s", max_per_subscription_backlog=9)
    consumer = empty.consumer(ack_mode="auto")
    steps: list[tuple[str, int]] = []

    def slow(message: Any) -> None:
        steps.append(("begins", message.delivery_count))
        if len(steps) == 1:
            empty.advance("1s")
        steps.append(("ends", message.delivery_count))

    consumer.on_message(slow)
    send(empty, 1)
    assert steps == [("begins", 1), ("ends", 1), ("begins", 2), ("ends", 2)]
    assert empty.seen()["acknowledged"] == 1


# ---------------------------------------------------------------- closing


@pytest.mark.parametrize("mode", ["auto", "client", "individual"])
def test_C3_C4_close_waits_for_the_callback_that_runs(mode: str) -> None:
    """Its message is acknowledged, by itself or by the mode; what waited behind it returns."""
    connection, _ = connect(engine(ORDERS))
    producer = connection.producer()
    consumer = connection.consumer("orders", ack_mode=mode, max_backlog=10)
    entered, go_on = threading.Event(), threading.Event()

    def work(message: Any) -> None:
        entered.set()
        assert go_on.wait(60)
        if mode != "auto":
            message.ack()

    consumer.on_message(work)
    for _ in range(3):
        producer.send("orders", b"{}")
    assert entered.wait(60)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    go_on.set()
    closing.join(60)
    seen = connection.admin().describe("orders")
    assert (seen["acknowledged"], seen["ready"], seen["leased"]) == (1, 2, 0)


@pytest.mark.parametrize("mode", ["client", "individual", "auto", "dups_ok"])
def test_C3_C4_closed_in_its_own_callback(bench: Bench, mode: str) -> None:
    """The message in hand was not acknowledged: it returns, and its ack comes too late."""
    consumer = bench.consumer(ack_mode=mode)
    late: list[str] = []

    def work(message: Any) -> None:
        consumer.close()
        try:
            message.ack()
        except LeaseLost as error:
            late.append(str(error))

    send(bench, 2)
    consumer.on_message(work)
    assert len(late) == (0 if mode == "auto" else 1)
    assert ids(drain(bench.consumer())) == ["1", "2"]


# ---------------------------------------------------------------- on the wire


def test_C5_acks_are_batched_and_a_cancel_does_not_overtake_them() -> None:
    connection, wire = connect(engine(ORDERS))
    producer = connection.producer()
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=100)
    for _ in range(60):
        producer.send_async("orders", b"{}")
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
    sent = [(c["command"], c["ids"]) for c in wire.said("ack", "cancel", "reject", "renew")]
    assert sent == [
        ("ack", "1-40"), ("cancel", "41"), ("ack", "42-50"), ("reject", "51"), ("ack", "52"),
        ("renew", "53"),
    ]  # fmt: skip
    messages[59].ack()
    consumer.close()
    assert [(c["command"], c.get("ids")) for c in wire.commands[-4:]] == [
        ("ack", "60"), ("set_backlog", None), ("return", "41"), ("unsubscribe", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"ids": "1", "up_to": "2"}, "ids and up_to"),
        ({"ids": "1", "where": "/n = 0"}, "ids and where"),
        ({"up_to": "1", "where": "/n = 0"}, "up_to and where"),
        ({"ids": "1", "up_to": "1", "where": "/n = 0"}, "ids and up_to and where"),
        ({}, "none of them"),
    ],
)
def test_L13_an_ack_says_one_thing(bench: Bench, given: dict[str, str], found: str) -> None:
    """Refused by the engine, whatever client wrote it; nothing is acknowledged."""
    consumer = bench.consumer()
    send(bench, 2)
    command = commands.Ack(queue="orders", subscription=consumer.subscription, **given)
    with pytest.raises(ConfigError, match=f"ack: {found} – give exactly one of ids, up_to, where"):
        bench.connection.request(command)
    assert bench.seen()["depth"] == 2
    with pytest.raises(ConfigError, match="exactly one"):
        consumer.ack(**given)


def test_L13_up_to_is_one_id(bench: Bench) -> None:
    consumer = bench.consumer()
    send(bench, 3)
    for wrong in ("1-3", "1,3"):
        command = commands.Ack(queue="orders", subscription=consumer.subscription, up_to=wrong)
        with pytest.raises(ConfigError, match=f"up_to: '{wrong}' – allowed is one message id"):
            bench.connection.request(command)
    assert bench.seen()["depth"] == 3


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
def test_C6_a_bound_subscription_is_not_bound_otherwise(
    bench: Bench, key: str, value: object
) -> None:
    """The same command again is a success; another one under the same id is none."""
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


@pytest.mark.parametrize("mode", ["auto", "dups_ok"])
def test_C4_L8_a_callback_that_fails_after_its_lease_ended_is_not_the_last(mode: str) -> None:
    """The cancel comes too late, and says so to nobody: the thread of the callbacks goes on."""
    made = engine({"name": "orders", "message_type": "text", "lease_period": "200ms",
                   "max_per_subscription_backlog": 10})  # fmt: skip
    connection, _ = connect(made)
    producer = connection.producer()
    seen: list[bytes] = []

    def callback(message: Any) -> None:
        seen.append(message.payload)
        if message.payload == b"slow":
            time.sleep(0.4)
            raise RuntimeError("too late")

    consumer = connection.consumer("orders", ack_mode=mode, max_backlog=10)
    consumer.on_message(callback)
    producer.send("orders", b"slow")
    producer.send("orders", b"next")
    wait_for(lambda: b"next" in seen)
    assert seen[0] == b"slow"
    assert b"next" in seen


@pytest.mark.parametrize("what", ["cancel", "reject"])
@pytest.mark.parametrize("mode", ["auto", "pre_ack", "no_ack"])
def test_C4_what_is_acknowledged_already_does_not_come_again_and_that_is_said(
    bench: Bench, caplog: pytest.LogCaptureFixture, mode: str, what: str
) -> None:
    send(bench, 1)
    message = bench.consumer(ack_mode=mode).receive(timeout=0)
    getattr(message, what)()
    done = {"cancel": "canceled", "reject": "rejected"}[what]
    assert f"message 1 of queue 'orders' is not {done}: it was settled before" in caplog.text
    assert bench.seen()["acknowledged"] == 1


def test_acks_are_sent_for_half_of_the_backlog_or_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer with a small backlog gets its next message at once."""
    connection, wire = connect(engine(ORDERS))
    monkeypatch.setattr(settling, "ACKS_WAIT_MS", 3_600_000)
    with connection, connection.producer() as producer:
        for n in range(12):
            producer.send("orders", f"{n}")

        def acked(backlog: int, count: int) -> list[str]:
            with connection.consumer(
                "orders", ack_mode="individual", max_backlog=backlog
            ) as consumer:
                for _ in range(count):
                    message = consumer.receive(WAIT_S)
                    message.ack()
                return [command["ids"] for command in wire.said("ack")]

        assert acked(1, 1) == ["1"]
        assert acked(10, 4) == ["1"]
        assert acked(10, 5) == ["1", "2-5", "6-10"]  # what is left is sent with `close`
        monkeypatch.setattr(settling, "ACKS_WAIT_MS", 0)
        with connection.consumer("orders", ack_mode="individual", max_backlog=10) as consumer:
            message = consumer.receive(WAIT_S)
            message.ack()
            wait_for(lambda: wire.said("ack")[-1]["ids"] == "11")
