"""The log as lines: sentences for people, one JSON object an event for programs."""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from lakequeue.cli.service import logging_to
from lakequeue.protocol import ConfigError
from lakequeue.streaming.engine_settings import EngineSettings

log = logging.getLogger("lakequeue.engine")
FIELDS = {"event": "dead_lettered", "queue": "orders", "message_id": "17"}


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_is_a_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to(tmp_path / "spark.log", "json"):
        log.info("dead: %s", "a\nb “c”\x1b\x9b\u2028", extra={"fields": FIELDS})
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("it failed")
        logging.getLogger("py4j").error("a library's")
    text = capsys.readouterr().err
    assert text.replace("\n", "").isprintable()  # nothing in it that a terminal obeys
    info, error = map(json.loads, text.splitlines())
    assert info.items() >= FIELDS.items()
    assert (info["level"], info["message"]) == ("INFO", "dead: a\nb “c”\x1b\x9b\u2028")
    assert datetime.fromisoformat(info["time"]).utcoffset() is not None
    assert (error["level"], error["message"]) == ("ERROR", "it failed")
    assert "ValueError: why" in error["error"]
    kept = [json.loads(line) for line in (tmp_path / "spark.log").read_text().splitlines()]
    assert [line["message"] for line in kept] == ["it failed", "a library's"]


def test_an_event_is_a_sentence_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to(tmp_path / "spark.log"):
        log.info("message 17 died", extra={"fields": FIELDS})
        log.debug("too much")
        log.warning("bridge %s waits", "a\n12:00:00 all is well\x1b[2J\u2028b")
        logging.getLogger("py4j").error("a library's")
    log.warning("afterwards")
    line, crafted = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ message 17 died", line)
    assert crafted.endswith("bridge a 12:00:00 all is well [2J b waits")
    assert log.level == logging.NOTSET
    assert (tmp_path / "spark.log").read_text().endswith("a library's\n")


def test_an_unknown_log_format_is_refused() -> None:
    assert EngineSettings({"lakequeue.log_format": "json"}).log_format == "json"
    with pytest.raises(ConfigError, match=r"log_format: 'xml' – one of text, json"):
        EngineSettings({"lakequeue.log_format": "xml"})
