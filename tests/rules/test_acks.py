"""C3, C4, C6, C7 and L13. See also scenarios/expiry_and_spool.txt and leases.txt."""

import pytest
from lakequeue.protocol import commands
from rules.harness import Bench


@pytest.mark.parametrize("sign", ["a heartbeat", "one more consumer"])
def test_C3_a_timeout_that_is_shortened_counts_from_the_next_sign_of_life(
    bench: Bench, sign: str
) -> None:
    """Not from when the session would have been lost before."""

    def bind(name: str) -> None:
        inbox = commands.Inbox("default.deliveries")
        bench.connection.request(
            commands.Subscribe(queue="orders", subscription=name, session="mine", inbox=inbox)
        )

    bind("a")
    bench.send()
    assert bench.seen()["leased"] == 1
    shorter = commands.Configure(system={"heartbeat_timeout": "1s"})
    bench.engine.instruct("default", commands.encode_command(shorter))
    if sign == "a heartbeat":
        bench.connection.command(commands.Heartbeat(session="mine"))
    else:
        bind("b")
    bench.advance("1001ms")
    assert (bench.seen()["leased"], bench.seen()["consumers"]) == (0, [])


def test_C4_the_iterator_hands_over_what_is_there(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="auto")
    sent = [bench.send({"n": n}) for n in range(3)]
    got = []
    for message in consumer:
        got.append(message.id)
        if len(got) == 3:
            break
    assert got == sent
