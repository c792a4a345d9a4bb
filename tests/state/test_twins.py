"""A broker that is loaded from a mark does what the one that wrote it does, byte for byte (R).

So a replica that takes the same steps comes to the same, wherever it began. Walks with tiny limits:
cold rows, filters, keys, barriers, delays, early acks, tasks in turns, transport acks, sessions
that are lost. `LAKEQUEUE_WALKS=10` makes ten times as many.
"""

import os
import random
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from model.audit import CHANGES, QUEUES, Trouble
from model.batches import EXCLUSIVE, Walk, random_batches, random_queues
from rules.steps import REPLY, subscribe

from .twin_steps import LIMITS, TwinSteps

TIMES = int(os.environ.get("LAKEQUEUE_WALKS", "1"))
MORE_CHANGES: tuple[dict[str, Any], ...] = (
    *CHANGES,
    {"partition_key": "/k"}, {"partition_key": "@key"}, {"partition_key": None},
    {"target_queue_depth": 4}, {"target_queue_depth": None},
    {"deferred_ack_expiration": "2s"}, {"redelivery_delay": "700ms"}, {"max_cancels": 2},
    {"max_spool_usage": 0}, {"max_spool_usage": None}, {"expiration_model": "latest"},
    {"semantics": "at-most-once", "fairness_model": "round-robin"}, {"semantics": None},
)  # fmt: skip
# Walks that found what no other test did: keys that wait behind cold ones, also after merges.
FOUND = (1023, 1052, 1104, 1153, 1286, 1361, 1366, 1415)
SESSIONS = ("one", "two", "three")
pytestmark = pytest.mark.usefixtures("small_active_sets")


class Havoc(Trouble):
    """Whatever can be said to a single broker, and to twins of it."""

    STEPS = TwinSteps
    CHANGES = MORE_CHANGES
    EXCLUSIVE = (*EXCLUSIVE, "partition_key")

    def message(self) -> tuple[Any, ...]:
        r = self.random
        to, payload, options = super().message()
        options["key"] = r.choice((None, b"a", b"b", b""))
        options["headers"] = r.choice((None, None, '[{"key":"h","value":"eA=="}]'))
        options["producer"] = r.choice("pqr") + str(self.named // 4)
        if r.random() < 0.2:
            options["deliver_at"] = self.steps.now + r.choice((-1, 300, 2_500, 8_000))
        return to, payload + b" " * r.choice((0, 0, 0, 90)), options

    def command(self) -> Any:
        r = self.random
        flow = r.choice(self.flows) if self.flows else "nobody"
        own = {"queue": flow.split("-")[0], "subscription": flow}
        match r.randrange(20):
            case 0 | 1:
                return c.TransportAck(**own, received=r.randrange(30))
            case 2:
                return c.Heartbeat(session=r.choice(SESSIONS))
            case 3:
                ahead = self.sequence + r.randrange(1, 9)
                return c.Ack(**own, ids=f"{ahead}-{ahead + r.choice((0, 2, 5))}")
            case 4:
                return c.Purge(queue=r.choice(QUEUES), where=f"/n < {r.randrange(20)}")
            case 5:
                return c.Browse(queue=r.choice(QUEUES), limit=5, where="/k <> 1", reply=REPLY)
            case 6:
                most = r.choice((3, 9, 10_000))
                return c.Configure(system={"max_delivered_unacked": most})
            case 7 | 8 if self.flows:
                return c.Ack(**own, ids=f"{max(self.sequence - 40, 1)}-{self.sequence}")
        return super().command()

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

    def look(self) -> None:
        """Twins look at one another; what a message's life is judges `model/test_audit.py`."""


@pytest.mark.parametrize("name", LIMITS)
def test_R_twins_do_the_same_whatever_comes(name: str) -> None:
    loaded = 0
    for seed in range(3 * TIMES):
        havoc = Havoc(seed, limits=LIMITS[name], chance=0.1, checked=seed % 3 == 0)
        try:
            havoc.go(20, 14)
            havoc.steps.check_marks()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        loaded += havoc.steps.loaded
    assert loaded > 5


class ColdWalk(Walk):
    """A walk where messages may be cold."""

    def order_is_silent(self, entries: list[Any]) -> bool:
        """A browse shows what is delayed and cold behind all else."""
        return super().order_is_silent(entries) or any(e.state == "delayed" for e in entries)


def check_batches(name: str, seed: int, chance: float = 0.1) -> None:
    r = random.Random(seed)
    steps = TwinSteps(limits=LIMITS[name], chance=chance, seed=seed, checked=seed % 4 == 0)
    walk = ColdWalk(random_queues(r), steps)
    try:
        walk.go(random_batches(r, 14, 6, 8))
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.parametrize("seed", FOUND)
def test_L_B_F_O_X_R5_Q9_batches_that_were_wrong_once(seed: int) -> None:
    check_batches("storage", seed)


@pytest.mark.parametrize("part", range(6))
def test_L_B_F_O_X_R5_Q9_batches_where_nearly_all_is_cold(part: int) -> None:
    """The naive model says what is right, whatever is live or cold, loaded or not."""
    for seed in range(7 * TIMES):
        check_batches("storage", part + 6 * seed)


def test_L_B_F_O_X_Q9_batches() -> None:
    for seed in range(2 * TIMES):
        check_batches("usual", seed)
