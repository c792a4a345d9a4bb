"""The future of a sent message behaves as Python's own where other code relies on it (P3, P6)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ALL_COMPLETED, TimeoutError, wait
from types import SimpleNamespace

import pytest
from lakequeue import Rejected
from lakequeue.client.producer.receipts import Pending, settle


@pytest.fixture
def condition():
    return threading.Condition()


def answer_later(condition, pending, number, error=None):
    def answer():
        settle(pending, number, error)
        with condition:
            condition.notify_all()

    threading.Timer(0.05, answer).start()


def test_it_gives_the_receipt_or_raises_the_refusal_and_cannot_be_called_back(condition):
    pending, unstored, refused = (Pending(condition, "orders", (), n) for n in (7, 0, 1))
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
def test_who_asks_while_it_is_answered_is_told(condition, known_as):
    """Python's own code looks at the state and adds itself, both under the condition."""
    pending, told = Pending(condition, "orders", None, 1), []
    with condition:
        assert not pending.done()
        answering = threading.Thread(target=settle, args=(pending, 42))
        answering.start()
        answering.join(0.1)
        asks = SimpleNamespace(add_result=told.append)
        getattr(pending, known_as).append(told.append if known_as == "_done_callbacks" else asks)
    answering.join()
    assert told == [pending]


def test_it_waits_through_other_messages_answers(condition):
    first, second = Pending(condition, "orders", None, 1), Pending(condition, "orders", None, 2)
    answer_later(condition, first, 1)
    with pytest.raises(TimeoutError):
        second.result(0.2)  # woken after 0.05 s, for the first
    answer_later(condition, second, 2)
    assert second.result(5).message_id == "2"


def test_callbacks_run_once_and_the_first_answer_counts(condition):
    pending, seen = Pending(condition, "orders", None, 1), []
    pending.add_done_callback(lambda f: seen.append(("early", f.result().message_id)))
    settle(pending, 5)
    settle(pending, 6)
    pending.add_done_callback(lambda f: seen.append(("late", f.result().message_id)))
    assert seen == [("early", "5"), ("late", "5")]


def test_concurrent_futures_can_wait_for_many(condition):
    several = [Pending(condition, "orders", None, i) for i in range(1, 4)]
    settle(several[0], 1)
    answer_later(condition, several[1], 2)
    answer_later(condition, several[2], 0, Rejected("queue_quota", "q"))
    done, missing = wait(several, timeout=5, return_when=ALL_COMPLETED)
    assert done == set(several)
    assert not missing


def test_asyncio_can_wait_for_it(condition):
    async def run():
        pending = Pending(condition, "orders", None, 1)
        answer_later(condition, pending, 9)
        return await asyncio.wrap_future(pending)

    assert asyncio.run(run()).message_id == "9"
