"""Scenarios that only the engine in memory runs: the naive model and the job lack these steps.

They are in `scenarios/engine/` and may use, beside the steps of `Runner`:

    send orders n=1 | bytes=10 header.k=v           a payload of so many bytes, no JSON; headers
    plain flights one two                           records of a plain Kafka producer
    recv a -> 1-4                                   a range, wherever numbers are expected
    queue orders max_spool_usage=0 -> keeps only    ConfigError with this text; also `redefine`,
                                                    `topic`, `untopic`
    ack a ids 2-4,7                                 the text as it is
    is orders rejected.queue_quota=1                numbers within numbers
    topics orders -> a b                            its subscriptions, in order
    journal orders expired=1 spooled=2              the counts of these events of the queue
    shutdown orders ingress egress                  the shut directions; the others are open
    browse orders where="/n > 2" -> 3 4
    purge orders 1-2 where="/n > 1" -> 2            the count
    move orders others -> 2 queue_quota=1           the count, and the reasons of those that stay
    edit orders 1 k=v old=null -> 1
    redrive dead where="/n > 3" -> 2
    headers orders 1 k=v                            exactly these; also `headers a 1`, as received
    blocked a -> max_delivered_unacked              why the consumer gets nothing; `blocked a ->`
    configure max_delivered_unacked=5               limits of the broker
    alerts queue -> spool_usage_high/250            all of this scope so far, each with its level
    event moved queue=orders moved=2                fields of the newest event of this name
    event moved -> 0                                the count of these events
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import ConfigError, LeaseLost
from rules.scenario import FOLDER, Line, Runner, options

ENGINE_FOLDER = FOLDER / "engine"


class EngineRunner(Runner):
    def do_queue(self, line: Line) -> None:
        with refusing(line):
            super().do_queue(line)

    def do_redefine(self, line: Line) -> None:
        with refusing(line):
            super().do_redefine(line)

    def do_topic(self, line: Line) -> None:
        with refusing(line):
            super().do_topic(line)

    def do_untopic(self, line: Line) -> None:
        with refusing(line):
            super().do_untopic(line)

    def define(self, name: str, definition: dict[str, Any]) -> None:
        if isinstance(listed := definition.get("subscriptions"), str):
            definition = definition | {"subscriptions": listed.split(",")}
        super().define(name, definition)

    def do_recv(self, line: Line) -> None:
        super().do_recv(ranged(line))

    def send(self, queue: str, body: Any, send_options: Any, refusal: list[str] | None) -> None:
        given = dict(send_options)
        size = given.pop("bytes", None)
        names = [key for key in given if key.startswith("header.")]
        headers = {name.removeprefix("header."): str(given.pop(name)) for name in names}
        payload = body if size is None else b"x" * size
        super().send(queue, payload, given | {"headers": headers or None}, refusal)
        assert self.ids[-1:] in ([], [str(len(self.ids))], [None]), "a refusal used up an id (S1)"

    def do_ack(self, line: Line) -> None:
        _, name, *rest = line.words
        if rest[0] != "ids":
            super().do_ack(line)
            return
        with contextlib.suppress(LeaseLost):
            self.consumers[name].ack(ids=rest[1])

    def do_plain(self, line: Line) -> None:
        for word in line.words[2:]:
            self.connection.publish_raw(line.words[1], word.encode())
            self.ids.append(str(len(self.ids) + 1))

    def do_is(self, line: Line) -> None:
        for path, expected in options(line.words[2:]).items():
            found = self.admin.describe(line.words[1])
            for key in path.split("."):
                found = found[key]
            assert found == expected, f"{path}={found}"

    def do_topics(self, line: Line) -> None:
        assert self.admin.describe(line.words[1])["subscriptions"] == line.expected

    def do_journal(self, line: Line) -> None:
        rows = [r["event"] for r in self.connection.engine.journal() if r["queue"] == line.words[1]]
        wanted = options(line.words[2:])
        assert {event: rows.count(event) for event in wanted} == wanted

    def do_shutdown(self, line: Line) -> None:
        self.admin.shutdown(line.words[1], **dict.fromkeys(line.words[2:], True))

    def do_browse(self, line: Line) -> None:
        meant = self.meant(line.words[2:])
        meant["state"] = meant.pop("ids", None)
        found = [self.number_of(m.id) for m in self.admin.browse(line.words[1], **meant)]
        assert found == ranged(line).expected

    def do_purge(self, line: Line) -> None:
        count = self.admin.purge(line.words[1], **self.meant(line.words[2:]))
        assert [str(count)] == line.expected, f"purged {count}"

    def do_move(self, line: Line) -> None:
        _, queue, to, *words = line.words
        self.changed(self.admin.move(queue, to=to, **self.meant(words)), line)

    def do_edit(self, line: Line) -> None:
        meant = self.meant(line.words[2:])
        chosen = {key: meant.pop(key) for key in ("ids", "where") if key in meant}
        headers = {key: None if value is None else str(value) for key, value in meant.items()}
        self.changed(self.admin.edit(line.words[1], headers, **chosen), line)

    def do_redrive(self, line: Line) -> None:
        done = self.admin.redrive(line.words[1], **self.meant(line.words[2:]))
        self.changed(done, line, done.moved)

    def changed(self, done: Any, line: Line, count: int | None = None) -> None:
        why = sorted(f"{reason}={n}" for reason, n in done.why.items())
        found = [str(done.count if count is None else count), *why]
        assert found == line.expected, f"{found}, expected {line.expected}"

    def meant(self, words: list[str]) -> dict[str, Any]:
        """Keys with a value, and everything else as ids."""
        meant = options([word for word in words if "=" in word])
        ids = ",".join(word for word in words if "=" not in word)
        return meant | ({"ids": ids} if ids else {})

    def number_of(self, message_id: str) -> str:
        return str(self.ids.index(message_id) + 1)

    def do_headers(self, line: Line) -> None:
        _, where, number, *words = line.words
        if where in self.consumers:
            message = self.received[where, int(number)]
        else:
            (message,) = [m for m in self.admin.browse(where) if m.id == self.id_of(number)]
        found = {key: value for key, value in message.headers.items() if key[:3] != "lq-"}
        assert found == {key: str(value) for key, value in options(words).items()}

    def do_blocked(self, line: Line) -> None:
        consumers = self.admin.describe(self.queue_of[line.words[1]])["consumers"]
        (seen,) = [c for c in consumers if c["name"] == line.words[1]]
        assert ([seen["why"]] if seen["blocked"] else []) == line.expected

    def do_configure(self, line: Line) -> None:
        command = c.Configure(system=options(line.words[1:]))
        self.connection.engine.instruct("default", c.encode_command(command))

    def do_alerts(self, line: Line) -> None:
        events = [e for e in self.admin.events() if e.get("scope") == line.words[1]]
        found = [
            f"{e['event']}/{e['level']}" for e in events
            if e["event"].endswith(("_high", "_cleared"))
        ]  # fmt: skip
        assert found == (line.expected or []), f"{found}, expected {line.expected}"

    def do_event(self, line: Line) -> None:
        _, event, *words = line.words
        events = [e for e in self.admin.events() if e["event"] == event]
        if line.expected is not None:
            assert [str(len(events))] == line.expected
            return
        wanted = options(words)
        assert {key: events[-1][key] for key in wanted} == wanted


@contextlib.contextmanager
def refusing(line: Line) -> Iterator[None]:
    """With `-> words`: expect a ConfigError with these words."""
    if line.expected is None:
        yield
        return
    with pytest.raises(ConfigError, match=re.escape(" ".join(line.expected))):
        yield


def ranged(line: Line) -> Line:
    """Expand `2-4` to `2 3 4`."""
    numbers: list[str] = []
    for word in line.expected or []:
        match = re.fullmatch(r"(\d+)-(\d+)", word)
        numbers += map(str, range(int(match[1]), int(match[2]) + 1)) if match else [word]
    return Line(line.place, line.words, numbers, line.text)
