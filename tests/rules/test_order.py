"""O1 to O3: order, priority, barriers. See also scenarios/order.txt."""

import random

import pytest
from lakequeue.protocol.errors import ConfigError
from rules.harness import DEEP, Bench, drain, ids

MAX = 2**64 - 1


def delivered_with(bench: Bench, bodies: list[bytes], **keys: object) -> list[str]:
    bench.define(max_per_subscription_backlog=1000, **keys)
    for body in bodies:
        bench.send(body)
    return ids(drain(bench.consumer(backlog=1000)))


def test_O1_thousands_in_order(bench: Bench) -> None:
    bench.define(max_per_subscription_backlog=DEEP)
    sent = [bench.send({"n": n}) for n in range(DEEP)]
    assert ids(drain(bench.consumer(backlog=DEEP))) == sent


def test_O1_returned_ones_among_new_ones(bench: Bench) -> None:
    generator = random.Random(1)
    consumer = bench.consumer(backlog=20)
    sent = [bench.send({"n": n}) for n in range(60)]
    held = drain(consumer)
    for message in generator.sample(held, 10):
        message.cancel(delay="1s")
    consumer.close()
    bench.advance("1s")
    assert ids(drain(bench.consumer())) == sent


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        (b'{"p": 7}', 7),
        (b'{"p": 7.99}', 7),
        (b'{"p": -7}', 0),
        (b'{"p": -0.5}', 0),
        (b'{"p": "7"}', 0),
        (b'{"p": "abc"}', 0),
        (b'{"p": null}', 0),
        (b'{"p": true}', 0),
        (b'{"p": [7]}', 0),
        (b'{"p": {"q": 7}}', 0),
        (b"{}", 0),
        (b"not json", 0),
        (b'{"p": 18446744073709551615}', MAX),
        (b'{"p": 18446744073709551616}', MAX),
        (b'{"p": 1e300}', MAX),
        (b'{"p": 9007199254740993}', 9007199254740993),
    ],
)
def test_O2_what_a_value_is_worth(empty: Bench, value: bytes, rank: int) -> None:
    """Between its neighbours: behind an equal one that was there before, before a lower one."""
    bodies = [b'{"p": %d}' % rank, value]
    expected = ["1", "2"]
    if rank > 0:
        bodies.append(b'{"p": %d}' % (rank - 1))
        expected.append("3")
    if rank < MAX:
        bodies.append(b'{"p": %d}' % (rank + 1))
        expected.insert(0, str(len(bodies)))
    assert delivered_with(empty, bodies, priority="/p") == expected


def test_O2_two_hundred_at_random(empty: Bench) -> None:
    generator = random.Random(2)
    ranks = [generator.choice([0, 1, 2, 2**32, 2**63, MAX]) for _ in range(200)]
    got = delivered_with(empty, [b'{"p": %d}' % rank for rank in ranks], priority="/p")
    order = sorted(range(200), key=lambda i: (-ranks[i], i))
    assert got == [str(i + 1) for i in order]


def test_O2_a_late_high_one_overtakes_what_waits(empty: Bench) -> None:
    empty.define(priority="/p", max_per_subscription_backlog=9)
    consumer = empty.consumer(backlog=1)
    for priority in (1, 2, 3):
        empty.send({"p": priority})
    held = drain(consumer)
    assert ids(held) == ["1"]
    empty.send({"p": 9})
    held[0].ack()
    assert ids(drain(consumer)) == ["4"]


def test_O2_browse_is_in_the_queues_order(empty: Bench) -> None:
    empty.define(priority="/p")
    for priority in (1, 3, 2, 3):
        empty.send({"p": priority})
    assert ids(empty.admin.browse("orders")) == ["2", "4", "3", "1"]


def test_O2_not_together_with_a_barrier(empty: Bench) -> None:
    with pytest.raises(ConfigError):
        empty.define(priority="/p", barrier_expression="/sync IS NOT NULL")


def test_O3_all_current_subscriptions_get_it(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1", max_per_subscription_backlog=9)
    consumers = [empty.consumer(name=f"c{n}") for n in range(5)]
    empty.send({"sync": 1})
    for consumer in consumers:
        (message,) = drain(consumer)
        assert message.is_barrier
    assert empty.seen()["depth"] == 0


def test_O3_phases_never_mix(empty: Bench) -> None:
    """Workers that acknowledge at random: all of a phase is done before any of the next."""
    generator = random.Random(4)
    empty.define(barrier_expression="/sync IS NOT NULL", max_per_subscription_backlog=3)
    consumers = [empty.consumer(name=f"c{n}", backlog=3) for n in range(3)]
    for phase in range(5):
        for n in range(7):
            empty.send({"phase": phase, "n": n})
        empty.send({"phase": phase, "sync": 1})
    held: list = []
    phases = [0, 0, 0]
    for _ in range(500):
        for number, consumer in enumerate(consumers):
            for message in drain(consumer):
                phases[number] += message.is_barrier
                if not message.is_barrier:
                    held.append(message)
                    assert b'"phase": %d' % phases[number] in message.payload
        assert len(set(phases)) == 1
        if not held:
            break
        message = held.pop(generator.randrange(len(held)))
        (message.cancel if generator.random() < 0.3 else message.ack)()
    assert phases == [5, 5, 5]
    assert empty.seen()["depth"] == 0


def test_O3_an_ack_of_a_barrier_does_no_harm(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1")
    for mode in ("auto", "client", "individual"):
        with empty.consumer(ack_mode=mode, name=mode) as consumer:
            empty.send({"sync": 1})
            message = consumer.receive(timeout=0)
            assert message.is_barrier
            if mode != "auto":
                message.ack()
    assert empty.seen()["acknowledged"] == 3


def test_O3_journaled_once_per_receiver(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1")
    for n in range(3):
        empty.consumer(name=f"c{n}")
    empty.send({"sync": 1})
    assert empty.events().count("barrier_delivered") in (1, 3)


def test_O3_null_is_no_barrier(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1", max_per_subscription_backlog=9)
    consumer = empty.consumer()
    for body in (b"{}", b"not json", b'{"sync": null}', b'{"sync": 2}'):
        empty.send(body)
    assert [m.is_barrier for m in drain(consumer)] == [False] * 4
