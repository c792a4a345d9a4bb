"""Checks that the parts of a deployment fit together: the third part of `lakequeue doctor`.

Topics and brokers of Kafka, clocks, versions. The facts are gathered once (`KafkaLook`, the
engine's heartbeat), and each check is a function of them, so its tests need no Kafka. Checks change
nothing.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lakequeue

from ..protocol import commands, topics
from ..protocol.bounds import RECORD_BYTES_MAX
from ..protocol.descriptions import TOPIC_MISSING
from ..protocol.errors import LakequeueError
from ..protocol.kafka_settings import kafka_settings
from ..streaming.version import code_version
from .engine_checks import brokers_of
from .machine_checks import Check, result, verdict

if TYPE_CHECKING:
    from ..definitions import Configuration

RETENTION_H_MIN = 24.0  # a night's downtime, and the records that a restart reads again
RETENTION_WANTED = f"inputs kept {RETENTION_H_MIN:.0f} h or more, logs of steps for ever"
INPUTS = (topics.PUBLISH, topics.COMMANDS, topics.JOURNAL)  # of the engine, and of its tables
CLOCKS_S_MAX = 5.0  # a heartbeat arrives sooner, if the clocks agree
ANSWER_S = 5.0
KAFKA_DISK_BYTES_MIN = 2 * 1024**3
_HOUR_MS = 3_600_000
READ_WRITE = ("READ", "WRITE")
# The rights on a VPN's topics that applications and the engine need.
NEEDED = {topics.PUBLISH: READ_WRITE, topics.COMMANDS: READ_WRITE, topics.DELIVERIES: READ_WRITE,
          topics.RECEIPTS: READ_WRITE, topics.DIRECTORY: READ_WRITE}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicLook:
    """One topic. settings: from Kafka. allowed: this client's rights; None if Kafka does not report
    them."""

    partitions: int
    replicas: int
    settings: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class KafkaLook:
    """The facts about Kafka. brokers: the number of its brokers. free: bytes free on each broker's
    disk."""

    topics: Mapping[str, TopicLook]
    brokers: int = 1
    free: Mapping[int, int] = field(default_factory=dict)


def kafka_checks(look: KafkaLook, vpns: set[str], numbers: int) -> list[Check]:
    """The checks of Kafka. numbers: the number of our brokers that share its topics."""
    own = {
        name: one for name, one in look.topics.items()
        if (found := topics.split(name)) is not None and (
            found[0] in vpns or found[1] in (topics.STEPS, topics.MESH)
        )
    }  # fmt: skip
    return [
        shares_check(own, vpns, numbers), size_check(own), replicas_check(own, look.brokers),
        rights_check(own, vpns), kafka_disk_check(look.free),
    ]  # fmt: skip


def shares_check(own: Mapping[str, TopicLook], vpns: set[str], numbers: int) -> Check:
    """Does each broker have its partitions?"""
    each = {topics.COMMANDS: 1, topics.PUBLISH: topics.PUBLISH_PARTITIONS}
    wanted = f"of {topics.COMMANDS} {numbers}, of {topics.PUBLISH} {numbers * 8} in each VPN"
    if numbers < 2:
        wanted = "any number: one broker reads all"
        each = {}
    wrong = [
        f"{topic} has {own[topic].partitions}"
        for vpn in sorted(vpns) for kind, n in each.items()
        if (topic := topics.topic(vpn, kind)) in own and own[topic].partitions < n * numbers
    ]  # fmt: skip
    advice = "Start the engine: it adds them. If it refuses, other programs created these topics."
    return verdict("partitions", wrong, "each broker has its own", wanted, advice)


def size_check(own: Mapping[str, TopicLook]) -> Check:
    """Do the engine's topics accept records as large as it writes?"""

    wanted = f"max.message.bytes of {RECORD_BYTES_MAX:,} or more"
    small = [
        f"{name} accepts {int(size):,}" for name, one in sorted(own.items())
        if (size := one.settings.get("max.message.bytes", "")).isdigit()
        and int(size) < RECORD_BYTES_MAX
    ]  # fmt: skip
    advice = "Larger messages and steps are refused: raise it with kafka-configs.sh --alter."
    return verdict("record size", small, f"yes, on {len(own)} topics", wanted, advice)


def replicas_check(own: Mapping[str, TopicLook], brokers: int) -> Check:
    """Do acknowledged messages survive the death of a Kafka broker?"""
    name, wanted = "copies", "replicas > min.insync.replicas > 1, with several Kafka brokers"
    if brokers < 2:
        advice = "One Kafka broker is one copy. Three brokers with three copies can lose one."
        return Check(name, True, "one Kafka broker", wanted, advice, required=False)
    wrong = []
    for topic, one in sorted(own.items()):
        in_sync = int(one.settings.get("min.insync.replicas", "1"))
        if not 1 < in_sync < one.replicas:
            wrong.append(f"{topic} has {one.replicas} replicas, min.insync.replicas={in_sync}")
    if len(wrong) > 5:
        wrong[5:] = [f"and {len(wrong) - 5} more"]
    advice = (
        "With fewer, the death of one broker loses acknowledged messages, or stops all writing: "
        "set default.replication.factor=3 and min.insync.replicas=2 before the engine creates its "
        "topics, or change these with kafka-reassign-partitions.sh and kafka-configs.sh."
    )
    return verdict(name, wrong, f"yes, on {len(own)} topics", wanted, advice)


def rights_check(own: Mapping[str, TopicLook], vpns: set[str]) -> Check:
    """Does this client have the rights that applications need?"""
    name, wanted, wrong, answered = "rights", "to read and write the VPN's topics", [], 0
    for vpn in sorted(vpns):
        for kind, needed in NEEDED.items():
            one = own.get(topics.topic(vpn, kind))
            if one is None or one.allowed is None:
                continue
            answered += 1
            missing = [right for right in needed if right not in one.allowed]
            if missing:
                wrong.append(f"no {' and '.join(missing)} on {topics.topic(vpn, kind)}")
    if not wrong:
        found = f"yes, on {answered} topics" if answered else "Kafka does not report it"
        return Check(name, True, found, wanted, required=bool(answered))
    advice = "Give them with kafka-acls.sh, or name other credentials: LAKEQUEUE_KAFKA_SETTINGS."
    return Check(name, False, "; ".join(wrong), wanted, advice)


def kafka_disk_check(free: Mapping[int, int]) -> Check:
    """Does Kafka have disk space? Without it nothing can be published or acknowledged."""
    wanted = f"{KAFKA_DISK_BYTES_MIN / 1024**3:.0f} GB or more on each Kafka broker"
    if not free:
        return Check("Kafka's disk", True, "Kafka does not report it", wanted, required=False)
    found = ", ".join(f"broker {n}: {size / 1024**3:.1f} GB" for n, size in sorted(free.items()))
    advice = "Free disk space, or lower retention: a full disk stops Kafka."
    ok = min(free.values()) >= KAFKA_DISK_BYTES_MIN
    return result("Kafka's disk", ok, found, wanted, advice)


def retention_check(
    look: KafkaLook, configuration: Configuration | None, home: Path | None
) -> Check:
    """Does Kafka keep input until the engine has stored it?"""
    inputs, logs = input_topics(set(look.topics), configuration, home)
    problems = [p for t in sorted(inputs) if (p := input_problem(t, look.topics[t].settings))]
    problems += [p for t in sorted(logs) if (p := log_problem(t, look.topics[t].settings))]
    advice = (
        "Records that Kafka deletes before they are read, or before their step is in the "
        "checkpoint, are lost: set retention with "
        "kafka-configs.sh --alter --entity-type topics --entity-name TOPIC."
    )
    good = f"yes, on {len(inputs) + len(logs)} topics"
    return verdict("retention", problems, good, RETENTION_WANTED, advice)


def input_topics(
    there: set[str], configuration: Configuration | None, home: Path | None
) -> tuple[set[str], set[str]]:
    """The existing topics that the engine reads, and its logs of steps."""
    from ..definitions import is_regex
    from ..streaming.home.home_folder import HomeFolder

    captured = set[str]()
    if configuration is not None:
        captured = {q.underlying_topic for q in configuration.queues}
    if home is not None:
        captured |= HomeFolder(home).captured()
    expressions = [re.compile(t) for t in captured if is_regex(t)]
    own = {t for t in there if topics.split(t) is not None or t.startswith("__")}
    inputs = captured | {topics.topic(v, kind) for v in vpns_of(configuration) for kind in INPUTS}
    inputs |= {t for t in there - own if any(e.fullmatch(t) for e in expressions)}
    logs = {f"{broker}.{topics.STEPS}" for broker in brokers_of(configuration, home)}
    return inputs & there, logs & there


def vpns_of(configuration: Configuration | None) -> set[str]:
    """The VPNs that an engine with this configuration serves."""
    return {"default"} if configuration is None else set(configuration.vpns)


def input_problem(topic: str, settings: Mapping[str, str]) -> str:
    """Describe a topic's setting that loses messages; empty if there is none."""
    if "compact" in settings.get("cleanup.policy", ""):
        return f"{topic} is compacted, which deletes messages with the same key"
    kept_ms = int(settings.get("retention.ms", -1))
    if 0 <= kept_ms < RETENTION_H_MIN * _HOUR_MS:
        return f"{topic} keeps {kept_ms / _HOUR_MS:.3g} h (retention.ms={kept_ms})"
    kept_bytes = int(settings.get("retention.bytes", -1))
    if kept_bytes >= 0:
        return f"{topic} keeps only {kept_bytes:,} bytes, whatever their age (retention.bytes)"
    return ""


def log_problem(topic: str, settings: Mapping[str, str]) -> str:
    """Describe settings that would truncate the log of steps; empty if there are none. The engine
    truncates it itself, before the oldest snapshot."""
    kept = {k: int(settings.get(k, -1)) for k in ("retention.ms", "retention.bytes")}
    wrong = [f"{k}={v}" for k, v in kept.items() if v >= 0]
    if "compact" in settings.get("cleanup.policy", ""):
        wrong.append("cleanup.policy=compact")
    return f"{topic} has {', '.join(wrong)}: wanted are -1, -1 and delete" if wrong else ""


def oldest_check(look: KafkaLook, vpn: str, oldest_s: Mapping[str, float]) -> Check:
    """Does Kafka still have the oldest message's record? oldest_s: age by queue, in seconds."""
    name, publish = "oldest message", topics.topic(vpn, topics.PUBLISH)
    kept_ms = int(look.topics[publish].settings.get("retention.ms", -1)) if (
        publish in look.topics
    ) else -1  # fmt: skip
    wanted = "younger than Kafka's retention" if kept_ms >= 0 else "any age: Kafka keeps all"
    age = max(oldest_s.values(), default=0.0)
    found = f"{age / 3600:,.1f} h"
    old = sorted(queue for queue, s in oldest_s.items() if 0 <= kept_ms < 1_000 * s)
    advice = (
        f"{publish} keeps {kept_ms / _HOUR_MS:,.1f} h, and {', '.join(old[:5])} have older "
        "messages: they are only in the checkpoint and in the tables. Keep backups of the home, or "
        "raise retention.ms."
    )
    return Check(name, True, found, wanted, advice if old else "", required=False)


def captured_check(look: KafkaLook, queues: Iterable[Mapping[str, Any]]) -> Check:
    """Do the topics exist that queues capture? A queue that got messages although its topic is
    missing gets them from clients."""
    from ..definitions import is_regex

    missing = [
        f"{queue['name']} captures {topic}" for queue in queues
        if (topic := queue["definition"]["underlying_topic"]) != queue["name"]
        and not is_regex(topic) and topic not in look.topics
        and (TOPIC_MISSING in queue["alerts"] or not queue["counters"]["spooled"])
    ]  # fmt: skip
    wanted = "each underlying_topic is in Kafka"
    advice = "Create the topic, or correct the definition: the queue gets no records from it."
    return verdict("captured topics", missing, "all there", wanted, advice)


# ------------------------------------------------------------ the engine, by its heartbeat


def clocks_check(heard: Mapping[str, Any], now_s: float | None = None) -> Check:
    """Do this machine's clock and the engine's agree? Expiry counts across machines (X4)."""
    wanted = f"at most {CLOCKS_S_MAX:.0f} s apart"
    theirs = heard.get("time")
    if not isinstance(theirs, int | float):
        return Check("clocks", True, "the engine does not report its time", wanted, required=False)
    apart = (time.time() if now_s is None else now_s) - theirs / 1000
    ok = abs(apart) <= CLOCKS_S_MAX
    side = "ahead of" if apart > 0 else "behind"
    found = f"{abs(apart):.1f} s {side} the engine's" if not ok else f"{abs(apart):.1f} s apart"
    advice = (
        "Synchronize the clocks (chrony, ntpd): else times to live, delivery times and leases are "
        "off by as much."
    )
    return result("clocks", ok, found, wanted, advice)


def versions_check(heard: Mapping[str, Any], own: str | None = None) -> Check:
    """Are client and engine of one release and the same code? own: as `code_version` returns it.
    Other code of the same release does not fail: a client may have other libraries."""
    own = own or code_version()
    engine, code = heard.get("version"), heard.get("code")
    if not isinstance(engine, str):
        return Check("versions", True, "the engine reports no version", own, required=False)
    ok, advice = engine == own.partition("+")[0], ""
    if not ok:
        advice = (
            f"Install {engine} here, or upgrade the engine (docs/how-to/upgrade.md). Different "
            "versions are meant for the time of an upgrade only."
        )
    elif isinstance(code, str) and code != own:
        advice = (
            "Another build of the same release, or other libraries. If the engine was to be "
            "upgraded, restart it."
        )
    there = code if isinstance(code, str) else engine
    return Check("versions", ok, f"engine {there}, here {own}", "the same", advice)


# ------------------------------------------------------------ looking


def deployment_checks(
    bootstrap: str, configuration: Configuration | None, home: Path | None, vpn: str, lives: bool
) -> list[Check]:
    """All checks that need Kafka. lives: the engine runs, so its queues can be requested."""
    try:
        look = look_at_kafka(bootstrap)
    except LakequeueError as error:
        return [Check("retention", False, "unknown", RETENTION_WANTED, f"{error}.")]
    checks = [retention_check(look, configuration, home)]
    vpns = vpns_of(configuration) | {vpn}
    checks += kafka_checks(look, vpns, len(brokers_of(configuration, home)))
    if lives:
        try:
            with lakequeue.connect(
                f"kafka://{bootstrap}", vpn=vpn, client_name="doctor"
            ) as connection:
                brokers = connection.brokers()
                checks.append(states_check(brokers))
                known = [one["number"] for one in brokers] or [connection.number]
                queues = [
                    queue for number in known for queue in connection.request_list(
                        commands.Queues(), "after", broker=number, timeout=ANSWER_S
                    )
                ]  # fmt: skip
        except LakequeueError:  # other checks report it
            return checks
        ages = {q["name"]: q["oldest_age_s"] for q in queues if q["oldest_age_s"] is not None}
        checks += [oldest_check(look, vpn, ages), captured_check(look, queues)]
    return checks


def states_check(brokers: list[dict[str, Any]]) -> Check:
    """Do the engine's brokers run? brokers: as `Admin.brokers` returns them."""
    away = [
        f"{one['name']} is {one['state']}" + (f" ({one['why']})" if one.get("why") else "")
        for one in brokers
        if one["state"] not in ("running", "")
    ]
    advice = "See the engine's log, and spark.log in its home."
    there = f"{len(brokers)} run" if brokers else "none is known"
    return verdict("brokers", away, there, "all run", advice)


def look_at_kafka(bootstrap: str) -> KafkaLook:
    """Gather Kafka's facts. Raises LakequeueError if it does not answer."""
    with _kafkas_admin(bootstrap) as admin:
        found = {one["name"]: one["partitions"] for one in admin.describe_topics()}
        settings = _topic_settings(admin, sorted(found))
        brokers = len(admin.describe_cluster()["brokers"])
        free = _free(admin)
    allowed = _allowed(bootstrap, sorted(found))
    return KafkaLook(
        {
            name: TopicLook(
                len(parts), min((len(p["replica_nodes"]) for p in parts), default=0),
                settings.get(name, {}), allowed.get(name),
            )
            for name, parts in found.items()
        },
        brokers, free,
    )  # fmt: skip


@contextlib.contextmanager
def _kafkas_admin(bootstrap: str) -> Iterator[Any]:
    """Kafka's admin client. Raises LakequeueError if Kafka does not answer, now or later."""
    from kafka.errors import KafkaError

    from ..client.kafka.base import require_broker
    from ..client.kafka.kafka_python import admin_client

    require_broker(bootstrap)
    try:
        with admin_client(bootstrap, "lakequeue-doctor") as admin:
            yield admin
    except KafkaError as error:
        raise LakequeueError(f"Kafka at {bootstrap} does not list its topics: {error}") from error


def _topic_settings(admin: Any, names: list[str]) -> dict[str, dict[str, str]]:
    """Each topic's settings. Raises KafkaError."""
    from kafka.admin import ConfigResource, ConfigResourceType

    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answers: Any = admin.describe_configs(resources, config_filter="all")
    return {
        name: {key: str(data["value"]) for key, data in config.items()}
        for by_name in answers.values()
        for name, config in by_name.items()
    }


def _free(admin: Any) -> dict[int, int]:
    """Free bytes on each broker's fullest disk; empty if Kafka does not report them."""
    from kafka.errors import KafkaError

    found: dict[int, int] = {}
    try:
        dirs = admin.describe_log_dirs()
    except KafkaError:
        return found
    for broker in dirs:
        left = [d["usable_bytes"] for d in broker["log_dirs"] if d["usable_bytes"] >= 0]
        if left:
            found[broker["broker"]] = min(left)
    return found


def _allowed(bootstrap: str, names: list[str]) -> dict[str, frozenset[str]]:
    """This client's rights on each topic; empty if Kafka has no access control."""
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({**kafka_settings(), "bootstrap.servers": bootstrap, "log_level": 3})
    found: dict[str, frozenset[str]] = {}
    asked = admin.describe_topics(TopicCollection(names), include_authorized_operations=True)
    for name, future in asked.items():
        try:
            operations = future.result(10).authorized_operations
        except (KafkaException, TimeoutError):
            continue
        if operations:
            found[name] = frozenset(o.name for o in operations)
    return found
