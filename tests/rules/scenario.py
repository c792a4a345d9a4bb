"""Runs text-table scenarios: one line, one step.

A scenario is named after the rule that it proves. The same text runs on `memory://`, where the
clock is moved, and on a real job, where it is waited for; so messages are numbered by the scenario
(the first `send` is 1), queues may be renamed, and every expectation may be polled.

    queue orders max_per_subscription_backlog=2     define; message_type is json unless named
    redefine orders lease_period=1s                 define again with these keys changed
    delete orders
    topic orders a/*/c                              a topic subscription; `untopic orders a/*/c`
    sub a orders backlog=2 filter="/n > 1"          a consumer; mode=individual unless named; any
                                                    other option of a consumer
    send orders n=1 kind=x | ttl=1s priority=5      fields of the payload | options of send
    send orders n=1..3                              three messages
    send orders n=1 -> queue_quota                  refused with this reason; takes no number
    recv a -> 1 2/3 4!                              exactly these now: 2 for the third time (marked
                                                    redelivered), 4 as a barrier; no `/`: the first
    take a -> 1 2                                   the next ones; more may wait in the client
    ack a 1 3-4                                     by id; `up_to 3`; `where "/n < 3"`
    done a 2                                        message.ack(): what the mode makes of it
    cancel a 1 delay=1s
    reject a 1 reason=broken
    renew a 1 5s                                    `renew a 1`: by the queue's lease period
    backlog a 3
    close a
    kill a                                          dies silently (memory only)
    advance 1s
    restart                                         the engine's process (where there is one)
    is orders depth=3 ready=1 leased=2 spooled=3    numbers of describe
    held a 2                                        what describe says that the consumer holds
    browse orders -> 1 2                            in the queue's order; `browse orders ready ->`
    dead dmq 1 lq-dead-reason=expired               a dead message and its headers
    redrive dmq 1 -> 0 queue_quota=1                these (or all): how many moved, why others stay
"""

import contextlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakequeue.protocol.errors import LeaseLost, Rejected

FOLDER = Path(__file__).parent / "scenarios"
MEMORY_ONLY = {"kill"}
QUEUE_KEYS_RENAMED = ("underlying_topic", "default_publish_target", "dead_message_queue")
DURATION_KEYS = {
    "auto_renew_limit", "deferred_ack_expiration", "delay", "dups_ok_interval", "expiration",
    "lease_period", "redelivery_delay", "redelivery_delay_max", "ttl",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One step, with its file and line."""

    place: str
    words: list[str]
    expected: list[str] | None
    text: str


@dataclass(frozen=True)
class Scenario:
    name: str
    lines: list[Line]

    @property
    def waits_s(self) -> float:
        """The sum of the scenario's waits."""
        return sum(seconds(line.words[1]) for line in self.lines if line.words[0] == "advance")

    @property
    def fit_for_job(self) -> bool:
        """Short enough to wait for, and without a memory-only step."""
        return self.waits_s <= 3 and not MEMORY_ONLY & {line.words[0] for line in self.lines}


def seconds(duration: str) -> float:
    match = re.fullmatch(r"([\d.]+)(ms|s|m|h|d)", duration)
    assert match, f"{duration!r} is not a duration"
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


def load(folder: Path = FOLDER) -> list[Scenario]:
    """Every scenario of every `.txt` file, in the order of the files' names."""
    return [s for path in sorted(folder.glob("*.txt")) for s in parse(path.read_text(), path.name)]


def parse(text: str, file: str = "text") -> Iterator[Scenario]:
    name, lines = None, []
    for number, raw in enumerate(text.splitlines(), 1):
        words = shlex.split(raw, comments=True)
        if not words:
            continue
        if words[0] == "scenario":
            if name is not None:
                yield Scenario(name, lines)
            name, lines = words[1], []
            continue
        assert name is not None, f"{file}:{number}: a step before the first scenario"
        expected = None
        if "->" in words:
            arrow = words.index("->")
            words, expected = words[:arrow], words[arrow + 1 :]
        lines.append(Line(f"{file}:{number}", words, expected, raw.strip()))
    if name is not None:
        yield Scenario(name, lines)


@dataclass
class Clock:
    """How time passes: `advance` moves a memory clock; otherwise the scenario waits.

    patience_s: how long an expectation may take to come true (0: it is true now or never).
    quiet_s: how long the scenario waits to see that nothing more arrives.
    stretch: factor for every duration of a scenario. A real batch takes 0.3 to 2 s, so with a
    lease of 1 s `recv` could come too late for what the scenario wants to show.
    """

    moves: bool = True
    patience_s: float = 0.0
    quiet_s: float = 0.0
    stretch: float = 1.0

    def advance(self, connection: Any, duration: str) -> None:
        if self.moves:
            connection.advance(duration)
        else:
            time.sleep(seconds(duration) * self.stretch)

    def duration(self, text: str) -> str:
        """A duration of the scenario, in this clock's time."""
        return text if self.stretch == 1 else f"{seconds(text) * self.stretch:g}s"

    def durations(self, keys: dict[str, Any]) -> dict[str, Any]:
        """Options, with durations in this clock's time."""
        return {
            k: self.duration(v) if k in DURATION_KEYS and isinstance(v, str) else v
            for k, v in keys.items()
        }

    def until(self, check: Callable[[], None]) -> None:
        """Call `check` until it no longer raises AssertionError, as long as patience lasts."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return check()
            except AssertionError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)


@dataclass
class Runner:
    """One run of one scenario on one connection.

    rename: maps a queue's name in the scenario to its name on this engine.
    between: called after each line; the suite restarts the engine there.
    """

    connection: Any
    clock: Clock = field(default_factory=Clock)
    rename: Callable[[str], str] = str
    between: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        self.admin = self.connection.admin()
        self.producer = self.connection.producer()
        self.definitions: dict[str, dict[str, Any]] = {}
        self.consumers: dict[str, Any] = {}
        self.queue_of: dict[str, str] = {}
        self.received: dict[tuple[str, int], Any] = {}
        self.ids: list[str] = []

    def check(self, scenario: Scenario) -> None:
        """Carry out the lines and check their expectations."""
        try:
            for line in scenario.lines:
                try:
                    getattr(self, "do_" + line.words[0])(line)
                    if self.between is not None:
                        self.between(self.connection)
                except Exception as error:
                    error.add_note(f"{line.place}: {line.text}")
                    raise
        finally:
            if not self.clock.moves:
                self.tidy()

    def tidy(self) -> None:
        """Clean up: a real engine outlives the scenario."""
        for consumer in self.consumers.values():
            with contextlib.suppress(Exception):
                consumer.close()
        for queue in self.definitions:
            with contextlib.suppress(Exception):
                self.admin.delete(self.rename(queue))

    # Queues

    def do_queue(self, line: Line) -> None:
        self.define(line.words[1], {"message_type": "json"} | options(line.words[2:]))

    def do_redefine(self, line: Line) -> None:
        name = line.words[1]
        self.define(name, self.definitions[name] | options(line.words[2:]))

    def define(self, name: str, definition: dict[str, Any]) -> None:
        self.definitions[name] = definition
        renamed = {
            k: self.rename(v) if k in QUEUE_KEYS_RENAMED else v for k, v in definition.items()
        }
        self.admin.define({"name": self.rename(name)} | self.clock.durations(renamed))

    def do_delete(self, line: Line) -> None:
        self.admin.delete(self.rename(line.words[1]))

    def do_topic(self, line: Line) -> None:
        self.admin.subscribe_topic(self.rename(line.words[1]), self.rename(line.words[2]))

    def do_untopic(self, line: Line) -> None:
        self.admin.unsubscribe_topic(self.rename(line.words[1]), self.rename(line.words[2]))

    # Producers

    def do_send(self, line: Line) -> None:
        words, send_options = line.words[2:], {}
        if "|" in words:
            bar = words.index("|")
            words, send_options = words[:bar], options(words[bar + 1 :])
        for body in bodies(words):
            self.send(line.words[1], body, send_options, line.expected)

    def send(self, queue: str, body: Any, send_options: Any, refusal: list[str] | None) -> None:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        receipt, found = None, None
        try:
            receipt = self.producer.send(
                self.rename(queue), payload, **self.clock.durations(send_options)
            )
        except Rejected as nack:
            found = [str(nack.reason)]
        assert found == refusal, f"outcome {found}, expected {refusal}"
        if receipt is not None:
            self.ids.append(receipt.message_id)

    # Consumers

    def do_sub(self, line: Line) -> None:
        _, name, queue, *rest = line.words
        given = {"mode": "individual", "backlog": None} | options(rest)
        self.queue_of[name] = queue
        self.consumers[name] = self.connection.consumer(
            self.rename(queue),
            ack_mode=given.pop("mode"),
            max_backlog=given.pop("backlog"),
            name=name,
            **self.clock.durations(given),
        )

    def do_recv(self, line: Line) -> None:
        _, name = line.words
        expected = line.expected or []
        found: list[str] = []
        while True:
            enough = len(found) >= len(expected)
            wait = self.clock.quiet_s if enough else self.clock.patience_s
            message = self.consumers[name].receive(timeout=wait)
            if message is None:
                break
            found.append(self.note_received(name, message))
        assert found == expected, f"{name} received {found}, expected {expected}"

    def do_take(self, line: Line) -> None:
        _, name = line.words
        found = []
        for _ in line.expected or []:
            message = self.consumers[name].receive(timeout=self.clock.patience_s)
            found.append(message and self.note_received(name, message))
        assert found == line.expected, f"{name} took {found}, expected {line.expected}"

    def note_received(self, name: str, message: Any) -> str:
        assert message.id in self.ids, f"{name} received the unknown message {message.id}"
        number = self.ids.index(message.id) + 1
        self.received[name, number] = message
        if message.is_barrier:
            return f"{number}!"
        count = message.delivery_count
        assert message.redelivered == (count > 1), f"{number}: redelivered with count {count}"
        return str(number) if count == 1 else f"{number}/{count}"

    def do_ack(self, line: Line) -> None:
        _, name, *rest = line.words
        consumer = self.consumers[name]
        with contextlib.suppress(LeaseLost):
            if rest[0] == "up_to":
                consumer.ack(up_to=self.id_of(rest[1]))
            elif rest[0] == "where":
                consumer.ack(where=rest[1])
            elif rest[0] == "range":
                consumer.ack(ids=f"{self.id_of(rest[1])}-{self.id_of(rest[2])}")
            else:
                consumer.ack(ids=[self.id_of(number) for number in rest])

    def do_done(self, line: Line) -> None:
        with contextlib.suppress(LeaseLost):
            self.message(line).ack()

    def do_cancel(self, line: Line) -> None:
        with contextlib.suppress(LeaseLost):
            self.message(line).cancel(**self.clock.durations(options(line.words[3:])))

    def do_reject(self, line: Line) -> None:
        self.message(line).reject(**options(line.words[3:]))

    def do_renew(self, line: Line) -> None:
        """`renew a 1 5s -> lost` where the consumer no longer has the lease."""
        found = None
        try:
            self.message(line).renew(*map(self.clock.duration, line.words[3:]))
        except LeaseLost:
            found = ["lost"]
        assert found == line.expected, f"the renewal is {found}, expected {line.expected}"

    def do_backlog(self, line: Line) -> None:
        self.consumers[line.words[1]].set_max_backlog(int(line.words[2]))

    def do_close(self, line: Line) -> None:
        self.consumers.pop(line.words[1]).close()

    def do_kill(self, line: Line) -> None:
        self.consumers[line.words[1]].kill()

    def message(self, line: Line) -> Any:
        return self.received[line.words[1], int(line.words[2])]

    def id_of(self, number: str) -> str:
        """The id of a message of this scenario; `next` is the next id to be assigned."""
        if number == "next":
            return str(int(self.ids[-1]) + 1) if self.ids else "1"
        return self.ids[int(number) - 1]

    # Time

    def do_advance(self, line: Line) -> None:
        self.clock.advance(self.connection, line.words[1])

    def do_restart(self, line: Line) -> None:
        engine = getattr(self.connection, "engine", None)
        if engine is not None:
            engine.restart()

    # Inspection

    def do_is(self, line: Line) -> None:
        expected = options(line.words[2:])

        def check() -> None:
            seen = self.admin.describe(self.rename(line.words[1]))
            numbers = seen["counters"] | seen
            found = {key: numbers[key] for key in expected}
            assert found == expected

        self.clock.until(check)

    def do_held(self, line: Line) -> None:
        _, name, number = line.words

        def check() -> None:
            seen = self.admin.describe(self.rename(self.queue_of[name]))
            held = {field_of(c, "name"): field_of(c, "held") for c in seen["consumers"]}
            assert held[name] == int(number)

        self.clock.until(check)

    def do_browse(self, line: Line) -> None:
        state = line.words[2] if len(line.words) > 2 else None

        def check() -> None:
            messages = self.admin.browse(self.rename(line.words[1]), state=state)
            found = [str(self.ids.index(str(field_of(m, "id"))) + 1) for m in messages]
            assert found == line.expected

        self.clock.until(check)

    def do_dead(self, line: Line) -> None:
        _, queue, number, *headers = line.words

        def check() -> None:
            messages = self.admin.browse(self.rename(queue))
            dead = {str(field_of(m, "id")): field_of(m, "headers") for m in messages}
            assert self.id_of(number) in dead
            found = dead[self.id_of(number)]
            for key, value in (word.split("=", 1) for word in headers):
                wanted = self.rename(value) if key == "lq-dead-queue" else value
                assert text(found.get(key)) == wanted, f"{key}: {found.get(key)!r}"

        self.clock.until(check)

    def do_redrive(self, line: Line) -> None:
        """`redrive dmq -> 2 queue_quota=1`: the count, and the reasons of those that stay."""
        _, queue, *numbers = line.words
        ids = [self.id_of(number) for number in numbers] or None
        done = self.admin.redrive(self.rename(queue), ids=ids)
        found = [str(done.moved), *sorted(f"{why}={n}" for why, n in done.why.items())]
        assert found == line.expected, f"redriven {found}, expected {line.expected}"


def field_of(thing: Any, name: str) -> Any:
    """A field of a mapping or an object."""
    return thing[name] if isinstance(thing, dict) else getattr(thing, name)


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def value_of(word: str) -> Any:
    """A number where possible, else the text."""
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return {"null": None, "true": True, "false": False}.get(word, word)


def options(words: list[str]) -> dict[str, Any]:
    return {key: value_of(value) for key, value in (word.split("=", 1) for word in words)}


def bodies(words: list[str]) -> Iterator[dict[str, Any]]:
    """The payloads that `n=1..3 kind=x` describes."""
    body = options(words)
    for key, value in body.items():
        match = re.fullmatch(r"(\d+)\.\.(\d+)", value) if isinstance(value, str) else None
        if match:
            for number in range(int(match[1]), int(match[2]) + 1):
                yield body | {key: number}
            return
    yield body
