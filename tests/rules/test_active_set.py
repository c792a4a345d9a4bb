"""R5: `target_queue_depth`, `file_backed_metadata`: memory stays bounded while a queue is deep."""

import datetime as dt
from typing import Any

import pytest
from rules.harness import Bench, drain, ids

TARGET = 20
MORE = 6

pytestmark = pytest.mark.usefixtures("small_active_sets")


def fill(bench: Bench, count: int = TARGET + MORE, **options: Any) -> list[str]:
    """Messages with n from 0 on. The check of the whole state waits for the last of them."""
    bench.engine.checking = False
    found = [bench.send({"n": n}, **options) for n in range(count)]
    bench.engine.checking = True
    bench.engine.check()
    return found


def define(bench: Bench, **keys: Any) -> None:
    limits = {"max_per_subscription_backlog": 5000, "target_queue_depth": TARGET}
    bench.define(**limits | keys)


@pytest.fixture
def deep(empty: Bench) -> Bench:
    """A queue of which six messages are not active."""
    define(empty)
    fill(empty)
    return empty


def test_R5_only_active_messages_are_delivered_and_each_that_leaves_admits_one(
    deep: Bench,
) -> None:
    consumer = deep.consumer(backlog=5000)
    held = drain(consumer)
    assert [m.id for m in held] == [str(n) for n in range(1, TARGET + 1)]
    assert deep.seen()["active"] == TARGET
    assert deep.seen()["blocked"] == "target_queue_depth"
    held[15].ack()
    held[3].ack()
    assert ids(drain(consumer)) == [str(TARGET + 1), str(TARGET + 2)]
    for message in held[4:10]:
        message.ack()
    assert len(drain(consumer)) == MORE - 2
    assert deep.seen()["blocked"] is None
    assert deep.seen()["active"] == deep.seen()["depth"]


def test_R5_at_the_target_itself_all_are_active(empty: Bench) -> None:
    define(empty)
    fill(empty, TARGET)
    assert len(drain(empty.consumer(backlog=5000))) == TARGET
    assert empty.seen()["blocked"] is None
    empty.send({"n": TARGET})
    assert empty.seen()["blocked"] == "target_queue_depth"


def test_R5_F5_a_filter_does_not_see_what_is_not_active(deep: Bench) -> None:
    """[amps]: if no active message matches the subscription, none is delivered."""
    picky = deep.consumer(filter=f"/n >= {TARGET + 1}")
    assert drain(picky) == []
    assert deep.seen()["blocked"] == "target_queue_depth"
    worker = deep.consumer(backlog=1)
    drain(worker)[0].ack()
    assert drain(picky) == []  # n=1000 became active
    drain(worker)[0].ack()
    assert ids(drain(picky)) == [str(TARGET + 2)]


def test_R5_R6_browse_shows_active_messages_only(deep: Bench) -> None:
    assert len(deep.admin.browse("orders", limit=5000)) == TARGET
    assert deep.admin.browse("orders", where=f"/n >= {TARGET}") == []
    assert deep.admin.browse("orders", state="leased") == []
    deep.admin.purge("orders", ids="1-2")
    found = deep.admin.browse("orders", where=f"/n >= {TARGET}")
    assert ids(found) == [str(TARGET + 1), str(TARGET + 2)]


def test_R5_L13_an_ack_by_filter_reaches_active_messages_only(deep: Bench) -> None:
    consumer = deep.consumer(backlog=1)
    consumer.ack(where=f"/n >= {TARGET - 2}")
    assert deep.seen()["acknowledged"] == 2
    assert deep.seen()["depth"] == TARGET + MORE - 2
    consumer.ack(where=f"/n >= {TARGET - 2}")  # those that became active meanwhile
    assert deep.seen()["acknowledged"] == 4


def test_R5_R6_a_purge_by_filter_reaches_active_messages_only(deep: Bench) -> None:
    assert deep.admin.purge("orders", where=f"/n >= {TARGET}") == 0
    assert deep.admin.purge("orders", where="/n >= 0") == TARGET
    assert deep.seen()["depth"] == MORE


def test_R5_an_id_reaches_every_message(deep: Bench) -> None:
    consumer = deep.consumer(backlog=1)
    consumer.ack(ids=[str(TARGET + 1)])
    assert deep.admin.purge("orders", ids=f"{TARGET + 3}-{TARGET + 4}") == 2
    assert deep.admin.purge("orders", ids=f"1-{TARGET + 6}", where=f"/n > {TARGET + 3}") == 0
    assert deep.seen()["depth"] == TARGET + MORE - 3
    assert deep.admin.purge("orders") == TARGET + MORE - 3


def test_R5_X1_what_is_not_active_expires_in_time(empty: Bench) -> None:
    define(empty)
    fill(empty, TARGET)
    empty.send({"n": TARGET}, ttl="5s")
    empty.advance("6s")
    assert empty.seen()["expired"] == 1
    assert empty.seen()["depth"] == TARGET


def test_R5_L12_delayed_messages_take_places(empty: Bench) -> None:
    define(empty)
    later = empty.connection.now() + dt.timedelta(seconds=60)
    for _ in range(2):
        empty.send({}, deliver_at=later)
    fill(empty, TARGET)
    consumer = empty.consumer(backlog=5000)
    assert len(drain(consumer)) == TARGET - 2
    empty.advance("61s")
    assert ids(drain(consumer)) == ["1", "2"]


def test_R5_L1_returned_messages_are_active_still(deep: Bench) -> None:
    first = deep.consumer(backlog=5000)
    assert len(drain(first)) == TARGET
    first.close()
    second = deep.consumer(backlog=5000)
    again = drain(second)
    assert [m.id for m in again] == [str(n) for n in range(1, TARGET + 1)]
    assert all(m.delivery_count == 2 for m in again)


def test_R5_L2_what_leaves_on_send_makes_room_at_once(empty: Bench) -> None:
    define(empty, semantics="at-most-once")
    fill(empty, 2 * TARGET + MORE)
    assert len(drain(empty.consumer(backlog=1))) == 2 * TARGET + MORE
    assert empty.seen()["depth"] == 0


def test_R5_B1_max_backlog_holds_within_it(empty: Bench) -> None:
    define(empty, max_backlog=10)
    fill(empty)
    assert len(drain(empty.consumer(backlog=5000))) == 10
    assert empty.seen()["blocked"] == "max_backlog"


def test_R5_Q9_the_limit_can_be_lowered_and_taken_away(empty: Bench) -> None:
    define(empty, target_queue_depth=TARGET + 3)
    fill(empty)
    consumer = empty.consumer(backlog=5000)
    held = drain(consumer)
    assert len(held) == TARGET + 3
    define(empty)
    held[-1].ack()  # not active any more, and held all the same
    assert empty.seen()["leased"] == TARGET + 2
    assert drain(consumer) == []
    define(empty, target_queue_depth=None)
    assert len(drain(consumer)) == MORE - 3


def test_R5_Q9_a_queue_with_waiting_barriers_may_get_one(empty: Bench) -> None:
    """The keys exclude each other, a barrier that entered before does not go away."""
    empty.define(barrier_expression="/n = 0", max_per_subscription_backlog=5000)
    fill(empty)
    define(empty)
    consumer = empty.consumer(backlog=5000)
    (first, *rest) = drain(consumer)
    assert first.is_barrier
    assert len(rest) == TARGET


def test_R5_file_backed_metadata_is_what_always_holds(empty: Bench) -> None:
    empty.define(file_backed_metadata="enabled")
    assert empty.seen()["definition"]["file_backed_metadata"] is True
    empty.send({"n": 1})
    assert len(drain(empty.consumer())) == 1
