"""F1 to F5. See also scenarios/backlog_and_fairness.txt."""

from rules.harness import Bench, drain


def test_F5_it_is_said_when_no_filter_matches(bench: Bench) -> None:
    """By the engine itself, so by all that show what it says."""
    bench.define(max_per_subscription_backlog=100)
    for n in range(300):
        bench.send({"n": n})
    two = [bench.consumer(filter=f"/n = {n}") for n in (1_000, 1_001)]
    assert bench.seen()["blocked"] == "no consumer's filter matches"
    assert {q["name"]: q["blocked"] for q in bench.admin.queues()}["orders"] == (
        "no consumer's filter matches"
    ), "in the list as well"
    bench.send({"n": 1_001})
    assert bench.seen()["blocked"] == "no consumer's filter matches", "the one is out"
    assert len(drain(two[1])) == 1
    everything = bench.consumer()
    assert bench.seen()["blocked"] == "every consumer's backlog is full" or drain(everything)
