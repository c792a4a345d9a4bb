"""Where rules meet, in ways that a text table cannot say. See also scenarios/interactions.txt."""

from rules.harness import Bench


def test_P1_X1_a_retransmission_does_not_renew_the_ttl(bench: Bench) -> None:
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}", ttl="2s")
    bench.advance("1s")
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}", ttl="2s")
    bench.advance("1s")
    assert (bench.seen()["depth"], bench.seen()["expired"]) == (0, 1)
