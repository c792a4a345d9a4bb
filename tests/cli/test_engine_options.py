"""The options that `up` and `run` share, and what `--url` takes."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.cli.common import find_url
from lakequeue.cli.engine_options import engine_settings


def test_settings_of_spark_and_of_the_engine() -> None:
    given = engine_settings(("spark.a=1=2", "lakequeue.metrics_port=9400"), "micro-batch")
    assert given == {
        "spark.a": "1=2", "lakequeue.metrics_port": "9400", "lakequeue.trigger": "micro-batch",
    }  # fmt: skip
    assert engine_settings((), None) == {}


def test_two_triggers_contradict_each_other() -> None:
    both = ("lakequeue.trigger=real-time",)
    assert engine_settings(both, "real-time") == {"lakequeue.trigger": "real-time"}
    with pytest.raises(click.UsageError, match="--trigger micro-batch and --set"):
        engine_settings(both, "micro-batch")


@pytest.mark.parametrize("command", ["up", "run"])
def test_a_wrong_option_starts_nothing(command: str, tmp_path: Path) -> None:
    for wrong in (("--set", "spark.a"), ("--trigger", "sometimes")):
        home = tmp_path / "home"
        result = CliRunner().invoke(main, [command, "--home", str(home), *wrong])
        assert result.exit_code == 2
        assert wrong[1] in result.stderr
        assert not home.exists()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("kafka-1:9092,kafka-2:9092", "kafka://kafka-1:9092,kafka-2:9092"),
        ("kafka://kafka-1:9092", "kafka://kafka-1:9092"),
        ("memory://x", "memory://x"),
    ],
)
def test_an_address_alone_is_kafkas(given: str, url: str) -> None:
    with click.Context(click.Command("x")).scope():
        assert find_url(given, None) == url
