"""S3, S4, S5, S8, S10, S11, S12, X5: files, quotas, the last message; within one step too. See also
scenarios/engine/limits.txt."""

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import ConfigError
from lakequeue.protocol.outputs import Deliveries, Receipts
from lakequeue.state import Batch, Broker, DictStore, Home
from lakequeue.state.limits import Limits
from rules.harness import Bench, drain
from rules.steps import Steps, define, described, of, subscribe
from state.counting_store import CountingStore

MB = 1_000_000
NEVER = {"reject_msg_to_sender_on_discard": "never"}


class Core(Steps):
    """Batches that a connection cannot make: many producers in one step."""

    def __init__(self, *definitions: dict[str, Any], **system: Any) -> None:
        super().__init__()
        self.sequences: dict[str, int] = {}
        named = [define(**{"message_type": "binary"} | d) for d in definitions]
        self.run([c.Configure(system=system), *named])

    def step(self, batch: Batch) -> list[Any]:
        said = super().step(batch)
        self.broker.mark()
        return said

    def publish(self, *sent: tuple[str, str, bytes], priority: int = 4, before: Any = ()) -> Any:
        """(producer, destination, payload) in one step. Returns by producer the ids and refusals,
        by sequence."""
        rows = []
        for producer, to, payload in sent:
            seq = self.sequences[producer] = self.sequences.get(producer, 0) + 1
            rows.append((to, payload, {"producer": producer, "seq": seq, "priority": priority}))
        outcome: dict[str, dict[int, Any]] = {}
        for receipt in of(Receipts, self.run(before, rows)):
            known = outcome.setdefault(receipt.producer, {})
            for first, count, number in receipt.runs:
                known |= {first + i: number + i if number else None for i in range(count)}
            known |= {seq: reason for seq, reason, _, _ in receipt.nacks}
        return outcome

    def files(self) -> int:
        return self.ask(c.Usage())["broker"]["spool_files"]


# Definitions of queues, the messages of one step, the outcome, and what describe shows afterwards.
EXACT: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[Any], Any, Any]] = {
    "S4_bytes_of_two_producers": (
        [{"name": "q", "max_spool_usage": 30}], {}, [(p, "q", b"x" * 10) for p in "ababab"],
        {"a": {1: 1, 2: 3, 3: "queue_quota"}, "b": {1: 2, 2: "queue_quota", 3: "queue_quota"}},
        {"q": {"depth": 3, "rejected": {"queue_quota": 3}}},
    ),
    "S4_messages_of_two_producers": (
        [{"name": "q", "max_spool_messages": 3}], {}, [(p, "q", b"x" * 10) for p in "ababab"],
        {"a": {1: 1, 2: 3, 3: "queue_quota"}, "b": {1: 2, 2: "queue_quota", 3: "queue_quota"}},
        {"q": {"depth": 3, "rejected": {"queue_quota": 3}}},
    ),
    "S4_never_discards_and_acknowledges_exactly_what_is_over": (
        [{"name": "q", "max_spool_messages": 2, **NEVER}], {}, [("a", "q", b"x")] * 4,
        {"a": {1: 1, 2: 2, 3: None, 4: None}},
        {"q": {"depth": 2, "discarded": 2, "rejected": {},
               "discarded_on_entry": {"queue_quota": 2}}},
    ),
    "S5_one_that_is_full_within_the_step_refuses_for_all": (
        [{"name": "q", "underlying_topic": "t"},
         {"name": "small", "underlying_topic": "t", "max_spool_messages": 2}],
        {}, [(p, "t", b"x") for p in "abcd"],
        {"a": {1: 1}, "b": {1: 2}, "c": {1: "queue_quota"}, "d": {1: "queue_quota"}},
        {"q": {"depth": 2, "rejected": {}}, "small": {"depth": 2}},
    ),
    "S5_a_queue_that_discards_does_not_refuse_for_the_others": (
        [{"name": "q", "underlying_topic": "t"},
         {"name": "small", "underlying_topic": "t", "max_spool_messages": 1, **NEVER}],
        {}, [("a", "t", b"x")] * 3,
        {"a": {1: 1, 2: 2, 3: 3}},
        {"q": {"depth": 3}, "small": {"depth": 1, "discarded": 2}},
    ),
    "S3_the_brokers_quota": (
        [{"name": "q"}, {"name": "r"}], {"max_spool_usage": 30},
        [("a", "q", b"x" * 10), ("b", "r", b"x" * 10)] * 2,
        {"a": {1: 1, 2: 3}, "b": {1: 2, 2: "broker_quota"}}, {},
    ),
    "S10_quota_0": (
        [{"name": "q", "max_spool_usage": 0}], {}, [("a", "q", b"x" * n) for n in (1, 2, 3)],
        {"a": {1: 1, 2: 2, 3: 3}}, {"q": {"depth": 1, "spool_bytes": 3, "replaced": 2}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("queues", "system", "sent", "outcome", "after"), EXACT.values(), ids=EXACT
)
def test_S3_S4_S5_S10_a_limit_is_exact_within_one_step(
    queues: list[Any], system: dict[str, Any], sent: list[Any], outcome: Any, after: Any
) -> None:
    core = Core(*queues, **system)
    assert core.publish(*sent) == outcome
    for queue, expected in after.items():
        assert expected.items() <= described(core, queue).items()


def test_S11_the_limit_is_exact_within_one_step() -> None:
    core = Core({"name": "q", "reject_low_priority_msg_limit": 2})
    assert core.publish(*[("a", "q", b"x")] * 3, priority=3) == {
        "a": {1: 1, 2: 2, 3: "low_priority_limit"}
    }
    assert core.publish(("a", "q", b"x"), priority=4) == {"a": {4: 3}}
    assert described(core, "q")["rejected"] == {"low_priority_limit": 1}


# ---------------------------------------------------------------- S8


def test_S8_every_publisher_is_nacked_until_acks_free_files() -> None:
    core = Core({"name": "q"}, {"name": "r"}, max_spool_files=2)
    big = b"x" * MB
    first = core.publish(*[("a", "q", big)] * 10, *[("b", "r", big)] * 10)
    numbers = [n for n in (*first["a"].values(), *first["b"].values()) if n != "spool_files"]
    assert len(numbers) == 16, "two files of 8 MB"
    assert core.publish(("a", "q", b"x"), ("c", "r", b"")) == {
        "a": {11: "spool_files"}, "c": {1: "spool_files"},
    }  # fmt: skip
    rejected = [described(core, queue)["rejected"]["spool_files"] for queue in ("q", "r")]
    assert rejected == [1, 5]
    core.run([c.Ack(queue="q", ids="1")])
    assert core.files() == 2
    assert core.publish(("a", "q", big), ("c", "r", b"x")) == {
        "a": {12: 17}, "c": {2: "spool_files"},
    }  # fmt: skip
    core.run([c.Ack(queue="q", ids="2-10")])
    assert core.files() == 1
    assert core.publish(("c", "r", b"x")) == {"c": {3: 18}}


@pytest.mark.parametrize("keys", [{}, NEVER], ids=["nack", "never"])
def test_S8_messages_are_nacked_under_every_policy_until_acks_of_the_same_step(keys: Any) -> None:
    core = Core({"name": "q", **keys}, max_spool_files=1)
    core.publish(*[("a", "q", b"x" * MB)] * 8)
    assert core.publish(("a", "q", b"x")) == {"a": {9: "spool_files"}}
    assert described(core, "q")["discarded"] == 0
    ack = c.Ack(queue="q", ids="1-8")
    assert core.publish(("a", "q", b"x"), before=[ack]) == {"a": {10: 9}}


@pytest.mark.parametrize(("size", "at_once"), [(300_000, 13), (2_500_000, 2), (9_000_000, 1)])
def test_S8_the_limit_holds_for_messages_of_any_size(size: int, at_once: int) -> None:
    core = Core({"name": "q"}, max_spool_files=2)
    outcomes: list[Any] = []
    while "spool_files" not in outcomes:
        outcomes += core.publish(*[("a", "q", b"x" * size)] * at_once)["a"].values()
        assert len(outcomes) < 100
    assert core.files() <= 2
    assert (len(outcomes) - outcomes.count("spool_files")) * size >= 2 * Limits().file_bytes - size


def test_S8_alerts_at_80_percent_of_the_files_and_clears_below_60() -> None:
    bench = Bench(config={"system": {"max_spool_files": 5}})
    bench.define(message_type="binary", max_spool_usage="1GB", max_per_subscription_backlog=99)
    consumer = bench.consumer()

    def told() -> list[Any]:
        events = [e for e in bench.admin.events() if e["event"].startswith("spool_files")]
        return [(e["event"], e["level"], e["limit"], e["scope"]) for e in events]

    for _ in range(6):
        bench.send(b"x" * 4 * MB)
    assert told() == []  # 24 MB are three files
    bench.send(b"x")
    high = ("spool_files_high", 4, 5, "broker")
    assert told() == [high]
    messages = drain(consumer)
    for message in messages[:2]:
        message.ack()
    assert told() == [high]  # 3 of 5 is not below 60 %
    for message in messages[2:4]:
        message.ack()
    assert told() == [high, ("spool_files_cleared", 2, 5, "broker")]


# ---------------------------------------------------------------- bad input


def test_X5_a_file_with_a_ring_of_dead_message_queues_is_refused_as_a_whole() -> None:
    def queue(name: str, target: str | None, vpn: str = "default") -> dict[str, Any]:
        return {"name": name, "message_type": "json", "vpn": vpn, "dead_message_queue": target}

    with pytest.raises(ConfigError) as caught:
        parse_configuration({"queues": [queue("a", "b"), queue("b", "a"), queue("c", "a")]})
    assert [p.where for p in caught.value.problems] == ["queues[0] 'a'", "queues[1] 'b'"]
    other = [queue("a", "b"), queue("b", "a", "east")]
    assert len(parse_configuration({"queues": other}).queues) == 2


def test_S6_a_configured_discard_is_acknowledged_and_journaled() -> None:
    bench = Bench(config={"system": {"on_no_match": "discard"}})
    assert bench.send(queue="nowhere") is None
    (row,) = [r for r in bench.engine.journal() if r["reason"] == "no_matching_destination"]
    assert row["event"] == "discarded"


def test_Q7_a_broker_names_topics_and_a_folder() -> None:
    assert parse_configuration({"brokers": ["a", "b-2"]}).brokers == ("a", "b-2")
    with pytest.raises(ConfigError, match=r"(?s)brokers\[0\]: .*'a/b'.*brokers\[1\]: .*'\.\.'"):
        parse_configuration({"brokers": ["a/b", ".."]})
    with pytest.raises(ConfigError, match="1 to 64 broker names"):
        parse_configuration({"brokers": [f"b{i}" for i in range(65)]})


def test_S12_only_the_backlog_is_read_in_large_blocks() -> None:
    core = Core()
    store = CountingStore(DictStore())
    core.broker = Broker.load(store, Home(), Limits(memory_bytes=MB, live_rows=1_000))
    core.run([define("q", message_type="binary", max_per_subscription_backlog=10_000)])
    got: list[Any] = []
    core.watch = lambda said: got.extend(p for o in of(Deliveries, said) for p in o.payloads)

    def delivered(*commands: c.Command, sent: int = 0) -> tuple[int, int]:
        """The blocks read, and the payloads delivered."""
        store.reads.clear()
        got.clear()
        core.publish(*[("p", "q", b"x" * 1000)] * sent, before=commands)
        return sum(key.startswith("b/") for key in store.reads), len(got)

    for _ in range(5):
        assert delivered(sent=1000) == (0, 0)  # nobody consumes: written, not read
    reads, messages = delivered(subscribe("s", 10_000, "q"))  # the consumer was offline
    assert messages == 5000
    assert 4 <= reads <= 6, "blocks of 1 MB, each read once"
    assert delivered(sent=3000) == (0, 3000)  # now it is fast
