"""The common options of `up` and `run`, and the values of `--url`."""

from __future__ import annotations

import re
from pathlib import Path

import click
import lakequeue
import pytest
from lakequeue.cli.command_options import EngineCall
from lakequeue.cli.start_engine import EngineOptions
from lakequeue.protocol import ConfigError
from lakequeue.streaming.engine_settings import EngineSettings


def engine_settings(
    settings: tuple[str, ...], trigger: str | None, accept: bool = False
) -> dict[str, str]:
    given = EngineOptions(Path(), Path(), trigger, settings, accept=accept, as_json=False)
    return given.engine_settings()


def test_settings_of_spark_and_of_the_engine() -> None:
    given = engine_settings(("spark.a=1=2", "lakequeue.metrics_port=9400"), "micro-batch")
    assert given == {
        "spark.a": "1=2", "lakequeue.metrics_port": "9400", "lakequeue.trigger": "micro-batch",
    }  # fmt: skip
    assert engine_settings((), None) == {}


def test_accept_other_kafka_is_a_setting() -> None:
    assert not EngineSettings(engine_settings((), None)).accepts_other_kafka
    assert EngineSettings(engine_settings((), None, accept=True)).accepts_other_kafka


def test_two_different_triggers_are_refused() -> None:
    both = ("lakequeue.trigger=real-time",)
    assert engine_settings(both, "real-time") == {"lakequeue.trigger": "real-time"}
    with pytest.raises(click.UsageError, match="--trigger micro-batch and --set"):
        engine_settings(both, "micro-batch")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("kafka-1:9092,kafka-2:9092", "kafka://kafka-1:9092,kafka-2:9092"),
        ("kafka://kafka-1:9092", "kafka://kafka-1:9092"),
        ("memory://x", "memory://x"),
    ],
)
def test_an_address_without_a_scheme_is_kafkas(given: str, url: str) -> None:
    with click.Context(click.Command("x")).scope():
        assert EngineCall(given).find() == url


def test_every_wrong_setting_is_named_with_what_is_allowed() -> None:
    wrong = ("lakequeue.metric_port=1", "metrics_port=1", "lakequeue.batch_s=nan",
             "lakequeue.ui_port=70000", "lakequeue.trigger=fast")  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        engine_settings(wrong, None)
    nothing, foreign, batch, port, trigger = map(str, caught.value.problems)
    assert nothing.startswith("lakequeue.metric_port: '1' – no such setting; there are batch_mb, ")
    assert "metrics_port" in nothing.partition("–")[2]
    assert foreign == "metrics_port: '1' – settings begin with spark. or lakequeue."
    assert batch == "lakequeue.batch_s: 'nan' – must be a number from 0.01 to 600"
    assert port.endswith("must be a whole number from 0 to 65,535; 0 for none")
    assert trigger.endswith("one of real-time, micro-batch")


def test_every_setting_in_the_code_is_documented() -> None:
    """Settings that the code reads by name may be set, and are in the reference."""
    rooms = Path(lakequeue.__file__).parent
    code = "".join(
        p.read_text() for room in ("streaming", "cli") for p in (rooms / room).glob("*.py")
    )
    read = re.findall(r'(?:\bvalue|settings\.(?:value|has)|self\.text)\(\s*"(\w+)"', code)
    assert len(read) > 12
    page = (rooms / "docs" / "reference" / "configuration.md").read_text()
    for name in read:
        assert f"`lakequeue.{name}`" in page
        with pytest.raises(ConfigError) as caught:
            EngineSettings({f"lakequeue.{name}x": "1"})
        assert name in str(caught.value).partition("there are ")[2].split(", ")
