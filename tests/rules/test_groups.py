"""Q5, H4: brokers form groups, and a `GroupLocalQueue` is identified by its name and a group, or a
domain."""

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryConnection
from lakequeue.protocol import ConfigError

from .harness import drain
from .mesh import ids
from .mortal import MortalEngine

EAST_WEST: list[Any] = [
    {"name": "e1", "group": "east"}, {"name": "w1", "group": "west"},
    {"name": "e2", "group": "east"}, {"name": "w2", "group": "west"},
]  # fmt: skip


def queue(name: str = "orders", kind: str = "GroupLocalQueue", **keys: Any) -> dict[str, Any]:
    given = {"name": name, "message_type": "json", "type": kind, **keys}
    return given | {"max_per_subscription_backlog": 100}


class Groups:
    """An engine of four brokers in two groups."""

    def __init__(self, *queues: dict[str, Any]) -> None:
        given = parse_configuration({"brokers": EAST_WEST, "queues": list(queues)})
        self.engine = MortalEngine(given)
        self.engine.checking = True
        self.at: dict[str, MemoryConnection] = {
            b["name"]: self.engine.connect(b["name"]) for b in EAST_WEST
        }
        self.admin = self.at["e1"].admin()

    def hosts(self, name: str = "orders") -> list[str]:
        found = self.admin.describe(name)
        return sorted(found.get("brokers") or [found["broker"]])

    def send(self, *brokers: str) -> list[str]:
        return [self.at[b].producer().send("orders", b"{}").message_id for b in brokers]

    def consumer(self, broker: str) -> Any:
        return self.at[broker].consumer("orders", ack_mode="individual", max_backlog=10)

    def depths(self, name: str = "orders") -> dict[str, int]:
        return {b: one["depth"] for b, one in self.admin.describe(name)["brokers"].items()}


@pytest.mark.parametrize(("keys", "hosts"), [
    ({"initial_owner": "w1"}, "w1 w2"), ({"initial_owner": "w1", "group": ["west"]}, "w1 w2"),
    ({"initial_owner": "w2", "group": ["w2"]}, "w2"),
    ({"initial_owner": "w1", "group_local_queue_domain": "sea"}, "e1 e2 w1 w2"),
    ({"initial_owner": "w1", "group": ["east", "w1"], "group_local_queue_domain": "sea"},
     "e1 e2 w1"),
    ({"kind": "Queue", "group": ["east"]}, "e1 e2"),
    ({"kind": "Queue", "group": ["east", "w2"]}, "e1 e2 w2"), ({"kind": "Queue"}, "e1 e2 w1 w2"),
])  # fmt: skip
def test_Q5_a_queue_is_hosted_by_its_group_or_by_its_domain(
    keys: dict[str, Any], hosts: str
) -> None:
    assert Groups(queue(**keys)).hosts() == hosts.split()
    later = Groups()
    later.at["w2"].admin().define(queue(**keys))
    assert later.hosts() == hosts.split()


def test_Q5_brokers_without_a_group_form_one() -> None:
    given = {"brokers": ["a", {"name": "b", "group": "east"}, "c"], "queues": []}
    engine = MortalEngine(parse_configuration(given))
    admin = engine.connect("b").admin()
    admin.define(queue(initial_owner="c"))
    assert sorted(admin.describe("orders")["brokers"]) == ["a", "c"]


def test_H4_messages_start_with_the_initial_owner_and_stay_in_the_group() -> None:
    mesh = Groups(queue(initial_owner="w1"))
    sent = mesh.send("e1", "w1", "w2")
    assert mesh.depths() == {"w1": 3, "w2": 0}
    consumer = mesh.consumer("w2")
    assert sorted(ids(drain(consumer))) == sorted(sent)
    assert mesh.depths() == {"w1": 0, "w2": 3}
    far = mesh.consumer("e2")
    assert far.broker in (1, 3)  # clients of other brokers are served by the group
    for message in drain(consumer):
        message.cancel()
    consumer.close()
    assert sorted(ids(drain(far))) == sorted(sent)


def test_H4_a_domain_spans_groups() -> None:
    mesh = Groups(queue(initial_owner="w1", group_local_queue_domain="sea"))
    sent = mesh.send("e1", "w2")
    assert mesh.depths() == {"e1": 0, "e2": 0, "w1": 2, "w2": 0}
    consumer = mesh.consumer("e2")
    assert sorted(ids(drain(consumer))) == sorted(sent)
    assert mesh.depths() == {"e1": 0, "e2": 2, "w1": 0, "w2": 0}


# ---------------------------------------------------------------- refusals

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"initial_owner": "x"}, r"initial_owner: 'x' – .*: e1, w1, e2, w2"),
    ({"initial_owner": "w1", "group": ["east"]},
     "initial_owner: 'w1' – must be one of the queue's group: e1, e2"),
    ({"initial_owner": "w1", "group": []}, "group: .* – has no members"),
    ({"initial_owner": "w1", "group": ["north"]},
     "group: 'north' – .*: e1, w1, e2, w2; or a group of them: east, west"),
    ({"initial_owner": "w1", "group": ["east", "west"]},
     "group: .* – has brokers of the groups 'east', 'west': a GroupLocalQueue belongs to "
     "one group; with a group_local_queue_domain it spans several"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "why"), WRONG)
def test_Q5_wrong_groups_are_refused(keys: dict[str, Any], why: str) -> None:
    mesh = Groups()
    with pytest.raises(ConfigError, match=why):
        mesh.admin.define(queue(**keys))
    assert mesh.admin.queues() == []
    with pytest.raises(ConfigError, match=why):
        parse_configuration({"brokers": EAST_WEST, "queues": [queue(**keys)]})


@pytest.mark.parametrize(("keys", "why"), [
    ({"initial_owner": "e1"}, "initial_owner: 'e1' – must be a host of the existing queue: w1, w2"),
    ({"initial_owner": "w1", "group": ["w1"]},
     "group: .*w1.* – cannot change while the queue exists"),
    ({"initial_owner": "w1", "group_local_queue_domain": "sea"},
     "group_local_queue_domain: 'sea' – cannot change while the queue exists; it is None"),
])  # fmt: skip
def test_Q9_a_queue_keeps_its_group_or_domain(keys: dict[str, Any], why: str) -> None:
    """Its name and its group, or its domain, identify the queue: a name is used once."""
    mesh = Groups(queue(initial_owner="w1"))
    with pytest.raises(ConfigError, match=why):
        mesh.admin.define(queue(**keys))
    mesh.admin.define(queue(initial_owner="w2"))
    assert mesh.hosts() == ["w1", "w2"]
    assert [len(b.store.pages) > 0 for b in mesh.engine.brokers] == [True] * 4
    mesh.send("e1")
    assert mesh.depths() == {"w1": 0, "w2": 1}
    mesh.engine.check()


@pytest.mark.parametrize(
    ("brokers", "why"),
    [
        ([{"name": "a", "group": "b"}, "b"], r"brokers\[0\]: group: 'b' – must not be a broker's"),
        ([{"name": "a", "groups": "b"}], r"brokers\[0\]: groups: 'b' – .*group"),
        ([{"name": "a", "group": "b/c"}], r"brokers\[0\]: group: 'b/c' – must be at most 64"),
        ([{"group": "b"}], r"brokers\[0\]: name: None – is required: the broker's name"),
        ([{"name": "a"}, "a"], r"brokers\[1\]: name: 'a' – is given twice"),
    ],
)
def test_Q7_wrong_sections_are_refused(brokers: list[Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_configuration({"brokers": brokers})
