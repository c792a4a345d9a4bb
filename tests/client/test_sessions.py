"""C3: a client resumes a lost session, once, and leaves nothing behind.

L5: prefetched messages that were never handed over return unread, which counts no attempt.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import lakequeue
import pytest
from client.threaded import WAIT_S, Held, Threaded, connect, wait_for
from lakequeue.client.consumer import binding
from lakequeue.protocol import ConfigError, NotConnected, Timeout, commands
from rules.harness import Bench, drain, ids


def subscriptions(bench: Bench) -> list[str]:
    """The engine's subscriptions, as another client sees them."""
    look, _ = connect(bench.engine, "look")
    return [c["subscription"] for c in look.admin().describe("orders")["consumers"]]


def next_one_only(bench: Threaded) -> None:
    """No consumer was left behind: the next one is the only one, and receives."""
    bench.send(b"1")
    consumer = bench.consumer()
    assert subscriptions(bench) == [consumer.subscription]
    assert consumer.receive(timeout=10).payload == b"1"


def test_C3_a_client_with_a_lost_session_subscribes_again() -> None:
    bench = Threaded(system={"heartbeat_timeout": "300ms"})
    consumer = bench.consumer()
    first = consumer.subscription
    bench.send(b"1")
    assert consumer.receive(timeout=10).delivery_count == 1
    bench.advance("300ms")
    assert first not in subscriptions(bench), "it may be back already"
    wait_for(lambda: subscriptions(bench))
    message = consumer.receive(timeout=10)
    assert (message.payload, message.delivery_count) == (b"1", 2)
    message.ack()


def test_C3_two_reports_of_a_lost_session_make_one_subscription() -> None:
    """Both heartbeats were sent before the first answer came."""
    bench = Threaded(Held, system={"heartbeat_timeout": "10m"})
    consumer = bench.consumer()
    bench.wire.let_go.clear()
    for _ in range(2):
        bench.connection._heartbeat_answered(0, {"result": False})
        wait_for(lambda: not bench.connection._follow)
    wait_for(lambda: len(bench.wire.said("subscribe")) == 2)
    bench.wire.let_go.set()
    wait_for(lambda: not bench.connection._binding)
    assert len(bench.wire.said("subscribe")) == 2
    assert subscriptions(bench) == [consumer.subscription]
    bench.send(b"1")
    assert consumer.receive(timeout=10).payload == b"1"


def test_C3_a_consumer_that_could_not_be_created_leaves_nothing() -> None:
    bench = Threaded()
    with pytest.raises(ConfigError, match="there is no such queue"):
        bench.consumer("nowhere")
    assert bench.connection._consumers == {}
    bench.connection.request(commands.Queues())
    bench.connection.close()
    assert bench.wire.said("heartbeat") == []


def test_C3_a_closed_consumer_does_not_resubscribe() -> None:
    bench = Threaded()
    consumer = bench.consumer()
    consumer.close()
    consumer.subscribe()
    assert subscriptions(bench) == []


def test_C3_a_consumer_closed_during_its_resubscription_keeps_nothing() -> None:
    """It kept its backlog of messages from others until the connection was closed."""
    bench = Threaded(Held)
    consumer = bench.consumer(backlog=5)
    bench.send(b"1")
    bench.waiting(consumer, 1)
    bench.wire.let_go.clear()
    binding = threading.Thread(target=consumer.subscribe)
    binding.start()
    wait_for(lambda: bench.wire.said("return"))  # it waits for the answer
    consumer.close()
    bench.wire.let_go.set()
    binding.join(60)
    assert subscriptions(bench) == []
    assert bench.connection._consumers == {}
    next_one_only(bench)


def test_B3_a_backlog_changed_during_a_resubscription_holds() -> None:
    """A consumer with backlog 0 was never served again."""
    bench = Threaded(Held)
    consumer = bench.consumer(backlog=0)
    bench.wire.let_go.clear()
    calls = [threading.Thread(target=consumer.set_max_backlog, args=(5,))]
    calls[0].start()
    wait_for(lambda: bench.wire.said("set_backlog"))
    calls += [threading.Thread(target=consumer.subscribe)]
    calls[1].start()
    wait_for(lambda: len(bench.wire.said("subscribe")) == 2)
    bench.wire.let_go.set()
    for call in calls:
        call.join(60)
    (seen,) = bench.seen()["consumers"]
    assert (seen["subscription"], seen["backlog"]) == (consumer.subscription, 5)


def test_C3_a_consumer_whose_engine_did_not_answer_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine subscribes it after its client has given up, and the session lives on: no message
    may be leased to a consumer that does not exist."""
    monkeypatch.setattr(binding, "REQUEST_TIMEOUT_S", 0.2)
    bench = Threaded()
    bench.wire.lose_received = lambda record: True
    with pytest.raises(Timeout):
        bench.consumer()
    bench.wire.lose_received = lambda record: False
    monkeypatch.undo()
    next_one_only(bench)


def test_C3_a_consumer_interrupted_during_its_creation_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C in a shell whose connection stays open."""
    bench = Threaded()
    wait = bench.connection.wait

    def interrupted(*given: Any) -> bool:
        wait(*given)  # the engine has answered
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.connection, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.consumer()
    monkeypatch.undo()
    wait_for(lambda: subscriptions(bench) == [])
    next_one_only(bench)


@pytest.mark.parametrize("kind", [Threaded, Bench])
def test_a_forked_child_is_refused_at_once(kind: Callable[[], Bench]) -> None:
    """receive() would otherwise wait for a thread that does not exist; and what is sent to a copy
    of an engine in memory is lost."""
    bench = kind()
    if kind is Bench:
        bench.define()
    consumer = bench.consumer()
    bench.send()
    calls = [bench.send, consumer.receive, bench.consumer, bench.connection.admin]
    if kind is Bench:
        calls += [lambda: bench.advance("1s"), lambda: bench.plain("orders", b"{}")]
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            for call in calls:
                with pytest.raises(NotConnected) as caught:
                    call()
                os.write(write, f"{caught.value}\n".encode())
            consumer.close()
            bench.connection.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    expected = f"this connection was opened in process {os.getpid()}; open a new one after a fork"
    assert os.read(read, 10_000).decode().splitlines() == [expected] * len(calls)
    consumer.receive(timeout=10).ack()
    consumer.close()
    assert bench.seen()["depth"] == 0


# ---------------------------------------------------------------- unread messages


def test_L5_nothing_is_dead_lettered_with_the_shipped_configuration() -> None:
    """By an application that is started and stopped often."""
    with lakequeue.connect("memory://?config=conf/queues.yaml") as connection:
        producer, admin = connection.producer(), connection.admin()
        for n in range(200):
            producer.send("orders", b'{"n": %d}' % n)
        for _ in range(5):
            with connection.consumer("orders", ack_mode="individual", max_backlog=100) as consumer:
                consumer.receive(timeout=5).ack()
        seen = admin.describe("orders")
        assert (seen["depth"], seen["acknowledged"], seen["dead_lettered"]) == (195, 5, 0)
        assert admin.describe("orders-dmq")["depth"] == 0
        assert {m.delivery_count for m in admin.browse("orders", limit=200)} == {0}


def test_L5_a_message_put_back_counts_no_attempt(empty: Bench) -> None:
    empty.define(max_deliveries=1, max_per_subscription_backlog=100)
    sent = [empty.send({"n": n}) for n in range(3)]
    with empty.consumer(backlog=3) as consumer:
        for message in drain(consumer):
            message.put_back()
            message.ack()  # too late
        again = drain(consumer)
        assert ids(again) == sent
        assert [m.delivery_count for m in again] == [1, 1, 1]


def test_L5_messages_in_flight_at_the_close_return_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakequeue.client.consumer.consumer.RETURN_S", WAIT_S)
    bench = Threaded(Held)
    consumer = bench.consumer()
    bench.wire.let_go.clear()
    for n in range(20):
        bench.producer.send_async("orders", b"%d" % n, ack_immediately=True)
    admin = connect(bench.engine, "look")[0].admin()
    wait_for(lambda: admin.describe("orders")["leased"] == 20)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    wait_for(lambda: bench.wire.said("set_backlog"))
    bench.wire.let_go.set()
    closing.join(WAIT_S)
    wait_for(lambda: admin.describe("orders")["ready"] == 20)
    assert {m.delivery_count for m in admin.browse("orders")} == {0}
