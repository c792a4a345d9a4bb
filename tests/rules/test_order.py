"""O1 to O3: order, priority, barriers. See also scenarios/order.txt."""

from rules.harness import Bench


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


def test_O4_a_key_that_is_always_the_same_has_one_message_out_at_a_time(bench: Bench) -> None:
    """Whoever has it: the order of a single active consumer, with several of them."""
    bench.define(partition_key="'all'", max_per_subscription_backlog=100)
    for n in range(4):
        bench.send({"n": n})
    two = [bench.consumer() for _ in range(2)]
    seen = []
    for _ in range(4):
        out = [message for one in two for message in one.receive_many(100)]
        assert len(out) == 1
        seen.append(out[0].id)
        out[0].ack()
    assert seen == ["1", "2", "3", "4"]
