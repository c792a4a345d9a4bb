"""The world of a seed: a home, in some worlds a second one with a bridge to it, and their faults.
All that happens is a list of events, each with a number from which it draws; so a failure can be
repeated, and shrunk by leaving out events."""

from __future__ import annotations

import random
import re
from typing import Any
from unittest.mock import patch

import msgspec
from lakequeue.protocol import commands as c
from lakequeue.protocol import journal_encoding

from .accounts import Wrong
from .far_home import BRIDGE, ENDPOINT, FAR_TOPICS, Copier, FarHome, near_end
from .faults import FaultyHome
from .poison import poisoned

EVENTS = 160


class World(FaultyHome):
    """A home, and its view of another. far: the other home; None: there is none."""

    far: FarHome | None = None

    def bridges(self) -> list[dict[str, Any]]:
        if self.rng.random() < 0.6:
            return []
        self.far = FarHome(self.seed, self.limits, self)
        self.copier = Copier(self, self.far)
        self.accounts.takes[ENDPOINT] = set(FAR_TOPICS)
        return [near_end(self.rng.choice(self.names))]

    def destinations(self) -> list[str]:
        found = [to for to in super().destinations() if to != ENDPOINT]
        return found if self.far is None else [*found, *FAR_TOPICS, *FAR_TOPICS]

    def do_far(self, rng: random.Random) -> None:
        """An event in the other home."""
        if self.far is None:
            self.do_step(rng)
        else:
            self.far.happen(rng)

    def do_bridge(self, rng: random.Random) -> None:
        """The bridge changes, is described, or is deleted and recreated."""
        broker, carrier = self._site(rng).number, self._site(rng).name
        what = 1.0 if self.far is None else rng.random()
        command: c.Command
        if what < 0.3 and self.far is not None:
            lanes = rng.choice(("none", "per-destination"))
            usage = rng.choice((None, 400))
            change = {"name": BRIDGE, "lanes": lanes, "max_spool_usage": usage}
            command = c.Bridge(definition=change, replace=False)
        elif what < 0.6:
            for _ in range(rng.choice((1, 4))):  # each time the endpoint has a higher number
                self.accounts.gone.add(ENDPOINT)
                self.admin.tell(broker, c.DeleteBridge(name=BRIDGE))
                self.admin.tell(broker, c.Bridge(definition=near_end(carrier)))
            return
        elif what < 0.75:
            command = c.Bridge(definition=near_end(carrier))
        else:
            command = rng.choice((c.Bridges(), c.DescribeBridge(name=BRIDGE)))
        self.admin.tell(broker, command)

    def do_copy(self, rng: random.Random) -> None:
        """Records go from home to home, or the link is cut."""
        if self.far is None:
            self.do_step(rng)
        else:
            self.copier.happen(rng)

    def end_faults(self, rng: random.Random) -> None:
        super().end_faults(rng)
        if self.far is not None:
            self.far.end_faults(rng)
            self.copier.is_cut = False

    def round(self, n: int, rng: random.Random) -> int:
        happened = super().round(n, rng)
        if self.far is not None:
            if n % 10 == 9:
                self.copier.begin_again()
            self.copier.say()
            happened += self.copier.copy(1000)
            self.far.kafka.now = self.kafka.now
            happened += self.far.round(n, rng)
            self.kafka.now = self.far.kafka.now
        return happened

    def left(self) -> str:
        return super().left() or ("" if self.far is None else self.far.left())

    def judge(self) -> None:
        super().judge()
        if self.far is not None:
            self.far.judge()
            self.events["far"] += 1


WEIGHTS = {
    "step": 30, "send": 16, "receipts": 6, "consume": 8, "listen": 6, "settle": 20, "leave": 3,
    "wait": 8, "mark": 5, "commit": 6, "die": 6, "kill": 2, "replace": 2, "haunt": 3, "lag": 4,
    "cut": 2, "freeze": 2, "clock": 1, "hole": 1, "retain": 2, "admin": 4, "go_back": 1, "plain": 3,
    "move": 2, "rehome": 4, "poison": 1, "poison_grant": 2, "lose": 5, "far": 14, "copy": 14,
    "other": 12, "restart": 4, "adjust": 3, "change": 5, "look": 5, "engine": 5, "bridge": 2,
}  # fmt: skip
OFTEN = 5
Event = tuple[str, int]


def events(seed: int) -> list[Event]:
    """The events of this seed's world. In every second world, three kinds are frequent."""
    rng = random.Random(f"happenings {seed}")  # another word would give other worlds
    often = rng.sample(sorted(WEIGHTS), 3) if seed % 2 else ()
    weights = [weight * OFTEN if kind in often else weight for kind, weight in WEIGHTS.items()]
    kinds = rng.choices(list(WEIGHTS), weights, k=EVENTS)
    return [(kind, rng.getrandbits(32)) for kind in kinds]


class Failed(AssertionError):
    """A judge found a broken promise."""

    def __init__(self, seed: int, at: str, cause: BaseException, told: list[str]) -> None:
        self.seed, self.at, self.cause, self.told = seed, at, cause, told
        words = re.findall("[a-z_]{3,}", str(cause))
        self.kind = type(cause), at == "drain", words[:4]
        super().__init__(f"seed {seed}, {at}: {type(cause).__name__}: {cause}")


def run(seed: int, todo: list[Event] | None = None) -> World:
    """Run the world of a seed, without the journal's columns. Raises Failed."""
    with patch.object(journal_encoding, "encode", msgspec.msgpack.encode), poisoned():
        return _run(seed, todo)


def _run(seed: int, todo: list[Event] | None) -> World:
    world, at = None, "beginning"
    try:
        world = World(seed)
        for kind, number in events(seed) if todo is None else todo:
            at = kind
            world.told.append(f"{kind} {number}")
            getattr(world, f"do_{kind}")(random.Random(number))
        at = "drain"
        world.drain()
        at = "judge"
        world.judge()
    except Exception as cause:
        raise Failed(seed, at, cause, world.told if world else []) from cause
    return world


def shrink(seed: int, tries: int = 400) -> tuple[list[Event], Failed]:
    """The fewest events with which the world of a seed still fails in the same way."""

    def fails(todo: list[Event]) -> Failed | None:
        try:
            run(seed, todo)
        except Failed as failed:
            return failed
        return None

    todo = events(seed)
    failed = fails(todo)
    assert failed is not None, f"seed {seed} does not fail"
    kind, size = failed.kind, len(todo) // 2
    while size and tries > 0:
        at = 0
        while at < len(todo) and tries > 0:
            tries -= 1
            found = fails(less := todo[:at] + todo[at + size :])
            if found is not None and found.kind == kind:
                todo, failed = less, found
            else:
                at += size
        size //= 2
    return todo, failed


__all__ = ["Failed", "World", "Wrong", "events", "run", "shrink"]
