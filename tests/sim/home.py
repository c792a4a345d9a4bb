"""A whole home in one process, from one seed: its brokers, Kafka, the store, and its clients.

Its events are in `traffic` and `faults`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from lakequeue.definitions import parse_configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.protocol import commands as c
from lakequeue.protocol import topics
from lakequeue.replica.driver import StepPutAside
from lakequeue.state import Limits

from .accounts import Accounts
from .clients import INBOX, RECEIPTS, VPN, Admin, Consumer, Net, Producer
from .kafka import Fenced, Kafka
from .worker import Died, Site, Worker

PLAIN = "orders"
OTHERS = ("other", "new", "newer")  # queues that come and go, and are judged less closely
LEASE_MS, BEAT_MS = 2_000, 8_000

QUEUES: dict[str, dict[str, Any]] = {
    "fifo": {"type": "LocalQueue", "dead_message_queue": "dead", "max_spool_messages": 8},
    "keyed": {"partition_key": "/k", "dead_message_queue": "dead", "max_cancels": 3},
    "prio": {"type": "LocalQueue", "priority": "/n % 3"},
    "odd": {"type": "LocalQueue", "filter": "/n % 2 = 1", "leasing": "strict"},
    "leased": {
        "type": "LocalQueue", "lease_period": "2s", "max_deliveries": 4,
        "dead_message_queue": "dead",
    },
    "once": {"type": "LocalQueue", "semantics": "at-most-once"},
    "short": {"type": "LocalQueue", "expiration": "3s", "dead_message_queue": "dead"},
    "spread": {
        "type": "Queue", "max_spool_messages": 20, "reject_msg_to_sender_on_discard": "never",
    },
    "plain": {"underlying_topic": "orders", "type": "Queue"},
    "slow": {"type": "LocalQueue", "redelivery_delay": "300ms", "max_backlog": 4},
    "owned": {"type": "GroupLocalQueue"},
}  # fmt: skip
TOPICS = {
    "all": ["fifo", "keyed", "spread", "odd"],
    "two": ["leased", "prio", "short", "slow", "owned"],
}
SHARED = {"spread", "plain", "owned"}
ORDERED = {"fifo": "", "odd": "", "once": "", "short": "", "keyed": "k"}
CHANGES_MAX = 8  # more than a home begins with
SMALL = Limits(
    live_rows=4, segment_rows=2, block_bytes=60, file_bytes=300, store_slack_bytes=200,
    memory_bytes=300, blocks_cached=1, merge_rows=3, due_rows=3, delivery_rows=5, command_rows=4,
    bulk_rows=3, due_names=2, looks=5, again_rows=3, unconfirmed_changes=CHANGES_MAX,
    unconfirmed_records=40,
)  # fmt: skip
OF_BROKER = topics.MESH, topics.INSTRUCTIONS, topics.BRIDGE_OUT
LIMITS = (
    Limits(),
    Limits(live_rows=4, segment_rows=2, block_bytes=40, file_bytes=200, store_slack_bytes=100),
    SMALL,
)


class Home:
    """One home with its clients. others: queues that come and go."""

    others: tuple[str, ...] = OTHERS
    has_tables = False  # whether receipts may wait for them

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.names = ("a", "b", "c")[: self.brokers_of(rng)]
        chosen = sorted(rng.sample(sorted(QUEUES), rng.randint(3, 5)))
        self.queues = [*chosen, "dead"]
        takes = {q: {q, *(topic for topic, names in TOPICS.items() if q in names)} for q in chosen}
        if "plain" in takes:
            takes["plain"].add(PLAIN)
        self.accounts = Accounts(
            takes, {"odd"} & set(chosen), {q: by for q, by in ORDERED.items() if q in chosen},
            shared=SHARED & set(chosen), gone=set(OTHERS),
        )  # fmt: skip
        self.kafka = Kafka()
        self.kafka.sizes = self.sizes()
        self.limits = limits = rng.choice(LIMITS)
        self.sites = {name: Site(name, n, limits) for n, name in enumerate(self.names)}
        self.zombies: list[Worker] = []
        self.net = Net(self.kafka, rng)
        self.net.lost, self.net.twice = rng.choice((0.0, 0.05)), rng.choice((0.0, 0.05))
        self.admin = Admin(0, self.net)
        self.inboxes = 1
        self.consumers: list[Consumer] = []
        self.producers = [
            Producer(f"p{n}", rng.randrange(len(self.names)), n, self.net, self.accounts)
            for n in range(rng.randint(1, 3))
        ]
        self.has_tables = rng.random() < 0.3
        self.limited: set[str] = set()  # queues with a limit that may hold messages back for ever
        self.n = 0
        self.numbers = len(self.names)  # of all brokers there ever were
        self.told: list[str] = []
        self.calm = False
        self.last_beat = self.kafka.now
        self._begin()

    def destinations(self) -> list[str]:
        """The destinations of messages."""
        return [*self.accounts.takes, *TOPICS]

    def brokers_of(self, rng: random.Random) -> int:
        return rng.choice((1, 1, 2, 3))

    def sizes(self) -> dict[str, int]:
        """All topics."""
        sizes = {topics.topic(VPN, kind): 1 for kind in ("journal", "rejected", "directory")}
        sizes |= {topics.topic(VPN, topics.COMMANDS): 16, topics.topic(VPN, topics.PUBLISH): 128}
        sizes |= {INBOX: 512, RECEIPTS: 8, PLAIN: 2}
        sizes |= {topics.topic(VPN, kind): 1 for kind in (topics.BRIDGE_IN, topics.BRIDGE_ANSWERS)}
        for name in self.names:
            sizes |= {topics.topic(name, kind): 1 for kind in OF_BROKER}
        return sizes

    def _begin(self) -> None:
        """The engine's first instructions."""
        queues = []
        for n, name in enumerate(self.queues):
            one = {
                "name": name, "message_type": "json", "max_per_subscription_backlog": 5,
                "subscriptions": [t for t, names in TOPICS.items() if name in names],
                "type": "LocalQueue", **QUEUES.get(name, {}),
            }  # fmt: skip
            if name == "keyed":
                one["type"] = "Queue"
            if one["type"] == "LocalQueue":
                one["broker"] = self.names[n % len(self.names)]
            if one["type"] == "GroupLocalQueue":
                one["initial_owner"] = self.names[n % len(self.names)]
            queues.append(one)
        system = {"heartbeat_timeout": f"{BEAT_MS}ms"}
        configuration = parse_configuration(
            {
                "brokers": list(self.names),
                "queues": queues,
                "system": system,
                "bridges": self.bridges(),
            }
        )
        numbers = {one: n for n, one in enumerate(self.names)}
        for name, site in self.sites.items():
            self.begin_site(site, configure_commands(configuration, name, numbers))
        for _ in range(12):
            self._let_work(self.rng)

    def bridges(self) -> list[dict[str, Any]]:
        """The bridges of the configuration."""
        return []

    def begin_site(self, site: Site, instructions: list[tuple[str, bytes]]) -> None:
        """A broker starts: the engine gives it the facts that it needs."""
        if "plain" in self.queues:
            site.captured = [PLAIN]
        place = topics.topic(site.name, topics.INSTRUCTIONS), 0
        begin = c.encode_command(c.Begin(epoch=site.epoch))
        for vpn, command in [(VPN, begin), *instructions]:
            self.kafka.append(place, command, vpn.encode())
        self.kafka.append((topics.topic(VPN, topics.COMMANDS), site.number), begin)
        self.open(site, self.rng)

    def open(self, site: Site, rng: random.Random) -> None:
        """Start a worker, which may die meanwhile."""
        before = site.worker
        if before is not None and not before.is_over:
            self.zombies.append(before)
        worker = Worker(site, self.kafka, rng)
        if self.calm:
            worker.most = 100
        self.do(worker, worker.open)

    def do(self, worker: Worker, what: Callable[[], Any]) -> Any:
        """Let a worker do something; it may die of it."""
        if worker.is_over:
            return None
        try:
            return what()
        except (Died, Fenced, StepPutAside) as why:
            self.told.append(f"   {worker.site.name}/{worker.attempt}: {type(why).__name__} {why}")
            worker.die()
            return None

    def _let_work(self, rng: random.Random) -> int:
        """Each broker with work takes a step; returns their number."""
        took = 0
        for site in self.sites.values():
            worker = site.worker
            if worker is None or worker.is_over:
                if self.calm or rng.random() < 0.5:
                    self.open(site, rng)
            elif not worker.is_frozen:
                worker.rng = rng
                took += bool(self.do(worker, worker.step))
        return took

    def _site(self, rng: random.Random) -> Site:
        return rng.choice(list(self.sites.values()))

    def _hosts(self, queue: str) -> list[Site]:
        """The present hosts of a queue."""
        workers = [site.worker for site in self.sites.values()]
        running = [one for one in workers if one is not None and not one.is_over]
        return [one.site for one in running if one.driver._replica.broker.find(VPN, queue)]

    def _keeper(self) -> int:
        return min(site.number for site in self.sites.values())
