"""The user's settings: Spark's under their own names, the engine's under `lakequeue.…` (Q7).

An unknown setting, or a value that the engine cannot use, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from ..protocol import ConfigError, Problem
from .spark.spark_session import CONF, read_conf

REAL_TIME, MICRO_BATCH = TRIGGERS = "real-time", "micro-batch"
LOG_FORMATS = ("text", "json")
_PREFIX, _SPARK = "lakequeue.", "spark."
_Value = TypeVar("_Value", int, float, str)


class _Number(NamedTuple):
    """An allowed range. also: the meaning of special values."""

    kind: type[int] | type[float]
    least: float
    most: float
    also: str = ""


_MANY = 1_000_000
_PORT = _Number(int, -1, 65_535, "0 for a free one, -1 for none")
_EVERY_S = _Number(int, 0, _MANY, "0 for never")
_NUMBERS = {
    # a Kafka transaction stays open this long: 15 min at most
    "batch_s": _Number(float, 0.01, 600),
    "batch_mb": _Number(int, 1, _MANY),
    "replay_s": _Number(float, 0.01, 600),
    "page_cache_mb": _Number(int, 1, _MANY),
    "records_per_step": _Number(int, 1, _MANY),
    "mb_per_step": _Number(int, 1, _MANY),
    "records_per_batch": _Number(int, 1, 100 * _MANY),
    "tables_interval_s": _EVERY_S,
    "history_interval_s": _EVERY_S,
    "snapshots_interval_s": _EVERY_S,
    "retention_days": _Number(float, 0, _MANY, "0 for ever"),
    "upkeep_hours": _Number(float, 0, _MANY, "0 for never"),
    "vacuum_hours": _Number(float, 1, _MANY),
    "metrics_port": _PORT,
    "monitor_port": _PORT,
    "ui_port": _Number(int, 0, 65_535, "0 for none"),
}
OTHER_KAFKA = ("refuse", "accept")
_CHOICES = {
    "trigger": TRIGGERS, "log_format": LOG_FORMATS, "other_kafka": OTHER_KAFKA,
}  # fmt: skip
_PLACES = ("tables", "checkpoints")


def engine_conf() -> dict[str, str]:
    """The settings of `conf/engine.conf`."""
    return read_conf(CONF / "engine.conf")


class EngineSettings:
    """The user's settings. Raises ConfigError, with every problem, for a name or a value that is
    not allowed. spark: Spark's settings, which override `conf/spark.conf`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        if problems := [p for p in map(_problem, given, given.values()) if p is not None]:
            raise ConfigError(problems)
        self.spark = {k: v for k, v in given.items() if not k.startswith(_PREFIX)}
        self._own = {k: v for k, v in given.items() if k.startswith(_PREFIX)}
        self.trigger = self.value("trigger", REAL_TIME)
        self.log_format = self.value("log_format", LOG_FORMATS[0])
        self.accepts_other_kafka = self.value("other_kafka", OTHER_KAFKA[0]) == OTHER_KAFKA[1]

    def value(self, name: str, default: _Value) -> _Value:
        """The engine's setting of this name, of the same type as its default."""
        return type(default)(self._own.get(_PREFIX + name, default))

    @property
    def places(self) -> tuple[str, str]:
        """The user's locations of tables and checkpoints; empty: where the home has them."""
        return self.value("tables", ""), self.value("checkpoints", "")

    def has(self, name: str) -> bool:
        """Whether the user set it."""
        return _PREFIX + name in self._own


def _problem(key: str, value: str) -> Problem | None:
    name = key.removeprefix(_PREFIX)
    if not key.startswith(_PREFIX):
        if key.startswith(_SPARK):
            return None
        return Problem("", key, value, f"settings begin with {_SPARK} or {_PREFIX}")
    if name in _NUMBERS:
        allowed = _wrong_number(value, _NUMBERS[name])
    elif name in _CHOICES:
        choices = _CHOICES[name]
        allowed = "" if value in choices else f"one of {', '.join(choices)}"
    else:
        names = sorted([*_NUMBERS, *_CHOICES, *_PLACES])
        allowed = "" if name in _PLACES else f"no such setting; there are {', '.join(names)}"
    return Problem("", key, value, allowed) if allowed else None


def _wrong_number(text: Any, wanted: _Number) -> str:
    """The allowed values, if the text is not such a number; else empty."""
    try:
        if wanted.least <= wanted.kind(text) <= wanted.most:
            return ""
    except ValueError:
        pass
    whole = "whole " if wanted.kind is int else ""
    also = f"; {wanted.also}" if wanted.also else ""
    return f"must be a {whole}number from {wanted.least:g} to {wanted.most:,.0f}{also}"
