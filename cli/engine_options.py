"""The options that `up` and `run` share: where, which queues, and how the engine is set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .common import DEFAULT_HOME, json_option, option, pairs

PACKAGE_CONFIGURATION = Path(__file__).resolve().parent.parent / "conf" / "queues.yaml"
TRIGGERS = ("real-time", "micro-batch")


def engine_options(home_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --home, --config, --trigger, --set, --accept-other-kafka and --json."""
    options = (
        option(
            "--home", type=click.Path(file_okay=False, path_type=Path), default=DEFAULT_HOME,
            show_default=True, envvar="LAKEQUEUE_HOME", help=home_help,
        ),
        option(
            "--config", type=click.Path(dir_okay=False, path_type=Path),
            default=PACKAGE_CONFIGURATION, envvar="LAKEQUEUE_CONFIG",
            help="The queues, as a YAML file.  [default: conf/queues.yaml of the package]",
        ),
        option(
            "--trigger", type=click.Choice(TRIGGERS), envvar="LAKEQUEUE_TRIGGER",
            help="How the engine steps: in a loop of its own, or once in each of Spark's batches."
            "  [default: real-time]",
        ),
        option(
            "--set", "settings", multiple=True, metavar="KEY=VALUE",
            help="A setting of Spark or, where KEY begins with `lakequeue.`, of the engine; may be "
            "given many times.",
        ),
        option(
            "--accept-other-kafka", "accept", is_flag=True, envvar="LAKEQUEUE_ACCEPT_OTHER_KAFKA",
            help="Start on a Kafka that is not the one that this home was on, or that went back in "
            "time: the queues are kept, and what it has is read from the beginning.",
        ),
        json_option,
    )  # fmt: skip

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(options):
            command = one(command)
        return command

    return add


def engine_settings(
    settings: tuple[str, ...], trigger: str | None, accept: bool = False
) -> dict[str, str]:
    """What the options say, as the engine takes it; `--trigger` and `--accept-other-kafka` are
    short forms of longer names. Raises ConfigError for a setting that is not allowed."""
    found = pairs(settings, "--set")
    if trigger is not None and found.setdefault("lakequeue.trigger", trigger) != trigger:
        other = found["lakequeue.trigger"]
        raise click.UsageError(
            f"--trigger {trigger} and --set lakequeue.trigger={other} contradict each other."
        )
    if accept:
        found["lakequeue.other_kafka"] = "accept"
    from ..streaming.engine_settings import EngineSettings

    EngineSettings(found)  # what is wrong with them is said before anything starts
    return found


def log_format(settings: dict[str, str]) -> str:
    """Of the lines that the engine says."""
    return settings.get("lakequeue.log_format", "text")
