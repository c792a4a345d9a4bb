"""The options of `format("lakequeue")`: checked together, all problems reported at once (Q7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..protocol import ConfigError, Problem

MESSAGES, MESSAGES_MAX = 10_000, 100_000
NAME = "spark"
# Spark's own options, which it also passes.
_SPARKS = ("checkpointLocation", "queryName", "path")
_READING = ("connection", "vpn", "queue", "consumer", "filter", "maxMessagesPerBatch")
_WRITING = ("connection", "vpn", "queue", "orderBy", "writeId")


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to connect to the engine. url: as for `lakequeue.connect`. name: the client's name."""

    url: str
    vpn: str
    name: str

    @property
    def addresses(self) -> str:
        """Kafka's ``host:port[,host:port]``."""
        return urlsplit(self.url).netloc


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of `readStream`. filter: the consumer's (F5). most: messages per batch."""

    connecting: ConnectionOptions
    queue: str
    filter: str | None
    most: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of `write` and `writeStream`. queue: for rows that name none. order: the columns that
    order the rows of a partition. write_id: identifies a `write`, so that its rows are stored
    once."""

    connecting: ConnectionOptions
    queue: str | None
    order: tuple[str, ...]
    write_id: str | None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options; raises ConfigError with every problem."""
    options, problems = _by_name(given, _READING)
    queue = options.get("queue", "")
    if not queue:
        problems.append(Problem("", "queue", queue, "is required: the name of a queue"))
    text = options.get("maxmessagesperbatch", str(MESSAGES))
    most = int(text) if text.isdecimal() else 0
    if not 1 <= most <= MESSAGES_MAX:
        allowed = f"allowed are 1 to {MESSAGES_MAX}"
        problems.append(Problem("", "maxMessagesPerBatch", text, allowed))
    connecting = _connecting(options, options.get("consumer") or NAME, problems)
    return ReadOptions(connecting, queue, options.get("filter") or None, most)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options; raises ConfigError with every problem."""
    options, problems = _by_name(given, _WRITING)
    columns = (name.strip() for name in options.get("orderby", "").split(","))
    order = tuple(name for name in columns if name)
    connecting = _connecting(options, NAME, problems)
    write_id = options.get("writeid") or None
    return WriteOptions(connecting, options.get("queue") or None, order, write_id)


def _by_name(
    given: Mapping[str, str], names: tuple[str, ...]
) -> tuple[dict[str, str], list[Problem]]:
    """The options by lower-case name, because Spark ignores case."""
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in names + _SPARKS}
    problems = [
        Problem("", name, value, f"no such option here; allowed are {', '.join(names)}")
        for name, value in options.items()
        if name not in known
    ]
    return options, problems


def _connecting(options: dict[str, str], name: str, problems: list[Problem]) -> ConnectionOptions:
    url = options.get("connection", "")
    parts = urlsplit(url)
    if parts.scheme != "kafka" or not parts.netloc:
        allowed = "is required: kafka://HOST:PORT; Spark's processes cannot use memory://"
        problems.append(Problem("", "connection", url, allowed))
    if problems:
        raise ConfigError(problems)
    return ConnectionOptions(url, options.get("vpn") or "default", name)
