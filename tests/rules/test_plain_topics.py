"""Q2, S5: a queue that has subscribed to a topic takes its plain Kafka records where a queue of the
home captures the topic, on whatever broker; each record once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryConnection, broker_removal
from lakequeue.protocol import commands
from lakequeue.sources.discovery import captured_topics
from lakequeue.state.broker import Broker
from lakequeue.state.mesh import captures, known_places

from .mortal import MortalEngine
from .own_pace import PARTITIONS, TOPIC
from .spread import Spread, local
from .test_last_reading import NAMES, Home

X = TOPIC


def write(spread: Spread, *numbers: int) -> None:
    for n in numbers:
        spread.engine.publish(X, b"%d" % n, None, [], partition=n % 6)


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % n for n in numbers]


def reads(spread: Spread, broker: str, *there: str) -> list[str]:
    """Which of the topics that there are a broker's loop is told to read."""
    one: Any = spread.engine.broker(broker)
    return captured_topics(there, one.captured)


def forget(engine: MortalEngine) -> None:
    """All states are as an earlier version wrote them, and the loops have read what that told."""
    for one in engine.brokers:
        broker: Any = one
        pages = broker.store.pages
        for key in [key for key in pages if key.startswith("C/")]:
            broker.store.delete(key)
        for key in [key for key in pages if key.startswith("D/")]:
            known = msgspec.msgpack.decode(pages[key])
            broker.store.put(key, msgspec.msgpack.encode({n: e[:-1] for n, e in known.items()}))
        header = msgspec.msgpack.decode(pages["broker"])
        header["captures"] = []
        broker.store.put("broker", msgspec.msgpack.encode(header))
        broker.captured.clear()


# ---------------------------------------------------------------- single stories


def test_Q2_a_subscription_on_another_broker_takes_plain_records() -> None:
    spread = Spread(local("takes", "a", underlying_topic=X), local("plain", "b", X))
    spread.admin.define(local("wild", "c"))
    spread.admin.subscribe_topic("wild", "rad*")
    write(spread, 0, 1)
    assert [spread.bodies(q) for q in ("takes", "plain", "wild")] == [bodies(0, 1)] * 3


@pytest.mark.parametrize("first", ["capture", "subscription"])
@pytest.mark.parametrize(
    ("topic", "captured", "read"),
    [
        (X, X, [X]), (X, "ra.*", [X]), ("*", X, [X]), (">", X, [X]), ("ra.*", X, [X]),
        ("ra*", "rada.*", [X, "radars"]), ("r.*", "radar|radars", [X, "radars"]),
        ("rad*/>", X, []), ("rad*/>", "rad.*", []), ("other", X, []), ("other", "rad.*", []),
        (X, "radar/.*", []), ("sonar.*", X, []),
    ],
)  # fmt: skip
def test_Q2_a_broker_reads_what_is_captured_and_subscribed_to(
    first: str, topic: str, captured: str, read: list[str]
) -> None:
    """And nothing else of what there is."""
    target = {"default_publish_target": captured.partition("|")[0]}
    if captured.endswith(".*"):
        target["default_publish_target"] = captured.removesuffix(".*") + "x"
    takes = local("takes", "a", underlying_topic=captured, **target)
    spread = Spread(local("takes", "a") if first == "subscription" else takes, local("q", "b"))
    there = (X, "radars", "other", "sonar", "radio")
    assert reads(spread, "b", *there) == []
    spread.admin.subscribe_topic("q", topic)
    if first == "subscription":
        assert reads(spread, "b", *there) == []
        spread.admin.define(takes)
    assert reads(spread, "b", *there) == read
    assert reads(spread, "c", *there) == []


def test_Q2_a_queues_own_name_is_a_topic_that_it_captures() -> None:
    spread = Spread(local(X, "a"), local("plain", "b", X), local("wild", "c", "*"))
    write(spread, 0)
    assert [spread.bodies(q) for q in (X, "plain", "wild")] == [bodies(0)] * 3
    assert reads(spread, "b", X) == reads(spread, "c", X) == [X]


def test_Q2_a_topic_that_nobody_captures_is_not_read() -> None:
    spread = Spread(local("plain", "b", X), local("wild", "c", ">", "r.*"))
    write(spread, 0)
    assert spread.bodies("plain") == spread.bodies("wild") == []
    assert [reads(spread, broker, X) for broker in "abc"] == [[]] * 3


def test_Q2_nobody_takes_what_only_another_vpn_captures() -> None:
    other = local("takes", "a", underlying_topic=X) | {"vpn": "other"}
    spread = Spread(other, local("plain", "b", X), local("wild", "c", "*"), vpns={"other": {}})
    write(spread, 0)
    with MemoryConnection(spread.engine, "other", "app", "a") as connection:
        assert len(connection.admin().browse("takes")) == 1
    assert spread.bodies("plain") == spread.bodies("wild") == []
    assert reads(spread, "b", X) == reads(spread, "c", X) == []


def test_S7_a_subscription_takes_plain_records_as_long_as_a_queue_captures_them() -> None:
    spread = Spread(
        local("takes", "a", underlying_topic=X), local("too", "c", underlying_topic="rad.*",
        default_publish_target=X), local("plain", "b", X),
    )  # fmt: skip
    write(spread, 0)
    spread.admin.delete("takes")
    write(spread, 1)  # the other one captures it still
    spread.admin.delete("too")
    write(spread, 2)
    assert spread.bodies("plain") == bodies(0, 1)  # what was stored stays
    spread.admin.define(local("again", "c", underlying_topic=X))
    write(spread, 3)
    spread.admin.define(local("again", "c", underlying_topic="sonar"))  # Q9
    write(spread, 4)
    assert spread.bodies("plain") == bodies(0, 1, 3)


def test_Q2_a_subscription_that_ends_takes_nothing_more() -> None:
    spread = Spread(local("takes", "a", underlying_topic=X), local("plain", "b", X))
    write(spread, 0)
    spread.admin.unsubscribe_topic("plain", X)
    write(spread, 1)
    assert spread.bodies("plain") == bodies(0)


def test_Q5_a_distributed_queue_takes_each_record_once_of_several_that_capture_it() -> None:
    shared = {"name": "shared", "message_type": "json", "subscriptions": ["rad*", X]}
    spread = Spread(
        local("one", "a", underlying_topic=X), local("two", "b", underlying_topic=X), shared
    )
    write(spread, *range(12))
    assert sorted(spread.bodies("shared")) == sorted(bodies(*range(12)))
    shown = spread.admin.describe("shared")["brokers"]
    assert [shown[broker]["depth"] for broker in "abc"] == [4, 4, 4]
    assert spread.bodies("one") == spread.bodies("two") == bodies(*range(12))


def test_Q5_both_queues_move_and_nothing_is_left_out() -> None:
    spread = Spread(local("takes", "a", underlying_topic=X), local("plain", "b", X))
    for n, (queue, to) in enumerate(
        [("plain", "c"), ("takes", "b"), ("plain", "a"), ("takes", "c"), ("plain", "b")]
    ):
        write(spread, n)
        spread.admin.move_queue(queue, to)
        spread.engine.advance("1s")
    write(spread, 5)
    assert spread.bodies("plain") == spread.bodies("takes") == bodies(*range(6))


@pytest.mark.parametrize("leaver", ["b", "c"])
def test_Q2_the_broker_of_either_queue_is_removed(leaver: str) -> None:
    spread = Spread(local("takes", "b", underlying_topic=X), local("plain", "c", X))
    write(spread, 0)
    broker_removal.remove_broker(spread.engine, leaver)
    write(spread, 1)
    spread.engine.advance("1s")
    assert spread.bodies("plain") == spread.bodies("takes") == bodies(0, 1)


def test_Q2_the_queues_broker_reads_on_where_it_was_made_elsewhere() -> None:
    """It does not before: the broker where it was made reads for it."""
    spread = Spread(local("takes", "a", underlying_topic=X), local("plain", "c", X))
    spread.admin.move_queue("plain", "b")
    assert [reads(spread, broker, X) for broker in "bc"] == [[], [X]]
    broker_removal.remove_broker(spread.engine, "c")
    assert reads(spread, "b", X) == [X]


def test_Q2_topics_are_read_when_brokers_are_of_an_earlier_version_no_more() -> None:
    pattern = local("pattern", "b", underlying_topic="so.*r", default_publish_target="sonar")
    spread = Spread(
        local("takes", "a", underlying_topic=X), pattern, local("plain", "c", X),
        local("wild", "c", "*"),
    )  # fmt: skip
    forget(spread.engine)
    peers = commands.encode_command(commands.Peers(brokers={"a": 0, "b": 1, "c": 2}))
    for broker in "bca":  # what the engine says at each start
        spread.engine.instruct("default", peers, broker)
    assert reads(spread, "c", X, "sonar", "radio") == [X, "sonar"]
    spread.engine.publish("sonar", b"0", None, [])
    write(spread, 1)
    assert spread.bodies("wild") == bodies(0, 1)
    spread.admin.delete("pattern")
    spread.engine.publish("sonar", b"2", None, [])
    assert spread.bodies("wild") == bodies(0, 1)


def test_Q2_a_broker_that_was_alone_tells_others_what_its_queues_capture() -> None:
    given = [local("takes", "a", underlying_topic="ra.*", default_publish_target=X)]
    engine = MortalEngine(parse_configuration({"brokers": ["a"], "queues": given}), None)
    assert not [key for key in engine.brokers[0].store.pages if key.startswith("C/")]
    engine.configure(parse_configuration({"brokers": ["a", "b"]}))
    admin = engine.connect("b").admin()
    admin.define(local("plain", "b", X))
    engine.publish(X, b"0", None, [])
    assert [m.payload for m in admin.browse("plain")] == bodies(0)


def test_Q5_what_is_passed_is_for_the_queue_of_its_vpn() -> None:
    """Two queues of one name: each takes what was passed to it, and that once."""
    queues = [{"name": "q", "message_type": "json", "underlying_topic": X, "vpn": vpn}
              for vpn in ("default", "other")]  # fmt: skip
    home = Home(0, 2, queues=queues, vpns={"other": {}})
    home.add()
    home.engine.haste()
    for _ in range(4):
        for partition in range(PARTITIONS):
            home.written[partition].append(b"%d" % home.n)
            home.n += 1
        home.end()
    for vpn in ("default", "other"):
        with MemoryConnection(home.engine, vpn, "app", "a") as connection:
            found = [m.payload for m in connection.admin().browse("q", limit=1_000)]
        assert sorted(found) == sorted(bodies(*range(home.n)))


def test_Q5_who_is_removed_says_where_it_ended_also_of_a_topic_that_nobody_captures_now() -> None:
    """It may be captured again, and who goes on may not have read it so far."""
    takes = local("takes", "a", underlying_topic=X)
    shared = {"name": "shared", "message_type": "json", "subscriptions": [X]}
    home = Home(0, 3, queues=[takes, shared])
    for partition in range(PARTITIONS):
        home.written[partition] = [b"%d" % n for n in range(partition * 3, partition * 3 + 3)]
    home.n = 3 * PARTITIONS
    for name in "ab":
        for partition in range(PARTITIONS):
            home.read(name, partition, 3)
    home.client.admin().delete("takes")
    broker_removal.remove_broker(home.engine, "b")
    home.client.admin().define(takes)
    home.end()
    assert home.taken("shared") == Counter(bodies(*range(home.n)))
    home.engine.check()


# ---------------------------------------------------------------- a walk


class Walk(Home):
    """Queues that capture a topic, and queues that subscribe to it, on brokers that come and go;
    each broker reads the topic where it was told to. since: from which record on a queue has all;
    doubtful: records that were written while it was not known everywhere whether the topic is
    captured, which a queue may have or not."""

    def __init__(self, seed: int) -> None:
        self.capturing = [
            [local("takes", "b", underlying_topic=TOPIC)],
            [
                local("takes", "b", underlying_topic=TOPIC),
                local("some", "c", underlying_topic="ra.*r", default_publish_target=TOPIC),
            ],
            [{"name": "takes", "message_type": "json", "underlying_topic": TOPIC}],
        ][seed % 3]
        shared = {"name": "shared", "message_type": "json", "subscriptions": [TOPIC]}
        queues = [*self.capturing, local("near", "c", TOPIC), local("wide", "b", "rad*")]
        if seed % 8 < 4:  # then all brokers read the topic
            queues.append(shared)
        self.since = {queue["name"]: 0 for queue in queues}
        self.doubtful: set[int] = set()
        self.settled = True
        super().__init__(seed, 3 + seed % 2, 0.1 if seed % 4 == 3 else 0.0, queues)
        self.engine.checking = seed % 8 == 0  # it costs more than all else

    def read(self, name: str, partition: int, most: int) -> None:
        broker: Any = self.engine.broker(name)
        if captured_topics([TOPIC], broker.captured):
            super().read(name, partition, most)

    def write(self) -> None:
        if not self.settled:
            self.doubtful.add(self.n)
        super().write()

    def begin(self, command: commands.Command) -> None:
        """Say something to the first broker; the answer comes some time."""
        self.client.ask(command, self.answers.append)
        self.some(self.random.choice((0, 5, 20)))

    def locals(self) -> dict[str, str]:
        """The local queues, and where each is."""
        known = self.client.admin().queues()
        return {q["name"]: q["broker"] for q in known if q.get("broker")}

    def move(self, queue: str, to: str) -> None:
        self.begin(commands.MoveQueue(queue=queue, broker=to))
        self.engine.haste()
        self.engine.slow()

    def move_some(self) -> None:
        self.engine.haste()
        queue = self.random.choice(sorted(self.locals()))
        self.move(queue, self.random.choice(self.names()))

    def remove_some(self) -> None:
        if len(self.names()) < 2:
            return
        self.engine.haste()
        name = self.random.choice(self.names())
        for queue, at in sorted(self.locals().items()):
            if at == name:
                self.move(queue, self.random.choice([o for o in self.names() if o != name]))
        self.some(self.random.choice((0, 10)))
        self.remove(self.random.choice((60, 400)), name)

    def add_some(self) -> None:
        if self.given < len(NAMES):
            self.add()

    def subscribe_late(self) -> None:
        """A subscription while records flow."""
        self.engine.haste()
        name = f"late-{len(self.since)}"
        queue = local(name, self.random.choice(self.names()))
        topic = self.random.choice((TOPIC, "*", ">", "r.*"))
        if self.random.random() < 0.5:
            self.engine.slow()
            self.begin(commands.Define(definition=queue | {"subscriptions": [topic]}))
            self.engine.haste()
        else:
            self.client.admin().define(queue)
            self.client.admin().subscribe_topic(name, topic)
        self.engine.slow()
        self.since[name] = self.n

    def capture_anew(self) -> None:
        """What captures the topic is deleted, and defined again somewhere."""
        self.end()
        self.engine.slow()
        self.settled = False
        for queue in self.capturing:
            self.begin(commands.Delete(queue=queue["name"]))
        self.engine.haste()
        self.engine.slow()
        self.some(30)
        self.engine.haste()
        self.engine.slow()
        for queue in self.capturing:
            place = {"broker": self.random.choice(self.names())} if "broker" in queue else {}
            self.begin(commands.Define(definition={**queue, **place}))
        self.engine.haste()
        self.engine.slow()
        self.settled = True
        self.since |= {queue["name"]: self.n for queue in self.capturing}

    def end(self) -> None:
        super().end()
        self.engine.advance("2s")  # trails try again what came while their queue moved

    def check(self) -> None:
        for queue, since in self.since.items():
            taken = self.taken(queue)
            certain = [n for n in range(since, self.n) if n not in self.doubtful]
            assert [n for n in certain if b"%d" % n not in taken] == [], queue
            assert {body: n for body, n in taken.items() if n > 1} == {}, queue
        self.engine.check()
        for one in self.engine.brokers:
            broker = Broker.load(one.store, one.home, self.engine.now, one._limits, first=False)
            entries = known_places.entries_of(broker, "default").items()
            texts = {captures.text_of(name, entry) for name, entry in entries}
            assert captures._texts(broker, "default") == sorted(text for text in texts if text)


def walk(seed: int) -> Walk:
    home = Walk(seed)
    home.engine.slow()
    home.some(home.random.choice((0, 20, 60)))
    acts = [home.move_some] * 3 + [home.remove_some] * 3
    acts += [home.add_some, home.subscribe_late, home.capture_anew]
    for _ in range(5):
        home.random.choice(acts)()
        home.some(home.random.choice((0, 30, 60)))
        if len(home.names()) < 2:
            home.add_some()
    home.some(40)
    home.engine.fated(None)
    home.end()
    home.engine.slow()
    home.some(40)
    home.end()
    return home


@pytest.mark.parametrize("seed", range(16))
def test_Q2_each_record_is_taken_once_by_who_subscribes(seed: int) -> None:
    walk(seed).check()
