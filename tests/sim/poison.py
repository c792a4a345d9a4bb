"""Planted failures in each phase of a step, and at each kind of record between brokers, as bugs of
the core. They depend only on the record, the step and the queue, so a repeated step fails again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from crc32c import crc32c
from lakequeue.mesh import channel, credit, directory, handover, moves, stand_ins
from lakequeue.mesh.facts import keeper_of
from lakequeue.mesh.keeper import Keeper
from lakequeue.mesh.mesh import KEPT, Mesh
from lakequeue.state.commands import intake
from lakequeue.state.phases import admission, delivery
from lakequeue.state.queue.broker import Broker
from lakequeue.state.queue.queue import Queue

POISONED_LIMIT = 666  # of a browse
POISONED_PRIORITY = 66  # of a message
POISONED_STORE = 65  # the same, but it fails while stored, perhaps among others
POISONED_GRANT = 67  # the priority of a message that cannot be granted to another broker
POISONED_SIZE = 66_666  # of a queue's messages, in a definition that no other broker can apply
POISONED_TOPIC = "poisoned"  # of a subscription, the same
POISONED_STEPS = 150  # in each of these the queue below cannot be served
POISONED_QUEUE = "slow"


# The handlers of records between brokers; of so many records one fails.
HANDLERS = (
    (stand_ins, "answered", 60), (credit, "hear_room", 60), (moves, "may_come", 5),
    (handover, "arrive", 4), (Keeper, "moved", 4), (Mesh, "_forwarded", 30), (Mesh, "_answered", 9),
)  # fmt: skip
# What a broker does for a queue, or for another broker, while it writes; the same.
WRITERS = (
    (stand_ins, "_try_first", 9), (stand_ins, "with_messages", 9), (channel, "_repeat", 9),
    (credit, "other_hosts", 300),
)  # fmt: skip
mended: list[bool] = []  # filled once a version without these bugs of the handlers runs


class Poison(Exception):
    """A bug of the core."""


def failing(handler: Any, one_of: int) -> Any:
    """A handler that fails at some records. At one that failed before it may fail again."""

    def handle(own: Any, *rest: Any) -> None:
        broker = own if isinstance(own, Broker) else own._broker
        handler(own, *rest)
        fate = crc32c(f"{broker.at} {broker.now}".encode())
        if not mended and fate % (2 if broker.at[0] == KEPT else one_of) == 0:
            spoil(broker)
            raise Poison("a record of another broker")

    return handle


def failing_writer(writer: Any, one_of: int) -> Any:
    """A function that fails in some steps."""

    def write(broker: Broker, *rest: Any) -> Any:
        found = writer(broker, *rest)
        at = broker.at.number if isinstance(broker.at, Queue) else broker.at
        if not mended and crc32c(f"{at} {broker.now}".encode()) % one_of == 0:
            spoil(broker)
            raise Poison("a broker that writes")
        return found

    return write


def spoil(broker: Broker) -> None:
    """The changes of a step before it failed: they must be undone."""
    for queue in broker.queues.values():
        queue.header.depth += 7


@contextmanager
def poisoned() -> Iterator[None]:
    """The core fails at some records, and at a queue now and then."""
    mended.clear()
    check, one, serve = admission.check_messages, intake._one, delivery._serve
    take_in, store = handover.take_in, admission.Admission._store
    carry_out, change_topic = directory.carry_out, directory.change_topic

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

    def entry_carried_out(
        broker: Broker, facts: Any, bridges: Any, vpn: str, name: str
    ) -> None:  # fmt: skip
        carry_out(broker, facts, bridges, vpn, name)
        entry = facts.entries.get(vpn, {}).get(name)
        if entry is None:
            is_bad = crc32c(f"{name} {broker.now}".encode()) % 4 == 0
        else:
            is_bad = entry.definition.max_message_size == POISONED_SIZE
        if is_bad and not mended and broker.header.number != keeper_of(facts):
            spoil(broker)
            raise Poison("a queue's entry")

    def topic_changed(broker: Broker, message: Any) -> None:
        change_topic(broker, message)
        mesh: Any = broker.mesh
        is_keeper = broker.header.number == keeper_of(mesh.facts)
        if message.topic == POISONED_TOPIC and not is_keeper and not mended:
            spoil(broker)
            raise Poison("a queue's topic")

    with ExitStack() as stack:
        for owner, name, one_of in HANDLERS:
            handler = failing(getattr(owner, name), one_of)
            stack.enter_context(patch.object(owner, name, handler))
        for owner, name, one_of in WRITERS:
            writer = failing_writer(getattr(owner, name), one_of)
            stack.enter_context(patch.object(owner, name, writer))
        stack.enter_context(patch.object(directory, "carry_out", entry_carried_out))
        stack.enter_context(patch.object(directory, "change_topic", topic_changed))
        stack.enter_context(patch.object(handover, "take_in", taken_in))
        stack.enter_context(patch.object(admission, "check_messages", checked))
        stack.enter_context(patch.object(admission.Admission, "_store", stored))
        stack.enter_context(patch.object(intake, "_one", carried_out))
        stack.enter_context(patch.object(delivery, "_serve", served))
        yield
