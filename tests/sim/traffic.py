"""The actions of clients and administrators in the simulated home (`do_…`)."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

from lakequeue.protocol import commands as c
from lakequeue.protocol import topics
from lakequeue.protocol.errors import Reason
from lakequeue.protocol.ids import format_ranges

from .accounts import Sent, must
from .clients import INBOX, VPN, Consumer
from .home import BEAT_MS, OTHERS, PLAIN, Home
from .poison import (
    POISONED_GRANT,
    POISONED_LIMIT,
    POISONED_PRIORITY,
    POISONED_SIZE,
    POISONED_STORE,
    POISONED_TOPIC,
)
from .rehoming import change_brokers

# Of queues that come and go. The keeper places those that need one host.
KINDS: tuple[dict[str, Any], ...] = (
    {}, {"type": "LocalQueue"}, {"type": "LocalQueue", "dead_message_queue": "dead"},
    {"partition_key": "/k"}, {"type": "LocalQueue", "barrier_expression": "/n % 5 = 0"},
)  # fmt: skip
CHANGES: tuple[dict[str, Any], ...] = (
    {"max_spool_usage": 0}, {"max_spool_usage": "1MB"}, {"max_deliveries": 2},
    {"filter": "/k = 1"}, {"filter": None}, {"expiration": "5s"}, {"subscriptions": ["two"]},
    *({"dead_message_queue": name} for name in (None, "dead", *OTHERS)),
)  # fmt: skip
# Of the queues that are judged closely.
LIMITS: tuple[dict[str, Any], ...] = (
    {"max_spool_messages": 3}, {"max_spool_messages": 3}, {"max_spool_messages": 30},
    {"max_spool_messages": 30}, {"max_spool_usage": 400}, {"reject_low_priority_msg_limit": 2},
    {"reject_msg_to_sender_on_discard": "including-when-shutdown"}, {"max_message_size": 60},
    {"spool_usage_high_percent": 90, "spool_usage_clear_percent": 10},
)  # fmt: skip
NO_LIMITS = dict.fromkeys([name for one in LIMITS for name in one]) | {"max_spool_messages": 30}
SYSTEMS: tuple[dict[str, Any], ...] = (
    {}, {}, {"max_spool_usage": 1_500}, {"max_spool_files": 2}, {"max_delivered_unacked": 3},
    {"on_no_match": "discard"},
)  # fmt: skip


class Traffic(Home):
    """A home in use."""

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
            if rng.random() < 0.1:
                given["priority"] = rng.randint(0, 9)
            if rng.random() < 0.05:
                given["dmq"] = False
            if self.has_tables and rng.random() < 0.3:
                given["durability"] = "delta"
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
        other = bool(self.others) and rng.random() < 0.2
        self._consume(rng.choice(self.others if other else self.queues), rng)

    def _consume(self, queue: str, rng: random.Random, mode: str = "") -> None:
        filtered = not mode and rng.random() < 0.1
        mode = mode or rng.choice(("ids", "ids", "auto", "up_to", "none"))
        name = f"c{self.inboxes}"
        hosts = self._hosts(queue) if rng.random() < 0.8 else []
        broker = rng.choice(hosts or [*self.sites.values()]).number
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
            consumer.listen()
            held = list(consumer.held)
            if not held or rng.random() < 0.3:
                continue
            ids = rng.sample(held, rng.randint(1, len(held)))
            what = rng.choice(("ack", "ack", "ack", "cancel", "reject", "renew", "return"))
            if consumer.mode == "up_to" and what == "ack":
                what = "up_to"
            consumer.settle(what, ids, rng.choice((None, 0, 200)))

    def do_leave(self, rng: random.Random) -> None:
        """A consumer closes its session, or falls silent for ever."""
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

    def do_plain(self, rng: random.Random) -> None:
        """A plain producer writes to a topic."""
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
        """A broker is added or removed while the home is at rest."""
        change_brokers(self, rng)

    def do_poison(self, rng: random.Random) -> None:
        """A record at which the core fails."""
        what = rng.random()
        if what < 0.2:
            queue = rng.choice([*self.queues, *self.others])
            self._poison_directory(self._site(rng).number, queue, rng)
            return
        if what < 0.5:
            self.admin.tell(self._site(rng).number, c.Browse(queue="dead", limit=POISONED_LIMIT))
            return
        self.n += 4
        to = rng.choice(self.destinations())
        priority = rng.choice((POISONED_PRIORITY, POISONED_STORE))
        rng.choice(self.producers).send(to, self.n, rng, priority=priority)

    def _poison_directory(self, broker: int, queue: str, rng: random.Random) -> None:
        if rng.random() < 0.3:
            kind = rng.choice((c.SubscribeTopic, c.UnsubscribeTopic))
            self.admin.tell(broker, kind(queue=queue, topic=POISONED_TOPIC))
            return
        change = {"max_message_size": POISONED_SIZE}
        self.limited.add(queue)
        self.accounts.happened.add(f"define {queue}")
        if queue in self.others:
            self._define_other(broker, queue, {**rng.choice(KINDS), **change})
        else:
            self._define(broker, queue, change)

    def do_poison_grant(self, rng: random.Random) -> None:
        """A message that fails at the broker to which it is granted."""
        if "spread" in self.queues:
            self.n += 4
            rng.choice(self.producers).send("spread", self.n, rng, priority=POISONED_GRANT)

    def destinations(self) -> list[str]:
        return [*super().destinations(), *self.others]

    def do_adjust(self, rng: random.Random) -> None:
        """A consumer changes its backlog, or ends its subscription."""
        if self.consumers:
            rng.choice(self.consumers).adjust(rng.choice((0, 1, 3, 10, None)))

    def do_admin(self, rng: random.Random) -> None:
        broker, queue = self._site(rng).number, rng.choice(self.queues)
        a = self.accounts
        what = rng.choice(("redrive", "shut", "shut", "define", "define", "stand-in"))
        if what == "redrive":
            a.happened.add("redriven")
            a.anew |= {(q, n) for q in self.queues for n in a.by_id}
            a.loose |= {"fifo", "odd", "once", "short", "keyed"}
            self.admin.tell(broker, c.Redrive(queue="dead", where=rng.choice((None, "/n % 2 = 0"))))
        elif what == "shut":
            a.happened.add(f"shut {queue}")
            self._shut(broker, queue, rng)
        elif what == "define":
            a.happened.add(f"define {queue}")
            self.limited.add(queue)
            self._define(broker, queue, rng.choice(LIMITS))
        elif rng.random() < 0.5:
            if queue == a.dead:
                a.happened.add(f"shut {queue}")
            self._shut(broker, f"#out/{queue}", rng)
        else:
            a.happened.add("purged")
            self.admin.tell(broker, c.Purge(queue=f"#out/{rng.choice([queue, *self.others])}"))

    def _shut(self, broker: int, queue: str, rng: random.Random) -> None:
        ingress, egress = rng.random() < 0.3, rng.random() < 0.3
        self.admin.tell(broker, c.Shutdown(queue=queue, ingress=ingress, egress=egress))

    def do_change(self, rng: random.Random) -> None:
        """An administrator changes messages: all, or by predicate, or by ids (R6, L13)."""
        a, broker, queue = self.accounts, self._site(rng).number, rng.choice(self.queues)
        which: dict[str, Any] = {}
        if a.by_id and rng.random() < 0.4:
            ids = rng.sample(sorted(a.by_id), min(len(a.by_id), rng.randint(1, 6)))
            which["ids"] = format_ranges(ids)
        elif rng.random() < 0.7:
            which["where"] = rng.choice(("/n % 3 = 0", "/k = 1", "/@priority > 3"))
        what = rng.choice(("purge", "move", "move", "edit", "edit", "ack"))
        is_dry = what != "ack" and rng.random() < 0.1
        command: c.Command
        if what == "purge":
            a.happened.add("purged")
            command = c.Purge(queue=queue, dry_run=is_dry, **which)
        elif what == "move":
            to = rng.choice([*self.queues, *self.others])
            a.happened |= {"moved", "move"}
            a.loose.add(to)
            a.moved_to.add(to)
            command = c.Move(queue=queue, to=to, dry_run=is_dry, **which)
        elif what == "edit":
            headers = {rng.choice("xy"): rng.choice((None, "", "z" * rng.choice((1, 40, 600))))}
            command = c.Edit(queue=queue, headers=headers, dry_run=is_dry, **which)
        else:
            a.acked_in.add(queue)
            command = c.Ack(queue=queue, **(which or {"where": "/n > 0"}))
        self.admin.tell(broker, command)

    def do_look(self, rng: random.Random) -> None:
        """Inspection: the answer depends on the log alone, and nothing changes (R1, R6)."""
        broker, queue = self._site(rng).number, rng.choice([*self.queues, *self.others])
        queue = rng.choice((queue, queue, f"#out/{queue}"))
        where = rng.choice((None, None, "/n % 2 = 0"))
        state = rng.choice((None, None, "ready", "leased", "delayed"))
        command: c.Command = rng.choice(
            (
                c.Describe(queue=queue), c.Queues(), c.Captures(), c.Usage(), c.Events(limit=5),
                c.Browse(queue=queue, where=where, state=state, limit=rng.choice((1, 3, 100))),
                c.Browse(queue=queue, where=where, limit=rng.choice((1, 3, 100))),
            )
        )  # fmt: skip
        self.admin.tell(broker, command)
        for shown in self.admin.listen():
            if isinstance(shown, list):
                self._judge_shown([one for one in shown if "payload" in one])

    def _judge_shown(self, shown: list[dict[str, Any]]) -> None:
        """The messages of a browse were sent, and each is shown once."""
        ids = [int(one["id"]) for one in shown]
        must(len(set(ids)) == len(ids), f"a browse shows {ids}")
        for number, one in zip(ids, shown, strict=True):
            body = json.loads(base64.b64decode(one["payload"]))
            known = self.accounts.by_id.get(number)
            must(known in (None, (body["p"], body["s"])), f"a browse shows {body} as {number}")

    def do_engine(self, rng: random.Random) -> None:
        """The engine reports an event to a broker, or sets its limits."""
        site, queue, a = self._site(rng), rng.choice(self.queues), self.accounts
        what = rng.choice(
            ("limits", "limits", "limits", "tables", "event", "undeliverable", "again")
        )
        if what == "limits":
            a.happened.add("limited")
            self.instruct(site.name, self.limits_of_system(rng.choice(SYSTEMS)))
            return
        if what == "tables" and self.has_tables:
            self.tell_tables(rng.random())
        elif what == "event":
            event = rng.choice(
                (c.RecordsLost(topic="t", records=2), c.Stuck(why="x"), c.Tick(),
                 c.RecordRefused(topic="t", why="x"), c.Tables(written=None, stopped="x"),
                 c.Begin(epoch=site.epoch))
            )  # fmt: skip
            self.instruct(site.name, event)
        elif what == "undeliverable" and a.by_id:
            ids = rng.sample(sorted(a.by_id), min(len(a.by_id), 3))
            a.undeliverable.update((queue, one) for one in ids)
            why = Reason.MESSAGE_TOO_LARGE.value
            named = format_ranges(ids)
            refused = c.Undeliverable(queue=queue, ids=named, topic=INBOX, reason=why, why="x")  # type: ignore[arg-type]
            self.instruct(site.name, refused)
        elif what == "again":
            a.loose.add(queue)
            a.moved_to.add(queue)
            self.instruct(site.name, c.BeginAgain(queue=queue))

    def instruct(self, broker: str, command: c.Command) -> None:
        """The engine gives an instruction."""
        place = topics.topic(broker, topics.INSTRUCTIONS), 0
        self.kafka.append(place, c.encode_command(command), VPN.encode())

    def limits_of_system(self, system: dict[str, Any]) -> c.Configure:
        """The command that sets the limits of a broker; that of its VPN is a little lower."""
        most = system.get("max_spool_usage")
        vpns = {VPN: {} if most is None else {"max_spool_usage": most - 200}}
        return c.Configure(system={"heartbeat_timeout": f"{BEAT_MS}ms", **system}, vpns=vpns)

    def tell_tables(self, part: float) -> None:
        """The tables have a part of the published messages (S1)."""
        publish = topics.topic(VPN, topics.PUBLISH)
        ends = {
            f"{topic}/{n}": int(len(log) * part)
            for (topic, n), log in self.kafka.partitions.items() if topic in (publish, PLAIN)
        }  # fmt: skip
        for name in self.sites:
            self.instruct(name, c.Tables(up_to=ends))

    def do_other(self, rng: random.Random) -> None:
        """One of the other queues is defined, changed, moved or deleted."""
        broker, name = self._site(rng).number, rng.choice(self.others or ("other",))
        what = rng.choice(("define", "define", "change", "change", "delete", "move", "topic"))
        command: c.Command
        if what == "define":
            self._define_other(broker, name, rng.choice(KINDS))
            return
        if what == "change":
            self.limited.add(name)
            command = c.Define(definition={"name": name, **rng.choice(CHANGES)}, replace=False)
        elif what == "delete":
            command = c.Delete(queue=name)
        elif what == "move":
            self.accounts.happened.add("transferred")
            command = c.MoveQueue(queue=name, broker=self._site(rng).name)
        else:
            kind = rng.choice((c.SubscribeTopic, c.UnsubscribeTopic))
            command = kind(queue=name, topic=rng.choice(("all", "two", "some/>")))
        self.admin.tell(broker, command)

    def _define_other(self, broker: int, name: str, kind: dict[str, Any]) -> None:
        definition = {"name": name, "message_type": "json", **kind}
        self.admin.tell(broker, c.Define(definition=definition))

    def _define(self, broker: int, queue: str, change: dict[str, Any]) -> None:
        definition = {"name": queue, **change}
        self.admin.tell(broker, c.Define(definition=definition, replace=False))
