"""A second home with a Kafka of its own, and the bridge to it (H1, H2, H3, P1).

The far home is a `Home` like the near one, with one broker and no producers: all its messages come
over the bridge. A copier connects the two, as in the engine. Its memory does not matter: the link
is cut, the copier starts again at an earlier record, and it leaves out a record until it does.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from lakequeue.definitions import parse_configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.protocol import home_bridges, topics
from lakequeue.state import Limits

from .accounts import Accounts, Lives, must
from .clients import VPN, Admin, Net
from .faults import FaultyHome
from .home import BEAT_MS, Home
from .kafka import Kafka
from .worker import Site

BRIDGE = "over"
ENDPOINT = f"#bridge/{BRIDGE}"
BRIDGE_IN = topics.topic(VPN, topics.BRIDGE_IN)
DIRECTORY = topics.topic(VPN, topics.DIRECTORY)
ANSWERS = topics.topic(VPN, topics.BRIDGE_ANSWERS)
NEAR_EPOCH, FAR_EPOCH = 7, 8
FAR = "z"
FAR_TOPICS = {"far/one": ["narrow", "wide"], "far/two": ["wide"], "far/three": ["wide"]}
FAR_QUEUES: dict[str, dict[str, Any]] = {
    "narrow": {"max_spool_messages": 4},
    "wide": {"lease_period": "2s"},
}
EVENTS = (
    "step", "step", "step", "consume", "listen", "listen", "settle", "settle", "leave", "mark",
    "commit", "die", "kill", "replace", "haunt", "lag", "cut", "freeze", "clock", "go_back",
    "retain", "hole",
)  # fmt: skip


def near_end(carrier: str) -> dict[str, Any]:
    """The bridge, as the near home defines it."""
    lanes = "per-destination"
    return {
        "name": BRIDGE, "from": carrier, "to": "memory://there", "subscriptions": ["far/>"],
        "lanes": lanes,
    }  # fmt: skip


class FarHome(FaultyHome):
    """The far home."""

    others = ()

    def __init__(self, seed: int, limits: Limits, near: Home) -> None:
        self.seed, self.near = seed, near
        self.came: dict[int, bytes] = {}  # records from the bridge, by offset
        self.rng = random.Random(f"far {seed}")
        self.names = (FAR,)
        self.queues = sorted(FAR_QUEUES)
        takes = {q: {t for t, names in FAR_TOPICS.items() if q in names} for q in FAR_QUEUES}
        self.accounts = Accounts(takes, set(), {"narrow": ""}, dead="narrow")
        self.kafka = Kafka(now=near.kafka.now)
        self.kafka.sizes = self.sizes()
        self.sites = {FAR: Site(FAR, 0, limits, epoch=FAR_EPOCH)}
        self.sites[FAR].doors = [(BRIDGE_IN, 0)]
        self.zombies, self.consumers, self.producers = [], [], []
        self.net = Net(self.kafka, self.rng)
        self.net.lost = self.net.twice = 0.02
        self.admin = Admin(0, self.net)
        self.inboxes, self.n, self.numbers = 1, 0, 1
        self.limited = set()
        self.told, self.calm, self.last_beat = near.told, False, self.kafka.now
        self._begin()

    def _begin(self) -> None:
        queues = [
            {
                "name": name, "message_type": "json", "type": "LocalQueue", "broker": FAR,
                "subscriptions": [t for t, names in FAR_TOPICS.items() if name in names],
                "max_per_subscription_backlog": 5, **given,
            } for name, given in FAR_QUEUES.items()
        ]  # fmt: skip
        bridge = {"name": BRIDGE, "from": "memory://here", "to": FAR, "subscriptions": ["far/>"]}
        configuration = parse_configuration(
            {
                "brokers": [FAR], "queues": queues, "bridges": [bridge],
                "system": {"heartbeat_timeout": f"{BEAT_MS}ms"},
            }
        )  # fmt: skip
        self.begin_site(self.sites[FAR], configure_commands(configuration, FAR, {FAR: 0}))
        for _ in range(12):
            self._let_work(self.rng)

    def happen(self, rng: random.Random) -> None:
        """One event in the far home."""
        self.kafka.now = max(self.kafka.now, self.near.kafka.now)
        getattr(self, f"do_{rng.choice(EVENTS)}")(rng)
        self.near.kafka.now = self.kafka.now

    def know(self) -> None:
        """Read what was sent to the far home by now."""
        for key, one in self.near.accounts.sent.items():
            if one.to in FAR_TOPICS and key not in self.accounts.sent:
                self.accounts.sent[key] = replace(one, ids=set(), discarded=set(), number=None)

    def judge(self) -> None:
        super().judge()
        lives = Lives(self.accounts)
        lives.read(self.kafka)
        ids: dict[tuple[str, int], set[int]] = {}
        for (topic, _, offset, item), number in lives.ids.items():
            if topic == BRIDGE_IN:
                body = json.loads(home_bridges.decode_send(self.came[offset]).send.payloads[item])
                ids.setdefault((body["p"], body["s"]), set()).add(number)
        for key, found in ids.items():
            must(len(found) == 1, f"{key} came over the bridge as {found}")
        for key, one in self.near.accounts.sent.items():
            if one.to not in FAR_TOPICS or one.number is None or one.refused or one.may_expire:
                continue
            if ENDPOINT in self.near.accounts.gone and key not in ids:
                continue  # the bridge was deleted
            must(key in ids, f"{key} is stored near, and never came over the bridge")
            for queue in self.accounts.expected(self.accounts.sent[key]):
                born = sum(lives.births[queue, number] for number in ids[key])
                must(born == 1, f"{queue}: {key} was stored {born} times behind the bridge")


class Copier:
    """Copies between the two. at: positions by topic; ever: the furthest positions."""

    def __init__(self, near: Home, far: FarHome) -> None:
        self.near, self.far = near, far
        self.is_cut = self._loses = self._leaves_out = False
        self._said: str | None = None
        self._at: dict[str, int] = {}
        self._ever: dict[str, int] = {}
        self._ends = home_bridges.BridgeEnds()
        self._read = 0  # of the directory

    def _carriers(self) -> list[str]:
        """Near brokers for which it copies: during faults all, as if old copiers still ran; in the
        end those in the directory."""
        for record in self.near.kafka.read((DIRECTORY, 0), self._read, 1 << 30):
            self._read = record.at + 1
            about = record.own_key, record.own_value, record.own_headers or ()
            self._ends.read(NEAR_EPOCH, DIRECTORY, *about)
        names = {broker for _, broker, _ in self._ends.ends}
        return [name for name in self.near.sites if name in names or not self.near.calm]

    def say(self) -> None:
        """Whether the link is up."""
        self._said = home_bridges.WAITING if self.is_cut else home_bridges.OPEN
        state = home_bridges.CopierState(self._said, "cut" if self.is_cut else "")
        for name in self._carriers():
            self._tell(name, home_bridges.encode(state))

    def happen(self, rng: random.Random) -> None:
        """Copy some records; or cut the link, restart, leave one out."""
        what = rng.random()
        if what < 0.15:
            self.is_cut = not self.is_cut
        elif what < 0.35:
            self._at = {topic: rng.randint(0, at) for topic, at in self._at.items()}
        elif what < 0.5:
            self._loses = True
        if what < 0.15 or self._said is None:
            self.say()
        self._leaves_out = self._leaves_out or rng.random() < 0.3
        if not self.is_cut:
            self.copy(rng.choice((1, 2, 5)))

    def copy(self, most: int) -> int:
        """Copy both ways; returns the number of records."""
        self.far.know()
        copied = 0
        for name in self._carriers():
            topic = topics.topic(name, topics.BRIDGE_OUT)
            for record in self._next(self.near.kafka, topic, most):
                if self._leaves_out and record.at >= self._ever.get(topic, 0):
                    self._leaves_out, self._ever[topic] = False, record.at + 1
                    continue
                self._ever[topic] = max(self._ever.get(topic, 0), record.at + 1)
                value = record.own_value
                at = self.far.kafka.append((BRIDGE_IN, 0), value, BRIDGE.encode())
                self.far.came[at] = value or b""
                copied += 1
        for record in self._next(self.far.kafka, ANSWERS, most):
            if self._loses:  # the answer is repeated when its record comes again
                self._loses = False
                self.far.kafka.trim((ANSWERS, 0), record.at + 1)
                continue
            must(record.own_key == home_bridges.answers_key(NEAR_EPOCH, BRIDGE), "another's answer")
            for name in self._carriers():
                self._tell(name, record.own_value)
            copied += 1
        return copied

    def begin_again(self) -> None:
        """Restart, as it does when no answer comes."""
        self._loses = self._leaves_out = False
        self._at = {}

    def _next(self, kafka: Kafka, topic: str, most: int) -> list[Any]:
        found = kafka.read((topic, 0), self._at.get(topic, 0), most)
        if found:
            self._at[topic] = found[-1].at + 1
        return found

    def _tell(self, broker: str, value: bytes | None) -> None:
        place = topics.topic(broker, topics.MESH), 0
        self.near.kafka.append(place, value, home_bridges.bridge_key(VPN, BRIDGE))
