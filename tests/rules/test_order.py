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
