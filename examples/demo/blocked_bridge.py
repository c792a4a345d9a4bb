"""The demo `bridge`: head-of-line blocking on a bridge, without lanes and with them.

Publishers at the home `west` send to three topics, and a bridge moves the messages to `east`, where
each topic has a queue. The first queue has no consumer, so it fills up. With one lane (H2) its
messages block those for the other queues; with a lane per destination (H3) they do not. Then the
consumer returns. The demo runs on ``memory://`` and advances the clock itself, so each run shows
the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...cli.printing import console, say_json
from ...definitions import parse_configuration
from ...definitions.bridge import NONE, PER_DESTINATION
from ...memory import MemoryConnection, MemoryEngine

TOPICS = {"queue1": "a/b/c", "queue2": "d/e/f", "queue3": "g/h/i"}
RATE = 4  # messages a second to each topic
ROOM = 12  # messages that queue1 accepts: it is full after 3 s
CONSUMER_BACK_S = 8
PUBLISHED_S = 13
SECONDS = 15


@dataclass
class Second:
    """One second. received: messages by queue. blocked, blocked_s, blocked_waiting: the endpoint
    that blocks the bridge, for how long, and how many messages wait for it."""

    second: int
    published: int
    received: dict[str, int]
    queue1_depth: int
    waiting: int
    blocked: str | None
    blocked_s: float
    blocked_waiting: int


class BridgeDemo:
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = console(stderr=as_json)

    def run(self) -> bool:
        """Run it without and with lanes; returns True if every message arrived once, in order."""
        outcome: dict[str, Any] = {}
        good = True
        for lanes, title in (
            (NONE, "One lane: a full queue holds up everything behind it"),
            (PER_DESTINATION, "A lane for each destination: it holds up its own messages only"),
        ):
            self._console.print(f"\n[bold]{title}[/bold] (lanes: {lanes})\n")
            story = _Story(lanes)
            try:
                self._head()
                seconds = [self._shown(story.second(n)) for n in range(1, SECONDS + 1)]
                accounts = story.accounts()
            finally:
                story.close()
            good = good and all(accounts.values())
            kept = "each message arrived once, in order" if all(accounts.values()) else (
                f"[red]lost, doubled or out of order: {accounts}[/red]"
            )  # fmt: skip
            self._console.print(f"{sum(len(s) for s in story.sent.values())} published; {kept}.")
            outcome[lanes] = {"seconds": [asdict(one) for one in seconds], "accounts": accounts}
        if self._as_json:
            say_json(outcome)
        return good

    def _head(self) -> None:
        bars = "  ".join(f"{name + ' a second':<18}" for name in TOPICS)
        self._console.print(f"{'':>4}  {bars}  {'waiting':>7}  held by")

    def _shown(self, one: Second) -> Second:
        bars = "  ".join(f"{n:>3} {_bar(n):<14}" for n in one.received.values())
        held = ""
        if one.blocked is not None:
            held = f"{one.blocked} for {one.blocked_s:.0f} s, {one.blocked_waiting} wait for it"
        comes = "  ← its consumer is back" if one.second == CONSUMER_BACK_S else ""
        line = f"{one.second:>2} s  {bars}  {one.waiting:>7}  {held}{comes}"
        self._console.print(line.rstrip())
        return one


def _bar(n: int) -> str:
    """A bar for a rate: 4 long for the usual one; a longer one may end in an arrow."""
    length = n * 4 // RATE
    return "█" * min(length, 13) + ("▶" if length > 13 else "")


class _Story:
    """Two homes, a bridge, a publisher, three consumers."""

    def __init__(self, lanes: str) -> None:
        bridge = {"name": "west-east", "subscriptions": list(TOPICS.values())}
        ends = {
            "east": bridge | {"from": "memory://west", "to": "east"},
            "west": bridge | {"from": "west", "to": "memory://east", "lanes": lanes},
        }
        engines = {name: MemoryEngine(parse_configuration({"brokers": [name]})) for name in ends}
        for name, end in ends.items():
            engines[name].homes.find = engines.get
            engines[name].now = engines["west"].now
            engines[name].configure(parse_configuration({"brokers": [name], "bridges": [end]}))
        self._west = MemoryConnection(engines["west"], "default", "publisher")
        self._east = MemoryConnection(engines["east"], "default", "consumer")
        for name, topic in TOPICS.items():
            room = {"max_spool_messages": ROOM} if name == "queue1" else {}
            self._east.admin().define(
                {"name": name, "message_type": "text", "subscriptions": [topic]} | room
            )  # fmt: skip
        self._producer = self._west.producer()
        self.sent: dict[str, list[str]] = {name: [] for name in TOPICS}
        self._got: dict[str, list[str]] = {name: [] for name in TOPICS}
        self._consumers = {name: self._consumer(name) for name in ("queue2", "queue3")}

    def _consumer(self, queue: str) -> Any:
        return self._east.consumer(queue, max_backlog=1_000, ack_mode="auto")

    def second(self, number: int) -> Second:
        if number == CONSUMER_BACK_S:
            self._consumers["queue1"] = self._consumer("queue1")
        received = dict.fromkeys(TOPICS, 0)
        published = RATE if number <= PUBLISHED_S else 0
        for _ in range(RATE):
            for name, topic in TOPICS.items() if published else ():
                text = f"{name}:{len(self.sent[name])}"
                self._producer.send(topic, text.encode())  # west acknowledges it
                self.sent[name].append(text)
            for home in (self._west, self._east):
                home.advance(1 / RATE)
            for name, consumer in self._consumers.items():
                while (message := consumer.receive(timeout=0)) is not None:
                    self._got[name].append(message.payload.decode())
                    received[name] += 1
        seen = self._west.admin().describe_bridge("west-east")
        blocked = seen["blocked"][0] if seen["blocked"] else {}
        return Second(
            number, published * len(TOPICS), received,
            self._east.admin().describe("queue1")["depth"], seen["waiting"],
            blocked.get("endpoint"), blocked.get("for_s", 0.0), blocked.get("waiting", 0),
        )  # fmt: skip

    def accounts(self) -> dict[str, bool]:
        """For each queue, whether it received every message once, in order."""
        return {name: self._got[name] == sent for name, sent in self.sent.items()}

    def close(self) -> None:
        self._west.close()
        self._east.close()
