"""The engine's log: an event a line, for people, or for programs (`lakequeue.log_format=json`).

Levels mean what somebody has to do: ERROR, something does not go on by itself; WARNING, it does,
and you want to know; INFO, it is as it should be. What an event is of stands in fields of its own
(`broker`, `vpn`, `queue`, `message_id`, …), which whoever logs gives as `extra={"fields": …}`, so
a message's or a queue's lines are found by equality and not by words.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from .common import json_text, one_line

TEXT, JSON = "text", "json"


class PlainLines(logging.Formatter):
    """`12:00:00 what happened`: a line, whatever somebody named or sent; a traceback follows it."""

    def __init__(
        self, form: str = "%(asctime)s %(message)s", time: str | None = "%H:%M:%S"
    ) -> None:
        super().__init__(form, time)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line."""
        return one_line(super().formatMessage(record))


class JsonLines(logging.Formatter):
    """One JSON object a line, a traceback among it; times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json_text(line)


def line_format(name: str) -> logging.Formatter:
    """The format of this name."""
    return JsonLines() if name == JSON else PlainLines()
