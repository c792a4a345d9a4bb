"""What a user set: settings of Spark's under their own names, and the engine's, `lakequeue.…`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..protocol import ConfigError, Problem
from .queries import REAL_TIME, TRIGGERS

BATCH_S_MAX = 600  # a transaction of Kafka is open as long, at most 15 minutes by default
LOG_FORMATS = ("text", "json")
_PREFIX = "lakequeue."
_Value = TypeVar("_Value", int, float, str)


def engine_conf() -> dict[str, str]:
    """The settings of `conf/engine.conf`."""
    from .spark import CONF, read_conf

    return read_conf(CONF / "engine.conf")


class EngineSettings:
    """Raises ConfigError for a value that is not allowed. spark: those that win over
    `conf/spark.conf`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.spark = {k: v for k, v in given.items() if not k.startswith(_PREFIX)}
        self._own = {k: v for k, v in given.items() if k.startswith(_PREFIX)}
        self.trigger = self.value("trigger", REAL_TIME)
        if self.trigger not in TRIGGERS:
            raise _not_allowed("trigger", self.trigger, f"one of {', '.join(TRIGGERS)}")
        self.log_format = self.value("log_format", LOG_FORMATS[0])
        if self.log_format not in LOG_FORMATS:
            raise _not_allowed("log_format", self.log_format, f"one of {', '.join(LOG_FORMATS)}")
        batch_s = self.value("batch_s", 30.0)
        if not 0 < batch_s <= BATCH_S_MAX:
            allowed = f"must be seconds, more than 0 and at most {BATCH_S_MAX}"
            raise _not_allowed("batch_s", batch_s, allowed)

    def value(self, name: str, default: _Value) -> _Value:
        """The engine's setting of this name, of the same type as its default."""
        return type(default)(self._own.get(_PREFIX + name, default))

    @property
    def places(self) -> tuple[str, str]:
        """Where tables and checkpoints are to be; empty: where the home says."""
        return self.text("tables"), self.text("checkpoints")

    def text(self, name: str) -> str:
        """What the user said of it; empty: nothing."""
        return self._own.get(_PREFIX + name, "")

    def has(self, name: str) -> bool:
        """Whether the user said anything of it."""
        return _PREFIX + name in self._own


def _not_allowed(name: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError([Problem("", _PREFIX + name, value, allowed)])
