"""`lakequeue publish`: files, lines or standard input to a queue."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

from ..client.producer.options import destination_of, headers_of, ttl_ms
from ..client.values import content, delivery_ms
from ..protocol.errors import NotConnected, Reason, Rejected, Timeout
from .command_options import EngineCall, Number, call_options, option, pairs
from .group import EXIT_FAILED, standard
from .printing import console, note, say, say_json

WINDOW = 1000
ACK_SECONDS_MAX = 60.0
NAMES_MAX = RANGES_MAX = 20
NO_MATCH = Reason.NO_MATCHING_DESTINATION.value
LINE_SUFFIXES = (".jsonl", ".ndjson")


@click.command()
@click.argument("queue")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@option(
    "--lines/--whole", "lines", default=None,
    help="One message per line, or per file.  [default: lines for .jsonl, .ndjson and standard "
    "input, else whole]",
)  # fmt: skip
@option("--key", help="The key of each record.")
@option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="A header; repeatable.")
@option("--ttl", help="How long a message may live, such as 30s or 2h.")
@option("--delay", help="Deliver after this long at the earliest, such as 30s or 2h.")
@option("--priority", type=click.IntRange(0, 255), help="The publisher's priority (4 if unset).")
@option(
    "--rate",
    type=Number(min=0, min_open=True),
    help="At most this many per second.",
)
@call_options
@click.pass_context
def publish(
    ctx: click.Context,
    queue: str,
    files: tuple[Path, ...],
    lines: bool | None,
    key: str | None,
    headers: tuple[str, ...],
    ttl: str | None,
    delay: str | None,
    priority: int | None,
    rate: float | None,
    call: EngineCall,
) -> None:
    """Send messages to QUEUE: each of FILES, each of their lines, or standard input's lines.

    Reports how many were stored, with their ids, and how many were refused, or discarded by a
    queue's policy, with the reasons.
    Exit status 1 if one was not stored. Empty lines are skipped.

    \b
    Examples:
      echo '{"price": 12}' | lakequeue publish orders
      lakequeue publish orders monday.jsonl tuesday.jsonl --ttl 2h
      lakequeue publish images *.png --whole --header kind=png --priority 7
    """
    # Refuse wrong options before connecting to Kafka and before reading input, which may never
    # come.
    destination_of(queue)
    each = {"headers": pairs(headers, "--header"), "key": key}
    headers_of(each["headers"])
    if key is not None:
        content(key, "key")
    ttl_ms(ttl)
    delivery_ms(None, delay, now_ms=0)
    of_all = {"ttl": ttl, "delay": delay, "priority": priority}
    options = {name: value for name, value in of_all.items() if value is not None}
    tally = Tally()
    with call.connect("publish") as connection:
        producer = connection.producer(window=WINDOW, **options)
        payloads = messages(files, lines)
        if files and not call.as_json:
            payloads = _progress(payloads, files)
        try:
            started = time.monotonic()
            for count, payload in enumerate(payloads):
                if rate is not None:
                    time.sleep(max(0.0, started + count / rate - time.monotonic()))
                tally.sent(producer.send_async(queue, payload, **each))
            producer.flush(timeout=ACK_SECONDS_MAX)
        except (Timeout, NotConnected):  # messages without an answer are unknown, not refused
            tally.finish()
            tally.report(queue, call.as_json)
            raise
        finally:
            with contextlib.suppress(Timeout):
                producer.close(timeout=0)
        tally.finish()
        tally.report(queue, call.as_json)
        if NO_MATCH in tally.refused and not call.as_json:
            note(why_none_takes_it(connection.admin(), queue))
    if tally.refused or tally.discarded:
        ctx.exit(EXIT_FAILED)


def why_none_takes_it(admin: Any, destination: str) -> str:
    """Explain why no queue gets messages for a destination (S6)."""
    names = {queue["name"]: queue for queue in admin.queues()}
    if destination in names:
        captured = names[destination]["definition"]
        if captured["filter"]:
            return f"{destination} gets only messages that match its filter: {captured['filter']}"
    if not names:
        return f"There are no queues yet: lakequeue define name={destination} message_type=json"
    shown = ", ".join(sorted(names)[:NAMES_MAX]) + (", …" if len(names) > NAMES_MAX else "")
    return f"No queue gets messages for {destination!r}. Queues here: {shown}"


class Tally:
    """Counts the outcomes of messages, in order of sending, without keeping all of them."""

    def __init__(self) -> None:
        self.stored = 0
        self.unknown = 0
        self.discarded: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._ids: list[list[int]] = []  # ranges, the first `RANGES_MAX`
        self._open: deque[Any] = deque()

    def sent(self, future: Any) -> None:
        self._open.append(future)
        while self._open and self._open[0].done():
            self._take()

    def finish(self) -> None:
        """Count the rest; a message without an answer is unknown."""
        while self._open:
            if self._open[0].done():
                self._take()
            else:
                self._open.popleft()
                self.unknown += 1

    def _take(self) -> None:
        try:
            receipt = self._open.popleft().result()
            if receipt.message_id is not None:
                self.stored += 1
                self._note_id(int(receipt.message_id))
            # One queue may store it, another drop it.
            if receipt.discarded or receipt.message_id is None:
                self.discarded[_why_discarded(receipt)] += 1
        except Rejected as error:
            by = f" by {error.queue}" if error.queue else ""
            self.refused[f"{error.reason}{by}"] += 1

    def _note_id(self, number: int) -> None:
        if self._ids and self._ids[-1][1] == number - 1:
            self._ids[-1][1] = number
        elif len(self._ids) <= RANGES_MAX:  # one range more, to know that there are more
            self._ids.append([number, number])

    @property
    def ids(self) -> str:
        """The ids of stored messages, as other commands accept them; only the first ones if there
        are many."""
        shown = [f"{a}-{b}" if a < b else f"{a}" for a, b in self._ids[:RANGES_MAX]]
        return ",".join(shown)

    def report(self, queue: str, as_json: bool) -> None:
        """Print how many were stored, refused and discarded, the ids, and why."""
        refused, discarded = sum(self.refused.values()), sum(self.discarded.values())
        if as_json:
            say_json(
                {
                    "queue": queue,
                    "stored": self.stored,
                    "ids": self.ids,
                    "refused": refused,
                    "discarded": discarded,
                    "unknown": self.unknown,
                    "reasons": dict(self.refused),
                    "discard_reasons": dict(self.discarded),
                }
            )
            return
        thrown = f", {discarded:,} discarded" if discarded else ""
        unknown = f", {self.unknown:,} without an answer" if self.unknown else ""
        say(f"{self.stored:,} stored, {refused:,} refused{thrown}{unknown}")
        if self.ids:
            say(f"  ids {self.ids}{', …' if len(self._ids) > RANGES_MAX else ''}")
        for reason, count in [*self.refused.most_common(), *self.discarded.most_common()]:
            say(f"  {count:,} × {reason}")


def _why_discarded(receipt: Any) -> str:
    """The reason why a message was acknowledged and dropped. Without one, it was sent again so late
    that the engine no longer remembers its number."""
    if not receipt.discarded:
        return "no longer remembered"
    return f"{receipt.reason}{f' by {receipt.queue}' if receipt.queue else ''}"


def messages(files: tuple[Path, ...], lines: bool | None) -> Iterator[bytes]:
    """The payloads of the files, or of standard input if there are none."""
    if not files:
        stream = standard(sys.stdin, "input").buffer
        if stream.isatty():
            note("Reading from the terminal: each line is a message; Ctrl-D ends.")
        yield from _lines(stream) if lines is not False else [stream.read()]
    for path in files:
        by_line = path.suffix.lower() in LINE_SUFFIXES if lines is None else lines
        if by_line:
            with path.open("rb") as stream:
                yield from _lines(stream)
        else:
            yield path.read_bytes()


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    for line in stream:
        if line := line.rstrip(b"\r\n"):
            yield line


def _progress(payloads: Iterator[bytes], files: tuple[Path, ...]) -> Iterator[bytes]:
    """The same payloads; on a terminal, with a progress bar."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield from payloads
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    total = sum(path.stat().st_size for path in files)
    columns = (TextColumn("{task.fields[count]:,} sent"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=terminal, transient=True) as bar:
        task = bar.add_task("publish", total=total, count=0)
        for count, payload in enumerate(payloads, 1):
            yield payload
            bar.update(task, advance=len(payload) + 1, count=count)
