"""Planted failures in each phase of a step, as bugs of the core. They depend only on the record,
the step and the queue, so a repeated step fails again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from lakequeue.mesh import directory, handover
from lakequeue.state.commands import intake
from lakequeue.state.phases import admission, delivery
from lakequeue.state.queue.broker import Broker

POISONED_LIMIT = 666  # of a browse
POISONED_PRIORITY = 66  # of a message
POISONED_STORE = 65  # the same, but it fails while stored, perhaps among others
POISONED_GRANT = 67  # the priority of a message that cannot be granted to another broker
POISONED_SIZE = 66_666  # of a queue's messages, in a definition that no other broker can apply
POISONED_TOPIC = "poisoned"  # of a subscription, the same
POISONED_STEPS = 150  # in each of these the queue below cannot be served
POISONED_QUEUE = "slow"


class Poison(Exception):
    """A bug of the core."""


def spoil(broker: Broker) -> None:
    """The changes of a step before it failed: they must be undone."""
    for queue in broker.queues.values():
        queue.header.depth += 7


@contextmanager
def poisoned() -> Iterator[None]:
    """The core fails at some records, and at a queue now and then."""
    check, one, serve = admission.check_messages, intake._one, delivery._serve
    take_in, store = handover.take_in, admission.Admission._store
    apply_entry, apply_topic = directory.apply_entry, directory.apply_topic

    def checked(broker: Broker, matches: Any, messages: Any) -> Any:
        if messages.header.priority == POISONED_PRIORITY:  # a check changes nothing
            raise Poison("a message")
        return check(broker, matches, messages)

    def stored(self: Any, checked: Any, messages: Any) -> int:
        if messages.header.priority == POISONED_STORE:
            spoil(self._broker)
            raise Poison("a message among others")
        return store(self, checked, messages)

    def carried_out(broker: Broker, vpn: str, command: Any) -> None:
        if getattr(command, "limit", None) == POISONED_LIMIT:
            spoil(broker)
            raise Poison("a command")
        one(broker, vpn, command)

    def served(broker: Broker, queue: Any, *rest: Any) -> None:
        if broker.header.step % POISONED_STEPS == 40 and queue.definition.name == POISONED_QUEUE:
            broker.at = queue
            queue.header.depth += 3  # a failed step leaves nothing behind
            raise Poison("a queue")
        serve(broker, queue, *rest)

    def taken_in(broker: Broker, queue: Any, row: Any, content: Any, waiting: bool) -> None:
        take_in(broker, queue, row, content, waiting)
        if not waiting and row.priority == POISONED_GRANT:
            spoil(broker)
            raise Poison("a message that was granted")

    def entry_applied(broker: Broker, *rest: Any) -> None:
        apply_entry(broker, *rest)
        entry = rest[-1]
        if entry is not None and entry.definition.max_message_size == POISONED_SIZE:
            spoil(broker)
            raise Poison("a queue's definition")

    def topic_applied(broker: Broker, facts: Any, message: Any) -> None:
        apply_topic(broker, facts, message)
        if message.topic == POISONED_TOPIC:
            spoil(broker)
            raise Poison("a queue's topic")

    with ExitStack() as stack:
        stack.enter_context(patch.object(directory, "apply_entry", entry_applied))
        stack.enter_context(patch.object(directory, "apply_topic", topic_applied))
        stack.enter_context(patch.object(handover, "take_in", taken_in))
        stack.enter_context(patch.object(admission, "check_messages", checked))
        stack.enter_context(patch.object(admission.Admission, "_store", stored))
        stack.enter_context(patch.object(intake, "_one", carried_out))
        stack.enter_context(patch.object(delivery, "_serve", served))
        yield
