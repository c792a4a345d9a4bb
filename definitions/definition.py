"""The definition of a queue: read from a mapping, checked and completed (Q1–Q9, F4, X2).

The annotation of each attribute of `QueueDefinition` names the reader of its key. The valid keys
are then checked against each other. All problems are collected, so a user can fix the whole
definition from one message (Q7). The result is frozen and complete: all defaults are resolved here.
A key with the value null counts as absent.

Rules: Q1–Q3 names and topics; Q4, Q6, O2, O3, O4 expressions are compiled once as a check; Q5
types; Q7 refusals; Q8 units; Q9 `redefine`; F4 fairness by semantics; X2 `max_ttl` and
`respect_ttl` are the `earliest` model; S9, S10, B4 defaults of limits and alerts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec

from ..expressions import ExpressionError, compile_program
from ..protocol import ConfigError, Problem
from ..protocol.patterns import REGEX_CHARACTERS, compiled
from ..protocol.units import format_duration, format_size
from . import definition_values as read
from .clients import client_name

TYPES = ("Queue", "LocalQueue", "GroupLocalQueue")
TYPE_TAGS = {**{tag: tag for tag in TYPES}, "QueueDefinition": "Queue"}
EXPRESSION_KEYS = ("filter", "priority", "barrier_expression", "partition_key")
TARGET_QUEUE_DEPTH_MIN = 1000
PERMISSIONS = ("no-access", "read-only", "consume", "modify-topic", "delete")


class QueueDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's definition, checked and with every default resolved.

    Made by `parse_definition`. Times are in milliseconds, sizes in bytes, thresholds in percent.
    None means not set. `redefine` lists the changes that an existing queue refuses (Q9).
    """

    name: Annotated[str, read.queue_name]
    vpn: Annotated[str, read.vpn_name] = "default"
    type: Annotated[str, read.choice(*TYPE_TAGS)] = "Queue"  # Q5
    # the host of a LocalQueue; None: the broker with the fewest queues
    broker: Annotated[str | None, read.broker_name] = None
    # the brokers that host it, or groups of them (`brokers`, Q5)
    group: Annotated[tuple[str, ...], read.broker_names] = ()
    message_type: Annotated[str, read.choice("json", "binary", "text")]  # Q1
    underlying_topic: Annotated[str, read.text]  # Q2
    default_publish_target: Annotated[str, read.text]  # Q3
    # initial topic subscriptions (Q2)
    subscriptions: Annotated[tuple[str, ...], read.topic_patterns] = ()
    # a client with all rights; these three need `auth: required`
    owner: Annotated[str | None, client_name] = None
    # the rights of other clients; with an owner the default is no-access
    permission: Annotated[str, read.choice(*PERMISSIONS)] = "delete"
    # by client name; they override `permission`
    permissions: Annotated[
        tuple[tuple[str, str], ...], read.by_name(client_name, read.choice(*PERMISSIONS))
    ] = ()
    filter: Annotated[str | None, read.text] = None  # Q4
    initial_owner: Annotated[str | None, read.text] = None  # Q5, H4
    group_local_queue_domain: Annotated[str | None, read.text] = None
    # L1, L2
    semantics: Annotated[str, read.choice("at-least-once", "at-most-once")] = "at-least-once"
    leasing: Annotated[str, read.choice("sublet", "strict")] = "sublet"  # L8
    lease_period_ms: Annotated[int | None, read.positive_duration] = None  # L4
    max_deliveries: Annotated[int, read.count(0)] = 0  # L5
    max_cancels: Annotated[int, read.count(0)] = 0  # L6
    deferred_ack_expiration_ms: Annotated[int, read.duration] = 86_400_000  # L9
    redelivery_delay_ms: Annotated[int, read.duration] = 0  # L11
    redelivery_delay_multiplier: Annotated[float, read.multiplier] = 1.0
    redelivery_delay_max_ms: Annotated[int | None, read.duration] = None
    max_backlog: Annotated[int | None, read.count(1)] = None  # B1
    max_per_subscription_backlog: Annotated[int, read.count(1)] = 1  # B2
    max_delivered_unacked_per_flow: Annotated[int, read.count(1)] = 10_000  # B4
    fairness_model: Annotated[str, read.choice("fast", "round-robin", "proportional")]  # F1–F4
    priority: Annotated[str | None, read.text] = None  # O2
    barrier_expression: Annotated[str | None, read.text] = None  # O3
    partition_key: Annotated[str | None, read.text] = None  # O4
    expiration_ms: Annotated[int | None, read.positive_duration] = None  # X1
    # X2
    expiration_model: Annotated[str, read.choice("default", "queue", "latest", "earliest")] = (
        "default"
    )
    max_ttl_ms: Annotated[int | None, read.positive_duration] = None
    respect_ttl: Annotated[bool | None, read.boolean] = None
    dead_message_queue: Annotated[str | None, read.queue_name] = None  # X5
    max_spool_usage: Annotated[int, read.size] = 5_000_000_000  # S10
    max_spool_messages: Annotated[int | None, read.count(1)] = None
    max_message_size: Annotated[int, read.message_size] = 10_000_000
    reject_low_priority_msg_limit: Annotated[int | None, read.count(1)] = None  # S11
    # S4
    reject_msg_to_sender_on_discard: Annotated[
        str, read.choice("when-queue-enabled", "including-when-shutdown", "never")
    ] = "when-queue-enabled"
    # a json queue keeps or nacks a payload that is not JSON
    on_invalid: Annotated[str, read.choice("keep", "nack")] = "keep"
    recovery_point: Annotated[str, read.recovery_point] = "epoch"  # R2
    target_queue_depth: Annotated[int | None, read.count(TARGET_QUEUE_DEPTH_MIN)] = None  # R5
    # accepted but without effect: pages are always in the store
    file_backed_metadata: Annotated[bool, read.enabled] = False
    spool_usage_high_percent: Annotated[float, read.percent] = 25.0  # S9
    spool_usage_clear_percent: Annotated[float, read.percent] = 18.0
    delivered_unacked_high_percent: Annotated[float, read.percent] = 80.0  # B4
    delivered_unacked_clear_percent: Annotated[float, read.percent] = 60.0


_KEYS = read.keys_of(QueueDefinition)
_READERS = {**_KEYS, "topic": _KEYS["name"]}  # a synonym (Q1)
KEYS = tuple(_READERS)
# Keys whose values are free text, such as names and expressions.
_TEXTS = (read.text, read.queue_name, read.vpn_name, read.broker_name, read.recovery_point)
TEXT_KEYS = frozenset(
    key for key, (_, reader) in _READERS.items() if reader in (*_TEXTS, client_name)
)


class _Values(dict[str, Any]):
    """The valid values by attribute. unread: the attributes of keys with invalid values."""

    unread: set[str]


NEEDS_AUTH = "owner, permission and permissions need `auth: required` to have an effect"


def is_protected(definition: Any) -> bool:
    """Whether a definition, or a directory entry, restricts what clients may do."""
    given = (definition.owner, definition.permission, tuple(definition.permissions))
    return given != (None, PERMISSIONS[-1], ())


def parse_definition(mapping: object, where: str = "") -> QueueDefinition:
    """Read a definition, plain or under a tag such as `{LocalQueue: {...}}` (Q5).

    Raises `ConfigError` with all problems (Q7). where: the location to report.
    """
    definition, problems = try_definition(mapping, where)
    if definition is None or problems:
        raise ConfigError(problems)
    return definition


def try_definition(
    mapping: object, where: str = ""
) -> tuple[QueueDefinition | None, list[Problem]]:
    """Like `parse_definition`, but returns the problems instead of raising them."""
    problems: list[Problem] = []

    def report(key: str, value: object, allowed: str) -> None:
        problems.append(Problem(where, key, read.shown(value), allowed))

    entries = _untag(mapping, report)
    if entries is None:
        return None, problems
    values = _read_keys(entries, report)
    for check in _CHECKS:
        check(values, report)
    if problems:
        return None, problems
    return QueueDefinition(**_fill_defaults(values)), []


def name_of(mapping: object) -> tuple[str, str] | None:
    """The VPN and the name in a definition, even if it has other problems."""
    entries = _untag(mapping, lambda *_: None) or {}
    name, vpn = entries.get("name", entries.get("topic")), entries.get("vpn") or "default"
    return (vpn, name) if isinstance(name, str) and name and isinstance(vpn, str) else None


def _untag(mapping: object, report: read.Report) -> Mapping[Any, Any] | None:
    """The keys of a definition; a tag around it becomes its `type` (Q5)."""
    if isinstance(mapping, Mapping) and len(mapping) == 1:
        tag, inner = next(iter(mapping.items()))
        if tag in TYPE_TAGS:
            if not isinstance(inner, Mapping):
                report(tag, inner, "must be a mapping of keys, such as name and message_type")
                return None
            named = inner.get("type")
            if named is not None and TYPE_TAGS.get(str(named)) != TYPE_TAGS[tag]:
                report("type", named, f"contradicts the tag {tag}; leave one of them out")
            return {**inner, "type": tag}
        if isinstance(inner, Mapping) and tag not in KEYS:
            report(read.shown_key(tag), inner, f"is not a type of queue: {', '.join(TYPE_TAGS)}")
            return None
    if not isinstance(mapping, Mapping):
        report("queue", mapping, "must be a mapping of keys, such as name and message_type")
        return None
    return mapping


def _read_keys(entries: Mapping[Any, Any], report: read.Report) -> _Values:
    values = _Values(read.read_keys(entries, _READERS, report))
    given = {_READERS[key][0] for key in KEYS if entries.get(key) is not None}
    values.unread = given - values.keys()
    if entries.get("name") is not None and entries.get("topic") is not None:
        report("topic", entries["topic"], "is a synonym of name; give one of them")
    for key, allowed in (
        ("name", "is required: the queue's name"),
        ("message_type", "is required: one of json, binary, text"),
    ):
        if key not in given:
            report(key, None, allowed)
    return values


# --- Checks of one key against another (each sees the valid values) -------------------------------


def _check_topics(values: _Values, report: read.Report) -> None:
    """Q2, Q3: a regular expression needs a target that it matches."""
    key = "underlying_topic" if "underlying_topic" in values else "name"
    if key not in values or "underlying_topic" in values.unread:
        return
    topic: str = values[key]
    target = values.get("default_publish_target")
    if not is_regex(topic):
        if target is not None and target != topic:
            report("default_publish_target", target, f"must be the captured topic, {topic!r}")
        return
    try:
        pattern = compiled(topic)
    except ValueError as error:
        report(key, topic, f"must be a topic name or a regular expression: {error}")
        return
    if target is None and "default_publish_target" not in values.unread:
        allowed = f"is required, because {key} {topic!r} is a regular expression"
        report("default_publish_target", None, allowed)
    elif target is not None and not pattern.fullmatch(target):
        report("default_publish_target", target, f"must be a topic that {key} {topic!r} matches")


def _check_expressions(values: _Values, report: read.Report) -> None:
    """Q1, Q6: expressions must compile, and those that read the payload need a json queue."""
    for key in EXPRESSION_KEYS:
        if key not in values:
            continue
        try:
            program = compile_program((values[key],))
        except ExpressionError as error:
            report(key, values[key], f"must be an expression: {error}")
            continue
        kind = values.get("message_type", "json")
        if program.needs_payload and kind != "json":
            allowed = f"reads fields, which needs message_type json, not {kind}"
            report(key, values[key], f"{allowed}; allowed are /@priority and /@key")


def _check_exclusions(values: _Values, report: read.Report) -> None:
    """O2, O3, R5: keys that exclude each other."""
    given = values.keys() | values.unread
    for first, second in (
        ("priority", "barrier_expression"),
        ("priority", "target_queue_depth"),
        ("barrier_expression", "target_queue_depth"),
    ):
        if first in given and second in given:
            allowed = f"cannot be given together with {first}; leave one of them out"
            report(second, values.get(second), allowed)


def _check_owner(values: _Values, report: read.Report) -> None:
    """Q5: `initial_owner` is required for a GroupLocalQueue and an error for other types; a
    LocalQueue has a broker, the others have a group. `brokers` checks the members of groups."""
    if "type" in values.unread:
        return
    kind = TYPE_TAGS[values.get("type", "Queue")]
    if "broker" in values and kind != "LocalQueue":
        allowed = f"is allowed for a LocalQueue only, not for a {kind}; a {kind} has a group"
        report("broker", values["broker"], allowed)
    if "group" in values and kind == "LocalQueue":
        allowed = "is allowed for a Queue and a GroupLocalQueue; a LocalQueue has a broker"
        report("group", list(values["group"]), allowed)
    if kind == "GroupLocalQueue":
        if "initial_owner" not in {*values, *values.unread}:
            report("initial_owner", None, "is required for a GroupLocalQueue: a broker's name")
        return
    for key in ("initial_owner", "group_local_queue_domain"):
        if key in values:
            report(key, values[key], f"is allowed for a GroupLocalQueue only, not for a {kind}")


def _check_policies(values: _Values, report: read.Report) -> None:
    """F4, X2, X5, L11, S9: policies that contradict each other."""
    if values.get("semantics") == "at-most-once" and values.get("fairness_model") == "proportional":
        allowed = "cannot be proportional with at-most-once; use round-robin or fast"
        report("fairness_model", "proportional", allowed)
    if "name" in values and values.get("dead_message_queue") == values["name"]:
        report("dead_message_queue", values["name"], "must be another queue than the queue itself")
    if "max_ttl_ms" in values and values.get("respect_ttl") is False:
        report("max_ttl", format_duration(values["max_ttl_ms"]), "needs respect_ttl to be true")
    elif "max_ttl_ms" in values or "respect_ttl" in values:
        model = "queue" if values.get("respect_ttl") is False else "earliest"
        if values.get("expiration_model", model) != model:
            allowed = f"must be {model} (or left out) with max_ttl and respect_ttl as given"
            report("expiration_model", values["expiration_model"], allowed)
    delay_ms = values.get("redelivery_delay_ms", 0)
    delay_max_ms = values.get("redelivery_delay_max_ms")
    if delay_max_ms is not None and delay_max_ms < delay_ms:
        allowed = f"must not be below redelivery_delay, {format_duration(delay_ms)}"
        report("redelivery_delay_max", format_duration(delay_max_ms), allowed)
    read.check_thresholds(QueueDefinition, values, report)


_CHECKS = (_check_topics, _check_expressions, _check_exclusions, _check_owner, _check_policies)


def _fill_defaults(values: _Values) -> dict[str, Any]:
    """Resolve the defaults that depend on other keys (Q2, Q3, Q5, F4, X2)."""
    complete = dict(values)
    complete["type"] = TYPE_TAGS[values.get("type", "Queue")]
    complete.setdefault("underlying_topic", values["name"])
    complete.setdefault("default_publish_target", complete["underlying_topic"])
    at_most_once = values.get("semantics") == "at-most-once"
    complete.setdefault("fairness_model", "round-robin" if at_most_once else "proportional")
    if "owner" in values:
        complete.setdefault("permission", PERMISSIONS[0])
    if values.get("respect_ttl") is False:
        complete["expiration_model"] = "queue"
    elif "max_ttl_ms" in values or "respect_ttl" in values:
        complete["respect_ttl"] = True
        complete["expiration_model"] = "earliest"
    return complete


# --- Partial definitions (Q9) ---------------------------------------------------------------------

_DERIVED = (
    "default_publish_target", "underlying_topic", "fairness_model", "expiration_model",
    "respect_ttl", "permission",
)  # fmt: skip


def defined_over(old: QueueDefinition, mapping: dict[str, Any]) -> dict[str, Any]:
    """The full mapping for a partial definition of an existing queue. Missing keys keep their
    values, a key that is None gets its default, and derived keys follow the new ones."""
    kept = to_wire(old)
    for key in _DERIVED:
        without = {other: value for other, value in kept.items() if other != key}
        if key in kept and try_definition(without)[0] == old:
            kept = without
    named = dict(_untag(mapping, lambda *_: None) or mapping)
    if "topic" in named:
        kept.pop("name")
    return {**kept, **named}


# --- Queries --------------------------------------------------------------------------------------


def is_regex(name: str) -> bool:
    """Whether a topic name is a regular expression. A dot alone does not make it one (Q2)."""
    return not REGEX_CHARACTERS.isdisjoint(name)


def dead_message_ring(
    definition: QueueDefinition, targets_of: Callable[[str], Iterable[str | None]]
) -> str | None:
    """The problem with a `dead_message_queue` that leads back to the queue itself, or None (X5).

    targets_of: returns the dead message queues that a queue of this name has or may get back.
    """
    paths, seen = [([definition.name], definition.dead_message_queue)], set()
    while paths:
        path, name = paths.pop()
        if name == definition.name:
            return f"must not lead back to the queue itself: {' → '.join([*path, name])}"
        if name is not None and name not in seen:
            seen.add(name)
            paths += [([*path, name], target) for target in targets_of(name)]
    return None


def redefine(old: QueueDefinition, new: QueueDefinition) -> list[Problem]:
    """The changes from `old` to `new` that are not allowed while the queue exists (Q9)."""
    return [
        Problem(
            f"queue {old.name!r}",
            key,
            getattr(new, key),
            f"cannot change while the queue exists; it is {getattr(old, key)!r}",
        )
        for key in ("name", "vpn", "message_type", "type", "group", "group_local_queue_domain")
        if getattr(old, key) != getattr(new, key)
    ]


def to_wire(definition: QueueDefinition) -> dict[str, Any]:
    """A mapping from which `parse_definition` makes an equal definition."""
    mapping: dict[str, Any] = {}
    for key, (attribute, reader) in _KEYS.items():
        value = getattr(definition, attribute)
        if value is None or value == () or (key == "file_backed_metadata" and value is False):
            continue
        if attribute.endswith("_ms"):
            value = format_duration(value)
        elif reader in (read.size, read.message_size):
            value = format_size(value)
        elif key == "permissions":
            value = dict(value)
        mapping[key] = value
    return mapping
