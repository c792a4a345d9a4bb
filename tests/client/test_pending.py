"""The future of a sent message behaves like Python's own where other code relies on it (P3, P6)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ALL_COMPLETED, TimeoutError, as_completed, wait
from types import SimpleNamespace

import pytest
from client.threaded import WAIT_S, Held, Threaded, wait_for
from lakequeue import LakequeueError, NotConnected, Rejected
from lakequeue.client.consumer import consumer as consumer_module
from lakequeue.client.producer.receipts import Pending, settle


@pytest.fixture
def session():
    return Threaded().connection


def answer_later(session, pending, number, error=None):
    def answer():
        settle(pending, number, error)
        session.wake()

    threading.Timer(0.05, answer).start()


def test_a_future_returns_the_receipt_or_raises_and_cannot_be_cancelled(session):
    pending, unstored, refused = (Pending(session, "orders", (), n) for n in (7, 0, 1))
    assert (pending.done(), pending.running()) == (False, True)
    assert (pending.cancel(), pending.cancelled()) == (False, False)
    settle(pending, 42)
    settle(unstored, 0)
    settle(refused, 0, Rejected("queue_quota", "orders"))
    assert pending.done()
    assert (pending.result().sequence, pending.result().message_id) == (7, "42")
    assert unstored.result().message_id is None
    assert refused.exception().reason == "queue_quota"
    with pytest.raises(Rejected, match="orders"):
        refused.result()


@pytest.mark.parametrize("known_as", ["_done_callbacks", "_waiters"])
def test_a_result_requested_while_the_answer_comes_is_returned(session, known_as):
    """Python's own code checks the state and adds itself, both under the condition."""
    pending, told = Pending(session, "orders", None, 1), []
    with session.changed:
        assert not pending.done()
        answering = threading.Thread(target=settle, args=(pending, 42))
        answering.start()
        answering.join(0.1)
        asks = SimpleNamespace(add_result=told.append)
        getattr(pending, known_as).append(told.append if known_as == "_done_callbacks" else asks)
    answering.join()
    assert told == [pending]


def test_result_waits_through_answers_for_other_messages(session):
    first, second = Pending(session, "orders", None, 1), Pending(session, "orders", None, 2)
    answer_later(session, first, 1)
    with pytest.raises(TimeoutError):
        second.result(0.2)  # woken after 0.05 s, for the first
    answer_later(session, second, 2)
    assert second.result(WAIT_S).message_id == "2"


def test_callbacks_run_once_and_the_first_answer_counts(session):
    pending, seen = Pending(session, "orders", None, 1), []
    pending.add_done_callback(lambda f: seen.append(("early", f.result().message_id)))
    settle(pending, 5)
    settle(pending, 6)
    pending.add_done_callback(lambda f: seen.append(("late", f.result().message_id)))
    assert seen == [("early", "5"), ("late", "5")]


def test_concurrent_futures_can_wait_for_many(session):
    several = [Pending(session, "orders", None, i) for i in range(1, 4)]
    settle(several[0], 1)
    answer_later(session, several[1], 2)
    answer_later(session, several[2], 0, Rejected("queue_quota", "q"))
    done, missing = wait(several, timeout=WAIT_S, return_when=ALL_COMPLETED)
    assert done == set(several)
    assert not missing


def test_asyncio_can_wait_for_it(session):
    async def run():
        pending = Pending(session, "orders", None, 1)
        answer_later(session, pending, 9)
        return await asyncio.wrap_future(pending)

    assert asyncio.run(run()).message_id == "9"


# ---------------------------------------------------------------- waiting in the reader's thread


@pytest.fixture
def held():
    """The engine's records wait until `wire.let_go` is set."""
    bench = Threaded(Held)
    bench.wire.let_go.clear()
    return bench


WAITS = {
    "result": lambda bench, other: other.result(),
    "exception": lambda bench, other: other.exception(),
    "flush": lambda bench, other: bench.producer.flush(),
    "send": lambda bench, other: bench.send(),
    "browse": lambda bench, other: bench.admin.browse("orders"),
}


@pytest.mark.parametrize("call", WAITS.values(), ids=WAITS)
def test_a_callback_may_wait_for_the_engine(held, call):
    outcome = []
    held.producer.send_async("orders", "{}").add_done_callback(
        lambda _: outcome.append(call(held, held.producer.send_async("orders", "{}")))
    )
    held.wire.let_go.set()
    wait_for(lambda: outcome)


def test_C3_the_session_stays_alive_while_a_callback_waits(held):
    """Heartbeats, acknowledgements and repetitions of messages continue."""
    held.wire.let_go.set()
    held.consumer()
    held.wire.let_go.clear()
    held.connection.heartbeat_within(0.15)
    beats, outcome = len(held.wire.said("heartbeat")), []
    other = Pending(held.connection, "orders", None)
    held.producer.send_async("orders", "{}").add_done_callback(
        lambda _: outcome.append(other.exception())
    )
    held.wire.let_go.set()
    wait_for(lambda: len(held.wire.said("heartbeat")) >= beats + 3)
    assert not outcome
    settle(other, 1)
    wait_for(lambda: outcome == [None])


def test_C4_a_callback_may_close_a_consumer_whose_callback_waits_for_the_engine(held, monkeypatch):
    monkeypatch.setattr(consumer_module, "CLOSE_S", 2 * WAIT_S)  # it must not wait in vain
    held.wire.let_go.set()
    consumer, closing, closed = held.consumer(ack_mode="auto"), threading.Event(), []

    def forward(_):
        closing.wait(WAIT_S)
        held.send(b"forwarded")

    consumer.on_message(forward)
    held.send(b"1")
    wait_for(lambda: consumer.serving.thread)

    def close(_):
        closing.set()
        consumer.close()
        closed.append(consumer)

    held.producer.send_async("orders", b"2").add_done_callback(close)
    wait_for(lambda: closed)
    assert held.stored() == [b"2", b"forwarded"]


def test_waiting_callbacks_run_one_after_the_other(held):
    """Nested in each other, some hundred would exceed Python's recursion limit."""
    running, most, done = [], [], []

    def send_another(future):
        running.append(future)
        most.append(len(running))
        done.append(held.send())
        running.remove(future)

    held.producer = held.connection.producer(window=500)
    for _ in range(400):
        sent = held.producer.send_async("orders", "{}", ack_immediately=True)
        sent.add_done_callback(send_another)
    held.wire.let_go.set()
    wait_for(lambda: len(done) == 400)
    assert max(most) == 1


@pytest.mark.parametrize(
    "call", [lambda f: wait([f]), lambda f: next(as_completed([f]))], ids=["wait", "as_completed"]
)
def test_waiting_functions_of_python_are_refused_in_the_reader(held, call):
    told = []

    def fail(_):
        try:
            call(held.producer.send_async("orders", "{}"))
        except LakequeueError as error:
            told.append(str(error))

    held.producer.send_async("orders", "{}").add_done_callback(fail)
    held.wire.let_go.set()
    wait_for(lambda: told)
    assert told[0].startswith("concurrent.futures cannot wait in a message's callback")


@pytest.fixture
def replay(held, monkeypatch):
    """The future `Consumer.replay`; the replay asks the engine once `held.begin` is set."""
    held.begin = threading.Event()

    def ask(connection, queue, dry_run, **_):
        if not dry_run:
            held.begin.wait(WAIT_S)
            connection.admin().describe(queue)
        return SimpleNamespace(count=7, left="")

    monkeypatch.setattr("lakequeue.lake.replaying.replay", ask)
    held.wire.let_go.set()
    return held.consumer(replay_from="epoch").replay


def test_R4_a_callback_may_wait_for_a_replay(held, replay):
    outcome = []

    def callback(_):
        held.begin.set()
        outcome.append(replay.result().count)

    held.producer.send_async("orders", "{}").add_done_callback(callback)
    wait_for(lambda: outcome == [7])
    assert (replay.cancel(), replay.exception(0)) == (False, None)


def test_R4_a_replay_whose_connection_closes_has_failed(held, replay):
    held.connection.close()
    with pytest.raises(NotConnected, match="the connection was closed"):
        replay.result()
    held.begin.set()
    assert wait([replay], WAIT_S).done
    assert isinstance(replay.exception(0), NotConnected)


def test_C3_a_callback_that_changes_brokers_keeps_the_session_alive(held, monkeypatch):
    """The engine may take minutes: heartbeats continue."""
    monkeypatch.setattr("lakequeue.client.session.queue_directory.ASK_S", 0.05)
    held.wire.let_go.set()
    held.consumer()
    held.connection.heartbeat_within(0.15)
    beats, newest, outcome = len(held.wire.said("heartbeat")), held.wire.newest, []
    held.wire.newest = lambda topic: {}  # the engine has not answered yet
    held.producer.send_async("orders", "{}").add_done_callback(
        lambda _: outcome.append(held.admin.add_broker("second"))
    )
    wait_for(lambda: len(held.wire.said("heartbeat")) >= beats + 3)
    held.wire.newest = newest
    wait_for(lambda: outcome == [None])


IN_A_CHILD = {
    "result": lambda producer, sent, replay: sent.result(),
    "exception": lambda producer, sent, replay: sent.exception(),
    "wait": lambda producer, sent, replay: wait([sent]),
    "flush": lambda producer, sent, replay: producer.flush(),
    "unacknowledged": lambda producer, sent, replay: producer.unacknowledged(),
    "receipt_of": lambda producer, sent, replay: producer.receipt_of(sent),
    "replay": lambda producer, sent, replay: replay.result(),
}


@pytest.mark.parametrize("call", IN_A_CHILD.values(), ids=IN_A_CHILD)
def test_a_forked_child_gets_an_error_instead_of_waiting(held, replay, call):
    """Another thread had the locks when the process forked, and does not exist in the child."""
    held.wire.let_go.clear()
    sent = held.producer.send_async("orders", "{}")
    has_locks, may_end = threading.Event(), threading.Event()

    def hold():
        with held.producer._lock, held.connection.changed:
            has_locks.set()
            may_end.wait(WAIT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert has_locks.wait(WAIT_S)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            call(held.producer, sent, replay)
        except NotConnected as error:
            os.write(write, str(error).encode())
        os._exit(0)
    may_end.set()
    holder.join()
    try:
        wait_for(lambda: os.waitpid(child, os.WNOHANG)[0])
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise
    expected = f"this connection was opened in process {os.getpid()}; open a new one after a fork"
    assert os.read(read, 10_000).decode() == expected
    held.wire.let_go.set()
    held.begin.set()
    assert sent.result(WAIT_S).message_id
