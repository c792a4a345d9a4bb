"""An auditor for steps under budgets, where many orders of events are right (as `auditor.zig` has).

With budgets so small that each command takes several steps, deliveries come in between, and the
model's order is only one of those allowed. The auditor checks what must hold of all of them against
the engine's own journal and deliveries:

- a message's journal is a life: it enters, is leased to one subscription at a time (L3), returns or
  not, and ends once; nothing happens to it after its end;
- deliveries agree with the journal, message and receiver;
- the counters are the sums of the journal;
- no work that is due is left when the engine reports to be idle;
- safety first, then liveness: when the trouble stops, every queue drains, and every message that
  was acknowledged to its producer has ended, once in each queue that it entered.

Subscriptions keep everything they get until a command names it; commands are drawn at random.
"""

import json
import random
from collections import Counter
from typing import Any

from lakequeue.protocol import commands as c
from lakequeue.protocol.journal import Journal
from lakequeue.protocol.outputs import Deliveries, Receipts
from lakequeue.state import DictStore
from rules.steps import REPLY, Steps, replies, subscribe

from .batches import EXCLUSIVE

QUEUES = ("orders", "copies", "dead")
SESSIONS = ("one", "two", "three")
ENDS = {
    "acknowledged", "expired", "consumer_rejected", "purged", "replaced", "redriven", "deleted",
}  # fmt: skip
BACK = {"returned", "lease_ended", "canceled"}
LATE = "untouched, told late"  # only an attempt is taken back (L5)
GIVEN = {"delivered", "redelivered"}
# The events that may follow a cancel, a return or the end of a lease within the same step (L5, L6).
COUNTED = ("acknowledged", "expired", "purged", "replaced", "redriven", "canceled", "spooled")
CHANGES: tuple[dict[str, Any], ...] = (
    {"priority": "/p"}, {"priority": None}, {"barrier_expression": "/k = 4"}, {"filter": "/n > 3"},
    {"filter": None}, {"max_backlog": 5}, {"max_backlog": None}, {"max_deliveries": 3},
    {"max_deliveries": None}, {"lease_period": "900ms"}, {"lease_period": None},
    {"expiration": "3s"}, {"expiration": None}, {"max_spool_messages": 30},
    {"max_spool_messages": None}, {"fairness_model": "fast"}, {"leasing": "strict"},
    {"partition_key": "/k"}, {"partition_key": "@key"}, {"partition_key": None},
    {"target_queue_depth": 4}, {"target_queue_depth": None},
    {"deferred_ack_expiration": "2s"}, {"redelivery_delay": "700ms"}, {"max_cancels": 2},
    {"max_spool_usage": 0}, {"max_spool_usage": None}, {"expiration_model": "latest"},
    {"semantics": "at-most-once", "fairness_model": "round-robin"}, {"semantics": None},
)  # fmt: skip


class Auditor:
    """Follows every message through its queues."""

    def __init__(self) -> None:
        self.holder: dict[tuple[str, str], str | None] = {}
        self.ended: set[tuple[str, str]] = set()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.barriers: set[tuple[str, str]] = set()
        self.accepted: set[str] = set()

    def see(self, outputs: list[Any]) -> None:
        """Check the outputs of one step."""
        sent: Counter[tuple[str, str, str]] = Counter()
        told: Counter[tuple[str, str, str]] = Counter()
        for output in outputs:
            if isinstance(output, Deliveries):
                self.see_delivery(output, sent)
            elif isinstance(output, Receipts):
                self.accepted |= {
                    str(first + i) for _, n, first in output.runs if first for i in range(n)
                }
        for output in outputs:
            if isinstance(output, Journal):
                for row in output.rows():
                    self.see_event(row, told)
        assert sent == told, f"sent but not told {sent - told}, told but not sent {told - sent}"

    def see_delivery(self, d: Deliveries, sent: Counter[tuple[str, str, str]]) -> None:
        for number in d.ids if not d.again else ():
            if d.barrier:
                self.barriers.add((d.queue, str(number)))
            else:
                sent[d.queue, d.subscription, str(number)] += 1

    def see_event(self, row: dict[str, Any], told: Counter[tuple[str, str, str]]) -> None:
        event, queue, number = row["event"], row["queue"], row["message_id"]
        place = (queue, number)
        if number is None:  # of a queue or of a command, not of a message
            return
        if event in COUNTED:
            self.counts[queue, event] += 1
        if event == "spooled":
            assert place not in self.holder, f"{number} entered {queue} again"
            self.holder[place] = None
        elif event in GIVEN:
            assert self.holder.get(place, "?") is None, f"{row}: held by {self.holder.get(place)}"
            self.holder[place] = row["subscription"]
            told[queue, row["subscription"], number] += 1
        elif event in BACK:
            held = self.holder[place] is not None
            assert held is (row["reason"] != LATE), f"{row}: held by {self.holder[place]}"
            self.holder[place] = None
        elif event in ENDS:
            assert place in self.holder, f"{row}: it is not in the queue"
            del self.holder[place]
            self.ended.add(place)

    def forget(self, queue: str) -> None:
        """A deleted queue counts from zero."""
        self.counts = Counter({k: n for k, n in self.counts.items() if k[0] != queue})

    def compare(self, queue: str, seen: dict[str, Any]) -> None:
        """The numbers that the engine shows are those of its journal."""
        here = [holder for (name, _), holder in self.holder.items() if name == queue]
        assert seen["depth"] == len(here), f"{queue}: depth {seen['depth']}, journal {len(here)}"
        leased = sum(holder is not None for holder in here)
        assert seen["leased"] == leased, f"{queue}: leased {seen['leased']}, journal {leased}"
        for event in COUNTED:
            found, expected = seen[event], self.counts[queue, event]
            assert found == expected, f"{queue}: {event} {found}, journal {expected}"


class Trouble:
    """Random commands and publishes in batches; every step is audited. steps: the driver of what is
    tested."""

    def __init__(self, seed: int, steps: type = Steps, **options: Any) -> None:
        self.random = random.Random(seed)
        self.auditor = Auditor()
        self.steps = steps(DictStore(), watch=self.auditor.see, **options)
        self.flows: list[str] = []
        self.named = self.sequence = self.published = 0
        self.orders = {"name": "orders", "message_type": "json", "dead_message_queue": "dead",
                       "max_per_subscription_backlog": 40, "lease_period": "900ms"}  # fmt: skip
        self.copies = {"name": "copies", "message_type": "json", "underlying_topic": "orders",
                       "filter": "/k = 1"}  # fmt: skip
        dead = {"name": "dead", "message_type": "json", "max_per_subscription_backlog": 40}
        self.run([c.Define(definition=d) for d in (dead, self.copies, self.orders)], [])
        self.run([self.subscribe(name) for name in ("orders", "orders", "copies")], [])

    def run(self, commands: list[Any], publishes: list[Any]) -> None:
        self.published += len(publishes)
        self.steps.run(commands, publishes)
        self.look()

    def look(self) -> None:
        asked = [c.Describe(queue=name, reply=REPLY) for name in QUEUES]
        for name, answer in zip(QUEUES, replies(self.steps.run(asked)), strict=True):
            self.auditor.compare(name, answer.result)

    def go(self, batches: int, most: int) -> None:
        for _ in range(batches):
            draw = self.random.random()
            if draw < 0.15:
                self.steps.now += self.random.choice((1, 500, 900, 3_000, 9_000))
                self.run([], [])
            elif draw < 0.25:
                self.steps.restart()
            else:
                self.run(
                    [self.command() for _ in range(self.random.randrange(9))],
                    [self.message() for _ in range(self.random.randrange(most))],
                )

    def message(self) -> tuple[Any, ...]:
        r = self.random
        self.sequence += 1
        body = {"n": r.randrange(50), "k": r.randrange(5), "p": r.randrange(4)}
        options: dict[str, Any] = {
            "producer": r.choice("pqr") + str(self.named // 4), "seq": self.sequence,
            "key": r.choice((None, b"a", b"b", b"")),
            "headers": r.choice((None, None, '[{"key":"h","value":"eA=="}]')),
        }  # fmt: skip
        if r.random() < 0.2:
            options["ttl_ms"] = r.choice((700, 3_100, 9_700))
        if r.random() < 0.2:
            options["deliver_at"] = self.steps.now + r.choice((-1, 300, 2_500, 8_000))
        return "orders", json.dumps(body).encode() + b" " * r.choice((0, 0, 0, 90)), options

    def command(self) -> Any:
        r = self.random
        oldest = r.choice((1, max(1, self.sequence - 40)))
        low, ahead = r.randint(oldest, self.sequence + 2), self.sequence + r.randrange(1, 9)
        ids = f"{low}-{low + r.choice((0, 3, 60))}"
        flow = r.choice(self.flows[-8:])
        own = {"queue": flow.split("-")[0], "subscription": flow}
        name = r.choice(("orders", "orders", "orders", "copies", "dead"))
        some = own | r.choice(({}, {}, {}, {"queue": name}))  # it may be another subscription's
        match r.randrange(25):
            case 0:
                return c.TransportAck(**own, received=r.randrange(30))
            case 1:
                return c.Heartbeat(session=r.choice(SESSIONS))
            case 2:
                return c.Ack(**own, ids=f"{ahead}-{ahead + r.choice((0, 2, 5))}")
            case 3:
                return c.Purge(queue=r.choice(QUEUES), where=f"/n < {r.randrange(20)}")
            case 4:
                return c.Browse(queue=r.choice(QUEUES), limit=5, where="/k <> 1", reply=REPLY)
            case 5:
                most = r.choice((9, 10_000, 10_000))
                return c.Configure(system={"max_delivered_unacked": most})
            case 6:
                return c.Ack(**own, ids=f"{max(self.sequence - 40, 1)}-{self.sequence}")
            case 7 | 8 | 9:
                return self.subscribe(name)
            case 10:
                return c.Unsubscribe(**own)
            case 11:
                return c.Ack(**some, ids=ids)
            case 13:
                return c.Ack(**some, up_to=str(low))
            case 14:
                return c.Ack(**some, where=f"/n = {r.randrange(50)}")
            case 12 | 15 | 21:
                return c.Cancel(**some, ids=ids, delay_ms=r.choice((None, 0, 400, 5_000)))
            case 16:
                return c.Reject(**some, ids=ids)
            case 17:
                return r.choice((c.Returned, c.Renew))(**some, ids=ids)
            case 18:
                return c.Purge(queue=name, ids=ids)
            case 19:
                return c.Redrive(queue="dead")
            case 20:
                return c.SetBacklog(**some, max_backlog=r.choice((1, 5, 40)))
        return self.redefine()

    def subscribe(self, queue: str) -> Any:
        r = self.random
        self.named += 1
        self.flows.append(f"{queue}-{self.named}")
        return subscribe(
            self.flows[-1], r.choice((1, 4, 30)), queue,
            session=r.choice(("", *SESSIONS)), framing=r.choice(("single", "batch")),
            filter=r.choice((None, None, "/k = 0", "/k <> 0", "/n < 25 AND /k IN (1, 2)")),
            acks=r.choice(("explicit", "explicit", "explicit", "none")),
            transport_acks=r.random() < 0.4, priority=r.randrange(3),
        )  # fmt: skip

    def redefine(self) -> Any:
        change = dict(self.random.choice(CHANGES))
        if any(change.get(key) for key in (*EXCLUSIVE, "partition_key")):
            change = dict.fromkeys(EXCLUSIVE) | change
        self.orders = {k: v for k, v in (self.orders | change).items() if v is not None}
        return c.Define(definition=self.orders)

    def check_drained(self) -> None:
        """The trouble stops: all consumers leave, one comes that takes everything, time passes."""
        plain = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 40}
        self.run([c.Unsubscribe(queue=f.split("-")[0], subscription=f) for f in self.flows], [])
        self.run([c.Define(definition=plain)], [])
        self.run([subscribe(f"{name}-last", 40, name, acks="none") for name in QUEUES], [])
        for _ in range(4):
            self.steps.now += 6_000
            self.run([], [])
        left = sorted(self.auditor.holder)
        assert not left, f"never delivered: {left[:10]}"
        ended = {number for _, number in self.auditor.ended}
        lost = self.auditor.accepted - ended
        assert not lost, f"accepted and never seen again: {sorted(lost)[:10]}"
