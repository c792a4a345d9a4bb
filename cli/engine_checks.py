"""Checks of the home, Spark and Kafka: the second part of `lakequeue doctor`. They change
nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol import topics
from ..protocol.errors import ConfigError, LakequeueError
from ..protocol.home_places import ABOUT, places_of
from .machine_checks import Check, verdict

if TYPE_CHECKING:
    from ..definitions import Configuration

RETENTION_H_MIN = 24.0  # a night's downtime, and what a restart reads again
INPUTS = ("publish", "commands", "journal")  # of the engine, and of its tables
STEPS = "steps"
_HOUR_MS = 3_600_000


def look(
    home: Path | None,
    configuration: Configuration | None,
    master: str | None,
    bootstrap: str | None,
) -> list[Check]:
    """Every check that is possible with what is known."""
    from ..streaming.spark.spark_session import default_master

    checks = []
    if home is not None:
        checks += [whole_home_check(home), *places_checks(home)]
    if configuration is not None:
        brokers = len(brokers_of(configuration, home))
        checks.append(slots_check(master or default_master(brokers), brokers))
    if bootstrap is not None:
        checks.append(retention_check(bootstrap, configuration, home))
    return checks


def home_problem(home: Path) -> str:
    """Why this home cannot be started with this version, and what to do; empty if it can, or if
    there is no home yet."""
    from ..streaming.home.home_folder import HomeFolder

    if not home.is_dir() or (not (home / ABOUT).exists() and not (home / "checkpoint").exists()):
        return ""
    try:
        return HomeFolder(home).problem()
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f"{home / ABOUT} cannot be read: {error}"


def whole_home_check(home: Path) -> Check:
    """Do the home and its checkpoint belong together?"""

    name, wanted = "checkpoint", "this home's own"
    if problem := home_problem(home):
        what, _, advice = problem.partition(": ")
        return Check(name, False, what, wanted, advice)
    lived = (home / ABOUT).exists()
    return Check(name, True, f"that of {home}" if lived else "none yet", wanted)


def places_checks(home: Path) -> list[Check]:
    """Can the home's parts that are elsewhere be written? No checks if everything is in the
    home."""
    from ..streaming.home.home_folder import HomeFolder

    folder = HomeFolder(home)
    found = {"tables": folder.tables, "checkpoints": folder.checkpoints}
    checks = []
    for name in sorted(places_of(home)):
        why = folder.unwritable(found[name])
        advice = "" if not why else (
            "Check the address, the rights, and the environment (AWS_ENDPOINT_URL, AWS_REGION, "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), here and where the engine runs."
        )  # fmt: skip
        result = why or f"{found[name]} can be written"
        checks.append(Check(f"place of {name}", not why, result, "writable", advice))
    return checks


def brokers_of(configuration: Configuration, home: Path | None) -> set[str]:
    """The brokers that an engine would run: those of its home and those in the configuration."""
    from ..streaming.home.home_folder import HomeFolder

    try:
        return (
            set(HomeFolder(home).brokers(configuration.brokers))
            if home
            else set(configuration.brokers)
        )
    except (OSError, ValueError, AttributeError, LakequeueError):  # another check reports that
        return set(configuration.brokers)


def slots_check(master: str, brokers: int) -> Check:
    """Does Spark have a slot for each broker and one for the tables?"""
    from ..streaming.spark.spark_session import slots, slots_needed

    needed = slots_needed(brokers)
    wanted = f"{needed} or more: one for each broker, one for the tables"
    found = slots(master)
    if found is None:
        advice = f"See the page of {master} for its cores; doctor does not ask it."
        return Check("task slots", True, "unknown", wanted, advice, required=False)
    advice = "" if found >= needed else f"Give Spark more: --master 'local[{needed}]'."
    return Check("task slots", found >= needed, f"{found} ({master})", wanted, advice)


def retention_check(
    bootstrap: str, configuration: Configuration | None, home: Path | None
) -> Check:
    """Does Kafka keep input until the engine has stored it?"""
    name = "retention"
    wanted = f"inputs kept {RETENTION_H_MIN:.0f} h or more, logs of steps for ever"
    try:
        settings = _settings(bootstrap)
    except LakequeueError as error:
        return Check(name, False, "unknown", wanted, f"{error}.")
    inputs, logs = input_topics(set(settings), configuration, home)
    problems = [p for t in sorted(inputs) if (p := input_problem(t, settings[t]))]
    problems += [p for t in sorted(logs) if (p := log_problem(t, settings[t]))]
    advice = (
        "What Kafka deletes before it is read, or before its step is in the checkpoint, is lost: "
        "set it with kafka-configs.sh --alter --entity-type topics --entity-name TOPIC."
    )
    return verdict(name, problems, f"yes, on {len(inputs) + len(logs)} topics", wanted, advice)


def input_topics(
    there: set[str], configuration: Configuration | None, home: Path | None
) -> tuple[set[str], set[str]]:
    """The existing topics that the engine reads, and its logs of steps."""
    from ..definitions import DEFAULT_BROKER, is_regex
    from ..streaming.home.home_folder import HomeFolder

    vpns, brokers, captured = {"default"}, {DEFAULT_BROKER}, set[str]()
    if configuration is not None:
        vpns = vpns_of(configuration)
        brokers = brokers_of(configuration, home)
        captured = {q.underlying_topic for q in configuration.queues}
    if home is not None:
        captured |= HomeFolder(home).captured()
    expressions = [re.compile(t) for t in captured if is_regex(t)]
    own = {t for t in there if topics.split(t) is not None or t.startswith("__")}
    inputs = {topics.topic(vpn, kind) for vpn in vpns for kind in INPUTS} | captured
    inputs |= {t for t in there - own if any(e.fullmatch(t) for e in expressions)}
    return inputs & there, {f"{broker}.{STEPS}" for broker in brokers} & there


def input_problem(topic: str, settings: dict[str, str]) -> str:
    """Which of a topic's settings loses messages; empty for none."""
    if "compact" in settings.get("cleanup.policy", ""):
        return f"{topic} is compacted, which deletes messages with the same key"
    kept_ms = int(settings.get("retention.ms", -1))
    if 0 <= kept_ms < RETENTION_H_MIN * _HOUR_MS:
        return f"{topic} keeps {kept_ms / _HOUR_MS:.3g} h (retention.ms={kept_ms})"
    kept_bytes = int(settings.get("retention.bytes", -1))
    if kept_bytes >= 0:
        return f"{topic} keeps only {kept_bytes:,} bytes, whatever their age (retention.bytes)"
    return ""


def log_problem(topic: str, settings: dict[str, str]) -> str:
    """Which settings would cut the log of steps. The engine does that itself, before the oldest
    snapshot."""
    kept = {k: int(settings.get(k, -1)) for k in ("retention.ms", "retention.bytes")}
    wrong = [f"{k}={v}" for k, v in kept.items() if v >= 0]
    if "compact" in settings.get("cleanup.policy", ""):
        wrong.append("cleanup.policy=compact")
    return f"{topic} has {', '.join(wrong)}: wanted are -1, -1 and delete" if wrong else ""


@contextlib.contextmanager
def kafkas_admin(bootstrap: str) -> Iterator[Any]:
    """Kafka's admin client. Raises LakequeueError if Kafka does not answer, then or later."""
    from kafka.errors import KafkaError

    from ..client.kafka.base import require_broker
    from ..client.kafka.kafka_python import admin_client

    require_broker(bootstrap)
    try:
        with admin_client(bootstrap, "lakequeue-doctor") as admin:
            yield admin
    except KafkaError as error:
        raise LakequeueError(f"Kafka at {bootstrap} does not list its topics: {error}") from error


def _settings(bootstrap: str) -> dict[str, dict[str, str]]:
    """Each topic's settings. Raises LakequeueError if Kafka does not answer."""
    with kafkas_admin(bootstrap) as admin:
        return topic_settings(admin)


def topic_settings(admin: Any) -> dict[str, dict[str, str]]:
    """Each topic's settings, from Kafka's admin client. Raises KafkaError."""
    from kafka.admin import ConfigResource, ConfigResourceType

    names = sorted(admin.list_topics())
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answers: Any = admin.describe_configs(resources, config_filter="all")
    return {
        name: {key: str(data["value"]) for key, data in config.items()}
        for by_name in answers.values()
        for name, config in by_name.items()
    }


def vpns_of(configuration: Configuration | None) -> set[str]:
    """The VPNs that an engine with this configuration serves."""
    if configuration is None:
        return {"default"}
    return set(configuration.vpns)


def load_configuration(config: Path) -> tuple[Configuration | None, list[Check]]:
    """The engine's configuration, or the check that says what is wrong with it."""
    from ..conf import load

    try:
        return load(config), []
    except ConfigError as error:
        wanted = "a file of queues that can be read"
        return None, [Check("configuration", False, str(error), wanted, "Correct it, or --config.")]
