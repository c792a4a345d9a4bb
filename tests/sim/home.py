"""A whole home in one process, from one seed: its brokers, Kafka, the store, clients, and what goes
wrong (`do_…`).

While faults go on the judges look at safety. Then faults end, and all that is left must drain in a
bounded number of rounds: nothing may wait for ever.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from lakequeue.definitions import parse_configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.protocol import commands as c
from lakequeue.protocol import mesh_messages, topics
from lakequeue.replica.driver import StepPutAside
from lakequeue.state import Limits

from .accounts import Accounts, Sent, must
from .clients import INBOX, RECEIPTS, VPN, Admin, Consumer, Net, Producer
from .kafka import Fenced, Kafka, Record
from .poison import POISONED_GRANT, POISONED_LIMIT, POISONED_PRIORITY, POISONED_STORE
from .rehoming import change_brokers, sender_of
from .replaying import judge_replay
from .worker import POINTS, Died, Site, Worker

PLAIN = "orders"
ROUNDS = 300  # in which a home whose faults ended must be empty
IDLE = 4  # rounds without news, before it is called empty
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
)  # fmt: skip
OF_BROKER = topics.MESH, topics.INSTRUCTIONS, topics.BRIDGE_OUT
LIMITS = (
    Limits(),
    Limits(live_rows=4, segment_rows=2, block_bytes=40, file_bytes=200, store_slack_bytes=100),
    SMALL,
)


class Home:
    """One home, and everybody around it."""

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
            shared=SHARED & set(chosen),
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
        self.n = 0
        self.numbers = len(self.names)  # of brokers that ever were
        self.told: list[str] = []
        self.calm = False
        self.last_beat = self.kafka.now
        self._begin()

    def destinations(self) -> list[str]:
        """Where messages are sent."""
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
        """The engine says what the home is."""
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
        """Those of the configuration."""
        return []

    def begin_site(self, site: Site, instructions: list[tuple[str, bytes]]) -> None:
        """A broker begins: the engine tells it what it has to know."""
        if "plain" in self.queues:
            site.captured = [PLAIN]
        place = topics.topic(site.name, topics.INSTRUCTIONS), 0
        begin = c.encode_command(c.Begin(epoch=site.epoch))
        for vpn, command in [(VPN, begin), *instructions]:
            self.kafka.append(place, command, vpn.encode())
        self.kafka.append((topics.topic(VPN, topics.COMMANDS), site.number), begin)
        self.open(site, self.rng)

    # ------------------------------------------------------------ workers

    def open(self, site: Site, rng: random.Random) -> None:
        """A worker begins, and dies on its way if that is its fate."""
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
        """Each broker takes a step, if it has something to do; how many did."""
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

    # ------------------------------------------------------------ happenings

    def do_step(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 4)):
            self.kafka.now += rng.choice((0, 1, 20))
            self._let_work(rng)

    def do_send(self, rng: random.Random) -> None:
        for _ in range(rng.choice((1, 1, 2, 6))):
            to = rng.choice(self.destinations())
            given: dict[str, Any] = {}
            if rng.random() < 0.08:
                given["ttl_ms"] = rng.choice((50, 2_000))
            elif rng.random() < 0.08:
                given["delay_ms"] = rng.choice((100, 3_000))
            self.n += 4
            rng.choice(self.producers).send(to, self.n + rng.randint(0, 1), rng, **given)

    def do_receipts(self, rng: random.Random) -> None:
        for producer in self.producers:
            producer.listen()
            if rng.random() < 0.5:
                producer.send_again()
            if rng.random() < 0.2:
                producer.arrive_late()

    def do_consume(self, rng: random.Random) -> None:
        if len(self.consumers) > 8:
            return
        self._consume(rng.choice(self.queues), rng)

    def _consume(self, queue: str, rng: random.Random, mode: str = "") -> None:
        filtered = not mode and rng.random() < 0.1
        mode = mode or rng.choice(("ids", "ids", "auto", "up_to", "none"))
        name = f"c{self.inboxes}"
        broker = self._site(rng).number
        self.consumers.append(
            Consumer(
                name, queue, broker, self.inboxes, mode, rng, self.net, self.accounts,
                "/n % 2 = 0" if filtered else None,
            )
        )  # fmt: skip
        self.inboxes += 1

    def do_listen(self, rng: random.Random) -> None:
        for consumer in self.consumers:
            consumer.listen()

    def do_settle(self, rng: random.Random) -> None:
        for consumer in self.consumers:
            held = list(consumer.held)
            if not held or rng.random() < 0.3:
                continue
            ids = rng.sample(held, rng.randint(1, len(held)))
            what = rng.choice(("ack", "ack", "ack", "cancel", "reject", "renew", "return"))
            if consumer.mode == "up_to" and what == "ack":
                what = "up_to"
            consumer.settle(what, ids, rng.choice((None, 0, 200)))

    def do_leave(self, rng: random.Random) -> None:
        """A consumer says goodbye, or is never heard of again."""
        if self.consumers:
            one = self.consumers.pop(rng.randrange(len(self.consumers)))
            one.listen()
            if rng.random() < 0.5:
                one.close()

    def do_wait(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 5)):
            self.kafka.now += rng.choice((20, 300, 1_000))
            self._beat()
            self._let_work(rng)

    def _beat(self) -> None:
        if self.kafka.now - self.last_beat < BEAT_MS / 4:
            return
        self.last_beat = self.kafka.now
        for consumer in self.consumers:
            consumer.beat()
        self.consumers = [one for one in self.consumers if not one.is_gone]

    def do_mark(self, rng: random.Random) -> None:
        worker = self._site(rng).worker
        if worker is not None and not worker.is_frozen:
            worker.rng = rng
            self.do(worker, worker.begin_mark)

    def do_commit(self, rng: random.Random) -> None:
        worker = self._site(rng).worker
        if worker is not None and not worker.is_frozen:
            self.do(worker, lambda: worker.commit(rng.random() < 0.05, rng.random() < 0.05))

    def do_die(self, rng: random.Random) -> None:
        self._site(rng).dies_at = rng.choice(POINTS), rng.choice((0, 0, 1, 3))

    def do_kill(self, rng: random.Random) -> None:
        worker = self._site(rng).worker
        if worker is not None:
            worker.rng = rng
            worker.die()

    def do_replace(self, rng: random.Random) -> None:
        """Somebody thinks that a broker is dead, and starts it again."""
        site = self._site(rng)
        if site.worker is not None and rng.random() < 0.7:  # while it is writing
            site.worker.slow = 2
            self._let_work(rng)
        self.open(site, rng)

    def do_go_back(self, rng: random.Random) -> None:
        """The store has lost its newest commit."""
        site = self._site(rng)
        if len(site.saved) > 1 and site.worker is not None:
            site.worker.die()
            site.saved.pop()

    def do_plain(self, rng: random.Random) -> None:
        """Somebody who knows nothing of queues writes to a topic."""
        if "plain" not in self.queues:
            return
        for _ in range(rng.randint(1, 3)):
            self.n += 1
            place = PLAIN, rng.randrange(2)
            who, at = f"plain{place[1]}", self.kafka.end(place)
            payload = {"p": who, "s": at, "n": self.n, "k": self.n % 3}
            self.kafka.append(place, json.dumps(payload).encode())
            self.accounts.sent[who, at] = Sent(PLAIN, self.n, copies=[(*place, at)])

    def do_move(self, rng: random.Random) -> None:
        """A queue moves to another broker."""
        self.accounts.happened.add("transferred")
        to = self._site(rng).name
        command = c.MoveQueue(queue=rng.choice(self.queues), broker=to)
        self.admin.tell(self._site(rng).number, command)

    def do_rehome(self, rng: random.Random) -> None:
        """A broker comes or goes while the home is at rest."""
        change_brokers(self, rng)

    def do_poison(self, rng: random.Random) -> None:
        """A record at which the core fails."""
        if rng.random() < 0.5:
            self.admin.tell(self._site(rng).number, c.Browse(queue="dead", limit=POISONED_LIMIT))
            return
        self.n += 4
        to = rng.choice(self.destinations())
        priority = rng.choice((POISONED_PRIORITY, POISONED_STORE))
        rng.choice(self.producers).send(to, self.n, rng, priority=priority)

    def do_poison_grant(self, rng: random.Random) -> None:
        """A message at which another broker fails to which it is granted."""
        if "spread" in self.queues:
            self.n += 4
            rng.choice(self.producers).send("spread", self.n, rng, priority=POISONED_GRANT)

    def do_lose(self, rng: random.Random) -> None:
        """Kafka loses what one broker said to another, before it is heard, or what it says next.
        Only the next number tells (`mesh.channel`), so it is a word behind which that broker has
        said more; or one to the first broker or from it: in the end it tells all others of a
        definition, and they answer."""
        site = self._site(rng)
        place = topics.topic(site.name, topics.MESH), 0
        log, kinds = self.kafka.partitions.get(place, []), rng.choice((OF_MESSAGES, OF_DIRECTORY))
        for at in range(self._taken(site, place), len(log)):
            record = log[at]
            if record is None or kind_of_word(record) not in kinds:
                continue
            later = {sender_of(later) for later in log[at + 1 :] if later}
            if sender_of(record) in later or self._is_told_later(site, record):
                self.accounts.happened.add("lost words")
                log[at] = None
            return

        def is_lost(record: Record) -> bool:
            if kind_of_word(record) not in kinds or not self._is_told_later(site, record):
                return False
            self.accounts.happened.add("lost words")
            return True

        self.kafka.loses[place] = is_lost
        if kinds is OF_DIRECTORY:
            self.do_other(rng)

    def _is_told_later(self, to: Site, record: Record) -> bool:
        """Whether a word to this broker is from the first one, or to it."""
        sender = sender_of(record)
        return sender != to.number and self._keeper() in (sender, to.number)

    def _taken(self, site: Site, place: tuple[str, int]) -> int:
        """Up to where somebody who runs a broker, or ran it, has read."""
        workers = [one for one in [site.worker, *self.zombies] if one and one.site is site]
        read = [worker.driver.offsets.get(place, 0) for worker in workers]
        for ranges in site.log.ever.values():
            read += [r.last + 1 for r in ranges if (r.topic, r.partition) == place]
        return max(read, default=0)

    def do_haunt(self, rng: random.Random) -> None:
        """Zombies go on."""
        for worker in self.zombies:
            worker.rng, worker.is_frozen = rng, False
            what = rng.choice((worker.step, worker.step, worker.begin_mark, worker.commit))
            self.do(worker, what)
        self.zombies = [worker for worker in self.zombies if not worker.is_over]

    def do_lag(self, rng: random.Random) -> None:
        worker = self._site(rng).worker
        if worker is not None:
            worker.lag, worker.slow = rng.choice((0, 0, 3, 20)), rng.choice((0, 0, 1, 2))
            worker.most = rng.choice((1, 5, 100))

    def do_cut(self, rng: random.Random) -> None:
        site = self._site(rng)
        site.is_cut = not site.is_cut

    def do_freeze(self, rng: random.Random) -> None:
        worker = self._site(rng).worker
        if worker is not None:
            worker.is_frozen = not worker.is_frozen

    def do_clock(self, rng: random.Random) -> None:
        self._site(rng).skew = rng.choice((0.0, 0.0, 1_000.0, -1_000.0, 1e8, -1e8))

    def do_hole(self, rng: random.Random) -> None:
        self.kafka.leave_hole(rng.choice(list(self.kafka.partitions)[:8]))

    def do_retain(self, rng: random.Random) -> None:
        """Kafka deletes what every saved state has behind it."""
        needed: dict[tuple[str, int], int] = {}
        for site in self.sites.values():
            for saved in site.saved:
                known = saved.offsets()
                for place in site.places():
                    at = known.get(place, 0)
                    needed[place] = min(needed.get(place, at), at)
        for place, at in needed.items():
            self.kafka.trim(place, at)

    def do_admin(self, rng: random.Random) -> None:
        broker, queue = self._site(rng).number, rng.choice(self.queues)
        what = rng.choice(("purge", "redrive", "shut", "shut", "define", "describe"))
        a = self.accounts
        if what == "purge":
            a.happened.add("purged")
            self.admin.tell(broker, c.Purge(queue=queue, where=rng.choice((None, "/n % 3 = 0"))))
        elif what == "redrive":
            a.happened |= {"redriven", "moved"}
            a.anew |= {(q, n) for q in self.queues for n in a.by_id}
            a.loose |= {"fifo", "odd", "once", "short", "keyed"}
            self.admin.tell(broker, c.Redrive(queue="dead"))
        elif what == "shut":
            a.happened.add(f"shut {queue}")
            ingress, egress = rng.random() < 0.7, rng.random() < 0.7
            self.admin.tell(broker, c.Shutdown(queue=queue, ingress=not ingress, egress=not egress))
        elif what == "define":
            a.happened.add(f"define {queue}")
            self._define(broker, queue, rng.choice((3, 30)))
        else:
            self.admin.tell(broker, c.Describe(queue=queue))

    def do_other(self, rng: random.Random) -> None:
        """A queue that nobody uses comes or goes."""
        broker = self._site(rng).number
        if rng.random() < 0.5:
            self.admin.tell(broker, c.Delete(queue="other"))
        else:
            self._define_other(broker, "other")

    def _define_other(self, broker: int, name: str) -> None:
        definition = {"name": name, "message_type": "text"}
        self.admin.tell(broker, c.Define(definition=definition))

    def _define(self, broker: int, queue: str, most: int) -> None:
        definition = {"name": queue, "max_spool_messages": most}
        self.admin.tell(broker, c.Define(definition=definition, replace=False))

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """Faults end; what is left is taken, in a bounded number of rounds."""
        rng = random.Random(self.seed)
        self.end_faults(rng)
        quiet = 0
        for n in range(ROUNDS):
            if self.round(n, rng):
                quiet = 0
                continue
            quiet += 1
            if quiet >= IDLE and not self.left():
                break
        must(not self.left(), f"in {ROUNDS} rounds it did not drain: {self.left()}")

    def end_faults(self, rng: random.Random) -> None:
        """All go on, and somebody takes what there is."""
        self.calm = True
        self.net.lost = self.net.twice = 0.0
        self.kafka.loses.clear()
        self._define_other(self._keeper(), "last")
        for site in self.sites.values():
            site.is_cut, site.dies_at, site.skew = False, None, 0.0
            if site.worker is not None:
                site.worker.is_frozen = False
                site.worker.lag = site.worker.slow = 0
                site.worker.most = 100
        for _ in range(5):
            self.do_haunt(rng)
        self.zombies = []
        for consumer in self.consumers:
            consumer.listen()
            consumer.close()
        self.consumers = []
        for queue in self.queues:
            for site in self.sites.values():
                self.admin.tell(site.number, c.Shutdown(queue=queue))
            self._consume(queue, rng, "auto")

    def _mend_queues(self) -> None:
        """Somebody defines the queues again that failed, and opens those that are still shut down:
        the first broker takes no change while too many wait."""
        for site in self.sites.values():
            if site.worker is not None and not site.worker.is_over:
                for queue in site.worker.driver._replica.broker.queues.values():
                    header, name = queue.header, queue.definition.name
                    if header.faulted and name in self.queues:
                        self._define(self._keeper(), name, 30)
                    elif name in self.queues and not (header.ingress and header.egress):
                        self.admin.tell(site.number, c.Shutdown(queue=name))

    def _keeper(self) -> int:
        return min(site.number for site in self.sites.values())

    def round(self, n: int, rng: random.Random) -> int:
        """Half a second of everybody's life; how much happened in it."""
        if n % 10 == 0:
            self._mend_queues()
        self.kafka.now += 500
        self._beat()
        heard = 0
        for _ in range(50):
            took = self._let_work(rng)
            heard += sum(consumer.listen() for consumer in self.consumers)
            if not took:
                break
        for producer in self.producers:
            producer.listen()
            producer.send_again()
        self.admin.listen()
        return heard

    def left(self) -> str:
        """What is still there; empty if nothing is."""
        for producer in self.producers:
            if producer.waits:
                return f"{producer.name} waits for receipts of {producer.waits}"
        for site in self.sites.values():
            if site.worker is None or site.worker.is_over:
                return f"broker {site.name} does not run"
            if site.worker.driver._journal.segments:
                return f"{site.name} has a journal to say"
            for queue in site.worker.driver._replica.broker.queues.values():
                if queue.header.depth:
                    return f"{site.name}: {queue.header.depth} in {queue.definition.name}"
                must(not queue.header.bytes, f"{queue.definition.name}: empty, and has bytes")
        return ""

    def judge(self) -> None:
        self.events = self.accounts.judge(self.kafka)
        for site in self.sites.values():
            self._judge_ranges(site)
            judge_replay(site, self.kafka)
        first, *others = [site.directory() for site in self.sites.values()]
        for name in {name for one in (first, *others) for name in one}:
            found = [one.get(name) for one in (first, *others)]
            must(found.count(found[0]) == len(found), f"brokers know {name!r} differently: {found}")

    def _judge_ranges(self, site: Site) -> None:
        """Its steps took each record that was there once, and left none out."""
        due: dict[tuple[str, int], int] = {}
        for step, ranges in sorted(site.log.ever.items()):
            for r in ranges:
                place = r.topic, r.partition
                at = due.get(place, r.first)
                must(r.first >= at, f"{site.name}, step {step} takes {r} again, it was at {at}")
                left = self.kafka.read(place, at, 1)
                must(not left or left[0].at >= r.first, f"{site.name}, step {step}: {r}, not {at}")
                due[place] = r.last + 1


# What brokers say of messages in transit, and of the directory. If it is lost, it is said again.
OF_MESSAGES, OF_DIRECTORY = ("hand_over", "answer", "room"), ("entries", "heard")


def kind_of_word(record: Record) -> str:
    """What kind of a word of a broker of this home a record is; empty if it is none."""
    return "" if sender_of(record) is None else mesh_messages.decode(record.own_value).kind
