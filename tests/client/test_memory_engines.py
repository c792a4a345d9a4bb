"""Engines in memory: which connections share one, how long it lives, and its use by threads."""

import contextlib
import gc
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import lakequeue
import pytest
from client.threaded import CtrlC, Threaded, connect
from lakequeue.client.session.transport import Record
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryEngine, inline, registry
from lakequeue.memory.loopback import MemoryTransport
from lakequeue.protocol import ConfigError, NotConnected, Timeout
from lakequeue.protocol.commands import Describe
from lakequeue.state import Limits
from rules.harness import Bench

ORDERS = {"name": "orders", "message_type": "json"}


@pytest.mark.parametrize("how", ["closed", "forgotten", "kept"])
def test_an_engine_ends_with_its_last_connection_unless_kept(how: str) -> None:
    one = lakequeue.connect(f"memory://{how}" + ("?keep=true" if how == "kept" else ""))
    two = lakequeue.connect(f"memory://{how}")
    one.admin().define(ORDERS)
    one.producer().send("orders", b"{}")
    for _ in range(2):
        one.close()
    assert [q["name"] for q in two.admin().queues()] == ["orders"]
    if how != "forgotten":
        two.close()
    del one, two
    gc.collect()
    with lakequeue.connect(f"memory://{how}") as again:
        assert [q["name"] for q in again.admin().queues()] == ["orders"] * (how == "kept")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("memory://x?keep=yes", "keep: 'yes' – allowed are true and false"),
        ("memory://?keep=true", "keep: 'true' – allowed are .*, for an engine with a name"),
        ("memory://x?config=", "config: '' – allowed are a mapping and the path of a file"),
        ("memory://x?kepe=true", "url: 'kepe' – allowed in a memory:// url are 'config' and 'kee"),
        (None, "^url: None – allowed are 'kafka://HOST:PORT' and 'memory://NAME'$"),
        ("", "^url: '' – allowed are 'kafka://HOST:PORT' and 'memory://NAME'$"),
        ("kafka://[::1", r"^url: 'kafka://\[::1' – Invalid IPv6 URL; allowed are 'kafka://HOST"),
        ("amqp://x", "url: 'amqp://x' – allowed are 'kafka://HOST:PORT' and 'memory://NAME'"),
        *((url, "url: .* – allowed are .*; a VPN or a broker: vpn=, broker=$")
          for url in ("kafka://x:1/east", "kafka://x:1?broker=b", "memory://x/east", "memory://#x")),
    ],
)  # fmt: skip
def test_a_wrong_address_is_named(url: str | None, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        lakequeue.connect(url)  # type: ignore[arg-type]


def test_functions_of_memory_engines_are_refused_elsewhere() -> None:
    connection = Threaded().connection
    for call in (
        lambda: connection.advance("1s"), lambda: connection.publish_raw("orders", b"{}"),
        connection.consumer("orders").kill,
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="works on memory:// only"):
            call()


def test_a_forked_child_cannot_use_the_parents_engine() -> None:
    """Two copies of an engine would deliver the same messages. The parent keeps its own."""
    with lakequeue.connect("memory://forked") as parent:
        if (child := os.fork()) == 0:
            try:
                with pytest.raises(
                    NotConnected, match=r"^the engine of memory://forked is in the "
                ):
                    lakequeue.connect("memory://forked")
                with lakequeue.connect("memory://of-the-child") as own:
                    own.admin().define(ORDERS)
                    parent.close()
                    assert [q["name"] for q in own.admin().queues()] == ["orders"]
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        with lakequeue.connect("memory://forked") as other:
            assert other.engine is parent.engine


def test_R6_long_answers_are_complete() -> None:
    """A long answer comes in parts, and the client requests the next one."""
    names = [f"queue-{n}" for n in range(7)]
    queues = [ORDERS | {"name": name} for name in names]
    limits = Limits(browse_rows=3, queues_listed=2)
    connection, wire = connect(MemoryEngine(parse_configuration({"queues": queues}), limits))
    producer, admin = connection.producer(), connection.admin()
    assert [q["name"] for q in admin.queues()] == names
    assert len(wire.said("queues")) > 1
    for n in range(10):
        producer.send(names[0], b"%d" % n)
    assert [m.payload for m in admin.browse(names[0], limit=100)] == [b"%d" % n for n in range(10)]
    assert len(wire.said("browse")) > 1
    for options in ({}, {"where": "/a IS NULL"}):
        assert [m.id for m in admin.browse(names[0], limit=7, **options)] == list("1234567")


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads switch as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def test_a_thread_waits_for_an_answer_taken_by_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each thread's call takes everything that has arrived, and may take long to hand it over."""
    asking, other = threading.Event(), threading.Event()
    poll = MemoryTransport.poll
    with lakequeue.connect("memory://taken") as connection:
        connection.admin().define(ORDERS)
        connection.producer().send("orders", b"{}")

        def slow(transport: MemoryTransport, timeout: float) -> list[Record]:
            if threading.current_thread() is not taker:
                asking.set()  # it has asked, and is about to look for its answer
                other.wait(60)
                return poll(transport, timeout)
            records = poll(transport, timeout)
            other.set()
            time.sleep(0.2)
            return records

        def take() -> None:
            assert asking.wait(60)
            connection.request(Describe(queue="orders"))

        taker = threading.Thread(target=take)
        taker.start()
        monkeypatch.setattr(MemoryTransport, "poll", slow)
        assert connection.request(Describe(queue="orders"))["depth"] == 1
        taker.join()


def test_threads_sharing_a_connection_get_their_own_answers(eager: None) -> None:
    with lakequeue.connect("memory://threads") as connection:
        admin = connection.admin()
        admin.define(ORDERS)
        producer = connection.producer()

        def work(n: int) -> int:
            for _ in range(25):
                producer.send("orders", b"{}")
                assert admin.describe("orders")["name"] == "orders"
            return n

        with ThreadPoolExecutor(8) as threads:
            assert sorted(threads.map(work, range(8))) == list(range(8))
        assert admin.describe("orders")["depth"] == 200


def test_polling_callbacks_do_not_deadlock(eager: None) -> None:
    with lakequeue.connect("memory://callbacks") as connection:
        connection.admin().define(ORDERS)
        producer = connection.producer()

        def again(_: object) -> None:
            producer.flush(timeout=0)

        def work(_: int) -> None:
            for _ in range(10):
                with contextlib.suppress(Timeout):
                    producer.send_async("orders", b"{}").add_done_callback(again)
                    producer.flush(timeout=5)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        assert connection.admin().describe("orders")["depth"] == 40


def test_threads_that_send_and_acknowledge_do_not_deadlock() -> None:
    """While it sends, a thread hands records over to the others' producers and consumers."""
    with lakequeue.connect("memory://") as connection:
        queue = {"name": "orders", "message_type": "binary", "max_per_subscription_backlog": 100}
        connection.admin().define(queue)
        producer = connection.producer()
        consumer = connection.consumer("orders", ack_mode="individual", max_backlog=50)
        count, seen = 600, list[str]()

        def send() -> None:
            for _ in range(count // 3):
                producer.send_async("orders", b"x")

        def acknowledge() -> None:
            while len(seen) < count:
                if (message := consumer.receive(timeout=0.01)) is not None:
                    message.ack()
                    seen.append(message.id)

        threads = [
            threading.Thread(target=one, daemon=True) for one in (send,) * 3 + (acknowledge,) * 2
        ]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        finally:
            sys.setswitchinterval(before)
        assert not any(thread.is_alive() for thread in threads)
        assert len(set(seen)) == count


def test_a_connection_waits_for_a_busy_engine_alone() -> None:
    """The busy thread may have to note that a connection was dropped."""
    with lakequeue.connect("memory://busy") as one:
        connecting = threading.Thread(target=lakequeue.connect, args=("memory://busy",))
        with one.engine._lock:
            connecting.start()
            connecting.join(0.2)
            assert registry._lock.acquire(timeout=10)
            registry._lock.release()
        connecting.join(60)


def test_ctrl_c_ends_the_turn_of_its_thread(bench: Bench) -> None:
    """Later calls of any thread would wait for it, until their timeout."""
    for nth in itertools.count(1):
        moment = CtrlC(nth, "/memory/inline")
        with contextlib.suppress(KeyboardInterrupt), moment:
            bench.seen()
        runner = bench.connection.runner
        assert (runner._busy, inline._thread.depth) == (set(), 0), f"moment {nth}"
        if moment.left > 0:
            break
    assert nth > 5


def test_C3_messages_of_a_forgotten_connection_return() -> None:
    """As over Kafka, where its threads end; and the engine keeps no records for it."""
    with lakequeue.connect("memory://left") as connection:
        connection.admin().define(ORDERS)
        connection.producer().send("orders", b"{}")
        other = lakequeue.connect("memory://left")
        assert other.consumer("orders").receive() is not None
        connection.advance("1h")
        assert connection.admin().describe("orders")["leased"] == 1
        del other
        gc.collect()
        connection.advance("1m")
        assert connection.admin().describe("orders")["ready"] == 1
        assert len([ref for _, ref in connection.engine._inboxes if ref() is not None]) == 2


@pytest.mark.parametrize("call", ["advance", "publish_raw"])
def test_a_closed_connection_neither_moves_the_clock_nor_publishes(call: str) -> None:
    arguments = {"advance": ("1s",), "publish_raw": ("orders", b"{}")}[call]
    with lakequeue.connect("memory://shared-clock") as other:
        with lakequeue.connect("memory://shared-clock") as connection:
            now = other.now()
        with pytest.raises(NotConnected, match="the connection is closed"):
            getattr(connection, call)(*arguments)
        assert other.now() == now
