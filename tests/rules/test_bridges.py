"""Bridges between brokers of a home (H1–H3, X4): nothing lost, nothing doubled, order within a
destination, whoever dies; a full endpoint holds the link, or only its own messages."""

from datetime import timedelta
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.bridge import overlap
from lakequeue.protocol import ConfigError, Rejected
from lakequeue.state import Limits
from lakequeue.state.phases.admission import Admission

from .mortal import Fate, MortalEngine

BRIDGE = {"name": "west-east", "from": "west", "to": "east", "subscriptions": ["a/>"]}
TINY = Limits(
    page_bits=3, leaf_keys=2, branch_entries=2, root_entries=2, bridge_rows=7, bridge_bytes=900,
    bridge_holds=2, delivery_rows=5,
)  # fmt: skip


class Two:
    """Two brokers, `west` and `east`, and the ways of these tests to them."""

    def __init__(self, limits: Limits | None = None, **bridge: Any) -> None:
        config = parse_configuration({"brokers": ["west", "east"]})
        self.engine = MortalEngine(config, limits)
        self.engine.checking = True
        self.west = self.engine.connect("west", "publisher")
        self.east = self.engine.connect("east", "consumer")
        self.producer = self.west.producer()
        if bridge.pop("made", True):
            self.west.admin().bridge(BRIDGE | bridge)

    def define(self, name: str, *topics: str, **keys: Any) -> None:
        own = {"name": name, "message_type": "binary", "type": "LocalQueue"}
        self.east.admin().define(own | {"subscriptions": list(topics)} | keys)

    def send(self, to: str, *bodies: Any, **options: Any) -> None:
        for body in bodies:
            self.producer.send(to, str(body).encode(), **options)

    def receive(self, queue: str) -> list[Any]:
        """All that is in a queue, acknowledged."""
        found = []
        with self.east.consumer(queue, max_backlog=100, ack_mode="individual") as consumer:
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message)
        return found

    def bodies(self, queue: str) -> list[str]:
        return [m.payload.decode() for m in self.receive(queue)]

    def seen(self) -> dict[str, Any]:
        return self.west.admin().describe_bridge("west-east")

    def depth(self, queue: str) -> int:
        return int(self.east.admin().describe(queue)["depth"])

    def events(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self.west.admin().events() if e["event"] == name]


@pytest.fixture
def two() -> Two:
    return Two()


# ---------------------------------------------------------------- H1: nothing lost, nothing doubled


def test_h1_messages_go_over_with_all_that_is_theirs(two: Two) -> None:
    two.define("q", "a/b")
    two.send("a/b", "one", priority=7, headers={"k": "v"}, key=b"key")
    (message,) = two.receive("q")
    assert (message.payload, message.priority, message.key) == (b"one", 7, b"key")
    assert message.headers == {"k": "v"}
    assert int(message.id) >> 48 == 1  # it is the far broker's own
    assert two.seen()["taken"] == 1


@pytest.mark.parametrize("seed", range(6))
def test_h1_nothing_is_lost_or_doubled_whoever_dies(seed: int) -> None:
    two = Two(TINY if seed % 2 else None, lanes=["per-destination", "none"][seed // 2 % 2])
    two.define("small", "a/0", max_spool_messages=2)
    two.define("all", "a/1", "a/2", "a/3/>")
    fate = Fate(seed, death=0.15)
    two.engine.fated(fate)
    sent: dict[str, list[str]] = {}
    got: dict[str, list[str]] = {"small": [], "all": []}
    for n in range(40):
        to = fate.random.choice(["a/0", "a/1", "a/2", "a/3/x"])
        sent.setdefault(to, []).append(f"{to}:{n}")
        two.send(to, f"{to}:{n}")
        if fate.random.random() < 0.1:
            got["small"] += two.bodies("small")
    assert fate.deaths > 15
    two.engine.fated(None)
    while two.seen()["taken"] < 40:
        two.engine.advance("6s")
        got["small"] += two.bodies("small")
    for queue, bodies in got.items():
        bodies += two.bodies(queue)
    for to, bodies in sent.items():
        found = [b for part in got.values() for b in part if b.startswith(f"{to}:")]
        assert found == bodies
    seen = two.seen()
    assert (seen["waiting"], seen["on_its_way"], seen["taken"]) == (0, 0, 40)


def test_h1_a_link_that_is_cut_for_minutes_loses_and_doubles_nothing() -> None:
    two = Two(TINY)
    two.define("q", "a/>")
    two.send("a/1", *range(3))
    two.engine.cut("east")
    for n in range(3, 40):
        two.send(f"a/{n % 10}", n)
    two.engine.advance("10m")
    seen = two.seen()
    assert seen["on_its_way"] == TINY.bridge_rows  # bounded, however long it lasts
    assert (seen["waiting"], seen["unanswered_s"]) == (30, 600)
    two.engine.mend("east")
    bodies = [int(body) for body in two.bodies("q")]
    assert sorted(bodies) == list(range(40))
    for last in range(10):
        own = [n for n in bodies if n > 2 and n % 10 == last]
        assert own == sorted(own)
    assert two.seen()["unanswered_s"] is None


def test_h1_the_window_is_bounded_in_bytes() -> None:
    two = Two(TINY)
    two.define("q", "a/>")
    two.engine.cut("east")
    for n in range(20):
        two.send(f"a/{n}", "x" * 400)
    assert two.seen()["bytes_on_its_way"] == 1200  # the last one overdraws it
    two.engine.mend("east")
    assert two.depth("q") == 20


# ---------------------------------------------------------------- X4, L12, X5


def test_x4_the_time_to_live_counts_on_over_the_bridge() -> None:
    two = Two()
    two.define("q", "a/>", max_spool_messages=1)
    two.send("a/b", "first")
    two.send("a/b", "second", ttl="8s")
    two.engine.advance("2s")
    assert two.bodies("q") == ["first"]
    began = two.engine.now
    while not two.depth("q"):
        two.engine.advance("100ms")
    spent = 2_000 + two.engine.now - began
    (message,) = two.east.admin().browse("q")
    left = message.expires_at.timestamp() * 1000 - two.engine.now
    assert left == 8_000 - spent
    two.engine.advance(left / 1000)
    assert two.depth("q") == 0


def test_x4_two_of_eight_seconds_on_the_first_broker_leave_six() -> None:
    two = Two()
    two.define("q", "a/>")
    two.west.admin().shutdown("#bridge/west-east", egress=True)
    two.send("a/b", "x", ttl="8s")
    two.engine.advance("2s")
    two.west.admin().shutdown("#bridge/west-east")
    two.engine.advance("5.999s")
    assert two.depth("q") == 1
    two.engine.advance("1ms")
    assert two.depth("q") == 0


def test_x1_what_expires_while_it_waits_is_not_sent_and_holds_nothing() -> None:
    two = Two()
    two.define("q", "a/>", max_spool_messages=1)
    two.send("a/b", "first")
    two.send("a/b", "second", ttl="3s")
    two.engine.advance("3s")
    assert two.seen()["blocked"] == []
    assert [e["queue"] for e in two.events("bridge_cleared")] == ["q"]
    two.engine.advance("1m")
    assert two.bodies("q") == ["first"]


def test_x3_what_is_on_its_way_expires_at_one_end_only() -> None:
    two = Two()
    two.define("q", "a/>")
    two.engine.cut("east")
    two.send("a/b", "x", ttl="5s")
    two.engine.advance("1m")
    two.engine.mend("east")
    assert two.west.admin().describe("#bridge/west-east")["counters"]["expired"] == 0
    assert two.east.admin().describe("q")["counters"]["expired"] == 1


def test_l12_a_time_of_delivery_is_the_far_ends_to_wait_for(two: Two) -> None:
    two.define("q", "a/>")
    two.send("a/b", "later", deliver_at=two.west.now() + timedelta(hours=1))
    two.send("a/b", "now")
    assert two.bodies("q") == ["now"]
    two.engine.advance("1h")
    assert two.bodies("q") == ["later"]


# ---------------------------------------------------------------- H2, H3: full endpoints, lanes


def full_queue(lanes: str, **keys: Any) -> Two:
    """The scenario of the sources: Queue1 at the second broker has no consumer and fills up, two
    other queues there are empty; publishers are at the first broker."""
    two = Two(lanes=lanes)
    two.define("queue1", "a/b/c", max_spool_messages=4, **keys)
    two.define("queue2", "d/e/f")
    two.define("queue3", "g/h/i")
    two.west.admin().bridge(BRIDGE | {"subscriptions": [">"], "lanes": lanes})
    two.send("a/b/c", *range(4))
    assert two.depth("queue1") == 4
    return two


def publish_rounds(two: Two, rounds: int) -> None:
    """A message to each topic and second."""
    for n in range(rounds):
        for topic in ("a/b/c", "d/e/f", "g/h/i"):
            two.send(topic, f"{topic}:{n}")  # its publisher is acknowledged by the first broker
        two.engine.advance("1s")


def test_h2_a_full_endpoint_holds_the_link_step_by_step() -> None:
    two = full_queue("none")
    publish_rounds(two, 10)
    assert (two.depth("queue2"), two.depth("queue3")) == (0, 0)  # stuck behind queue1's
    (blocked,) = two.seen()["blocked"]
    assert (blocked["endpoint"], blocked["reason"]) == ("queue1", "queue_quota")
    assert blocked["waiting"] == two.seen()["waiting"] == 30
    assert blocked["for_s"] == 10
    (told,) = two.events("bridge_blocked")  # once, however often it was tried
    assert (told["queue"], told["bridge"], told["destination"]) == ("queue1", "west-east", "a/b/c")
    assert two.east.admin().describe("queue1")["counters"]["rejected"]["queue_quota"] > 3
    # the administrator brings its consumer back
    consumer = two.east.consumer("queue1", max_backlog=100, ack_mode="auto")
    got = []
    for _ in range(20):
        while (message := consumer.receive(timeout=0)) is not None:
            got.append(message.payload.decode())
        two.engine.advance("1s")
    assert got == [*"0123", *(f"a/b/c:{n}" for n in range(10))]
    for queue, topic in (("queue2", "d/e/f"), ("queue3", "g/h/i")):
        assert two.bodies(queue) == [f"{topic}:{n}" for n in range(10)]
    (cleared,) = two.events("bridge_cleared")
    assert cleared["queue"] == "queue1"
    assert two.seen()["blocked"] == []


def test_h3_with_lanes_a_full_endpoint_holds_its_own_messages_only() -> None:
    two = full_queue("per-destination")
    publish_rounds(two, 10)
    assert (two.depth("queue2"), two.depth("queue3")) == (10, 10)  # nothing waits
    seen = two.seen()
    (blocked,) = seen["blocked"]
    assert (blocked["endpoint"], blocked["waiting"], seen["waiting"]) == ("queue1", 10, 10)
    assert blocked["destinations"] == ["a/b/c"]
    two.bodies("queue1")
    two.engine.advance("10s")
    assert two.bodies("queue1") == [f"a/b/c:{n}" for n in range(4)]  # in order, as there is room


@pytest.mark.parametrize("lanes", ["none", "per-destination"])
def test_h5_ingress_shut_down_lets_the_link_go_on(lanes: str) -> None:
    two = full_queue(lanes)
    publish_rounds(two, 3)
    two.east.admin().shutdown("queue1", ingress=True)  # what is for it is discarded
    two.engine.advance("6s")
    assert (two.depth("queue1"), two.depth("queue2"), two.depth("queue3")) == (4, 3, 3)
    assert two.seen()["waiting"] == 0
    assert two.east.admin().describe("queue1")["counters"]["discarded"] == 3


def test_h5_including_when_shut_down_the_link_stays_held() -> None:
    two = full_queue("none", reject_msg_to_sender_on_discard="including-when-shutdown")
    two.east.admin().shutdown("queue1", ingress=True)
    publish_rounds(two, 3)
    two.engine.advance("6s")
    assert two.depth("queue2") == 0
    assert two.seen()["blocked"][0]["endpoint"] == "queue1"


def test_s4_an_endpoint_that_discards_never_holds_the_link() -> None:
    two = full_queue("none", reject_msg_to_sender_on_discard="never")
    publish_rounds(two, 3)
    assert (two.depth("queue1"), two.depth("queue2")) == (4, 3)
    assert two.events("bridge_blocked") == []


def test_h2_each_endpoint_that_holds_is_told_of_once() -> None:
    two = Two(TINY)
    two.define("q1", "a/1/>", max_spool_messages=1)
    two.define("q2", "a/2/>", max_spool_messages=1)
    for n in range(4):  # more lanes than are known by name
        two.send(f"a/1/{n}", *range(3))
        two.send(f"a/2/{n}", *range(3))
    two.engine.advance("1m")
    assert sorted(e["queue"] for e in two.events("bridge_blocked")) == ["q1", "q2"]
    got: dict[str, list[str]] = {"q1": [], "q2": []}
    for _ in range(60):
        two.engine.advance("6s")
        for queue, bodies in got.items():
            bodies += two.bodies(queue)
    assert [sorted(bodies) for bodies in got.values()] == [sorted("012" * 4)] * 2
    assert two.seen()["blocked"] == []


def test_h1_a_message_that_nobody_wants_waits_and_one_that_filters_refuse_does_not() -> None:
    two = Two()
    two.east.admin().define({
        "name": "q", "message_type": "json", "type": "LocalQueue", "subscriptions": ["a/1"],
        "filter": "/n > 1",
    })  # fmt: skip
    two.send("a/1", '{"n": 1}', '{"n": 2}')
    two.send("a/2", "x")
    assert two.bodies("q") == ['{"n": 2}']
    (blocked,) = two.seen()["blocked"]
    assert (blocked["endpoint"], blocked["reason"]) == (None, "no_matching_destination")
    two.define("late", "a/2")
    two.engine.advance("6s")
    assert two.bodies("late") == ["x"]


def test_h1_what_fails_at_the_far_end_holds_its_own_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    two.define("q", "a/>")
    offer = Admission.offer

    def poisoned(self: Any, vpn: str, header: Any, record: Any, answer: Any) -> None:
        if record.value == b"poison":
            raise ZeroDivisionError("poison")
        offer(self, vpn, header, record, answer)

    monkeypatch.setattr(Admission, "offer", poisoned)
    monkeypatch.setattr(Admission, "offer_all", lambda *_: False)
    two.engine.cut("east")
    two.send("a/0", "first")
    two.engine.advance("0s")
    two.west.admin().shutdown("#bridge/west-east", egress=True)
    two.send("a/1", "good", "poison", "behind")
    two.send("a/2", "other")
    two.west.admin().shutdown("#bridge/west-east")
    two.engine.mend("east")
    two.engine.advance("1m")
    assert two.bodies("q") == ["first", "good", "other"]
    (blocked,) = two.seen()["blocked"]
    assert (blocked["destinations"], blocked["reason"], blocked["waiting"]) == (
        ["a/1"], "malformed", 2,
    )  # fmt: skip
    two.west.admin().purge("#bridge/west-east", where=None, ids=None)
    assert two.seen()["blocked"] == []


# ---------------------------------------------------------------- chains, deletion, definitions


def test_h1_bridges_make_a_chain_and_are_shown_wherever_one_asks() -> None:
    config = {
        "brokers": ["one", "two", "three"],
        "bridges": [
            {"name": "b", "from": "two", "to": "three", "subscriptions": ["a/*"]},
            {"name": "a", "from": "one", "to": "two", "subscriptions": ["a/>"]},
        ],
    }
    engine = MortalEngine(parse_configuration(config))
    engine.checking = True
    ends = [engine.connect(name, name) for name in config["brokers"]]
    for end in ends[1:]:
        end.admin().define({
            "name": "q", "message_type": "binary", "type": "LocalQueue", "subscriptions": ["a/>"],
        })  # fmt: skip
    ends[0].producer().send("a/x", b"1")
    for end in ends:
        bridges = end.admin().bridges()
        assert [(b["name"], b["from"], b["to"]) for b in bridges] == [
            ("a", "one", "two"), ("b", "two", "three"),
        ]  # fmt: skip
        assert [b["taken"] for b in bridges] == [1, 1]
        assert not [q for q in end.admin().queues() if q["name"].startswith("#")]
        assert {q["depth"] for q in end.admin().queues()} <= {1}


def test_h1_a_deleted_bridge_is_gone_with_what_waits(two: Two) -> None:
    two.send("a/b", "waits")
    two.engine.cut("east")
    two.send("a/c", "on its way")
    assert two.east is not None
    assert two.west.admin().delete_bridge("west-east") == 2
    assert two.west.admin().bridges() == []
    two.west.admin().bridge(BRIDGE)
    two.engine.mend("east")
    two.define("q", "a/>")
    two.engine.advance("1m")
    assert (two.seen()["waiting"], two.seen()["on_its_way"]) == (0, 0)
    assert two.depth("q") == 0


def test_h1_a_bridge_may_be_defined_again(two: Two) -> None:
    two.define("q", ">")
    two.west.admin().bridge(BRIDGE)
    two.west.admin().bridge(BRIDGE | {"subscriptions": ["b/>"], "lanes": "none"})
    two.send("b/1", "x")
    assert two.bodies("q") == ["x"]
    with pytest.raises(Rejected):
        two.send("a/1", "y")
    assert two.seen()["lanes"] == "none"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"to": "west"}, "to: 'west' – is the broker that it begins at"),
        ({"to": "north"}, "to: 'north' – must be a broker of this home, which has 'west', 'east'"),
        ({"from": "north"}, "from: 'north' – must be a broker of this home"),
        ({"to": "kafka://far:9092"}, "a bridge to another Kafka is not supported"),
        ({"lanes": "many"}, "lanes: 'many' – must be one of per-destination, none"),
        ({"colour": 1}, "colour: 1 – "),
        ({"subscriptions": []}, "must be a list of one or more topics"),
        ({"subscriptions": ["a*b/c"]}, "'\\*' stands at the end of a level"),
        ({"name": None}, "name: None – is required"),
        ({"vpn": "other"}, "vpn: 'other' – this is the commands topic of 'default'"),
        (
            {"name": "back", "from": "east", "to": "west", "subscriptions": ["*/b"]},
            "would bring messages back to where they began, by way of 'west-east'",
        ),
    ],
)
@pytest.mark.parametrize("at", ["west", "east"])
def test_h1_a_wrong_bridge_is_a_sentence_and_changes_nothing(
    changes: dict[str, Any], why: str, at: str
) -> None:
    two = Two()
    admin = getattr(two, at).admin()
    before = admin.bridges()
    with pytest.raises(ConfigError, match=why):
        admin.bridge(BRIDGE | {"name": "other"} | changes)
    assert admin.bridges() == before


def test_h1_endpoints_of_bridges_are_the_engines_own(two: Two) -> None:
    admin = two.west.admin()
    for call in (
        lambda: two.west.consumer("#bridge/west-east"),
        lambda: admin.delete("#bridge/west-east"),
        lambda: admin.subscribe_topic("#bridge/west-east", "c"),
    ):
        with pytest.raises(ConfigError, match="is the endpoint of a bridge"):
            call()
    with pytest.raises(ConfigError, match="must not begin with '#bridge/'"):
        admin.define({"name": "#bridge/x", "message_type": "json"})
    for to in ("#bridge/west-east", "#queue/#bridge/west-east"):
        with pytest.raises(Rejected, match="no_matching_destination"):
            two.send(to, "x")
    admin.define({"name": "near", "message_type": "binary", "type": "LocalQueue"})
    with pytest.raises(ConfigError, match="is the endpoint of a bridge, which fills it alone"):
        admin.move("near", to="#bridge/west-east")
    with pytest.raises(ConfigError, match="dead_message_queue: '#bridge/west-east' – must not"):
        admin.define({"name": "n", "message_type": "json",
                      "dead_message_queue": "#bridge/west-east"})  # fmt: skip
    with pytest.raises(ConfigError, match="there is no such bridge in VPN 'default', which has"):
        admin.delete_bridge("east-west")


def test_h1_a_plain_record_is_read_by_each_broker_and_not_bridged(two: Two) -> None:
    two.define("far", underlying_topic="a/b")
    two.west.admin().define({
        "name": "near", "message_type": "binary", "type": "LocalQueue", "underlying_topic": "a/b",
    })  # fmt: skip
    two.west.publish_raw("a/b", b"x")
    assert two.depth("far") == 1
    assert two.seen()["sent"] == 0


def test_q7_bridges_of_a_configuration_are_checked_with_all_else() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_configuration({
            "brokers": ["a", "b"],
            "bridges": [
                {"name": "x", "from": "a", "to": "b", "subscriptions": ["t/>"]},
                {"name": "x", "from": "a", "to": "c", "subscriptions": ["t"], "vpn": "v"},
                {"name": "y", "from": "b", "to": "a", "subscriptions": ["t/u"]},
                {"name": "z", "from": "b", "to": "a", "subscriptions": ["u/t"]},
                "no",
            ],
            "vpns": {"w": None},
        })  # fmt: skip
    assert [(p.where, p.key) for p in caught.value.problems] == [
        ("bridges[1] 'x'", "to"),
        ("bridges[2] 'y'", "subscriptions"),
        ("bridges[4]", "bridge"),
        ("bridges[1] 'x'", "vpn"),
    ]


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("a/b", "a/b", True), ("a/b", "a/c", False), ("a/b", "a/*", True), ("a/*", "*/b", True),
        ("a/x*", "a/xy", True), ("a/x*", "a/y*", False), ("a/>", "a", False), ("a/>", "b/>", False),
        ("a/>", "*/b/c", True), ("a/*", "a/b/c", False), ("a/x*", "a/xy*", True),
        ("a|b", "b", True), ("a|b", "c", False), ("a|b", "x/*", True), (">", "a/b", True),
    ],
)  # fmt: skip
def test_h1_patterns_that_share_a_topic(one: str, other: str, together: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is together
