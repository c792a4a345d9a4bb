"""The step: the engine as one pure function of state, inputs and time.

    outputs = step(store, batch, now)

Order within a step: definitions, then commands as they stand in their log, then publishes, then
what is due, then delivery, then answers to looks. The same state, inputs and time give the same
outputs and the same pages, byte for byte; so a batch that is tried again repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_never

from ..expressions import ExpressionError
from ..protocol import commands as c
from ..protocol.errors import ConfigError, LakequeueError
from ..protocol.messages import Records
from ..protocol.outputs import Deadline, Output, Reply
from . import administration, sessions, settling, topic_subscriptions
from .admission import Admission, reject_record
from .alerts import watch
from .broker import Broker
from .delivery import dispatch
from .expiry import act_on_deadlines
from .limits import DEFAULT
from .queue import Queue
from .redrive import redrive
from .storage import NEVER, Store

DISPATCH_ROUNDS = 8


@dataclass(slots=True)
class Batch:
    """What comes in at once: commands and publishes, each in their log's order.

    commands: records of the commands topics, undecoded; publishes: all other records.
    """

    commands: Records = field(default_factory=Records)
    publishes: Records = field(default_factory=Records)


def step(
    store: Store, batch: Batch, now: int, broker: str = "broker-0", number: int = 0
) -> list[Output]:
    """Run one step of a broker. ``now``: epoch ms. Reads and writes ``store``."""
    work = Broker.load(store, broker, number, now)
    decoded = _decode(work, batch.commands)
    _perform(work, [d for d in decoded if isinstance(d[1], c.Configure | c.Define)])
    _perform(work, [d for d in decoded if not isinstance(d[1], c.Configure | c.Define | _Look)])
    if batch.publishes:
        admission = Admission(work)
        admission.take(batch.publishes)
        admission.close()
    _deadlines(work)
    _deliver(work)
    watch(work)
    _perform(work, [d for d in decoded if isinstance(d[1], _Look)])
    work.flush()
    if work.journal.segments:
        work.say(work.journal)
    at = work.now if work.work_left else work.calendar.next()
    work.say(Deadline(0 if at >= NEVER else max(at, 1)))
    return work.outputs


_Look = c.Queues | c.Usage | c.Describe | c.Browse | c.Events


def _decode(broker: Broker, records: Records) -> list[tuple[str, c.AnyCommand]]:
    """Decode commands; a record that is none goes to ``<vpn>.rejected``."""
    out: list[tuple[str, c.AnyCommand]] = []
    for i in range(len(records)):
        topic, value = records.topics[i], records.values[i]
        vpn = topic.rpartition(".")[0]
        try:
            out.append((vpn, c.decode_command(value)))
        except ValueError as error:
            reject_record(
                broker, vpn, topic, records.partitions[i], records.offsets[i],
                records.keys[i], value, str(error),
            )  # fmt: skip
    return out


def _perform(broker: Broker, commands: list[tuple[str, c.AnyCommand]]) -> None:
    """Carry out commands; one that is wrong is answered with a sentence and changes nothing."""
    for vpn, command in commands:
        result: Any = None
        error: str | None = None
        kind: str | None = None
        problems: list[tuple[str, str, Any, str]] | None = None
        try:
            result = _one(broker, vpn, command)
        except ConfigError as e:
            error, kind = str(e), "ConfigError"
            problems = [(p.where, p.key, _plain(p.value), p.allowed) for p in e.problems]
        except (ExpressionError, ValueError) as e:
            error, kind = str(e), "ConfigError"
        except LakequeueError as e:
            error, kind = str(e), "LakequeueError"
        if error is not None:
            name = getattr(command, "queue", "")
            broker.note("command_refused", vpn, name, command=type(command).__name__, why=error)
        if command.reply is not None:
            to = command.reply
            broker.say(
                Reply(to.topic, to.partition, to.request, result, error, kind, problems)
            )


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else repr(value)


def _one(broker: Broker, vpn: str, command: c.AnyCommand) -> Any:
    """Carry out one command; returns what is answered."""
    match command:
        case c.Configure():
            return administration.configure(broker, command)
        case c.Define():
            return administration.define(broker, vpn, command)
        case c.Heartbeat():
            return sessions.heartbeat(broker, vpn, command)
        case c.Bye():
            return sessions.bye(broker, vpn, command)
        case c.Tick():
            return None
        case c.Queues():
            queues = [broker.find(vpn, name) for name in broker.queue_names(vpn)]
            return [administration.describe(broker, q) for q in queues if q is not None]
        case c.Usage():
            return administration.usage(broker, vpn)
        case c.Events():
            return _events(broker, vpn, command.limit)
        case _:
            return _on_queue(broker, vpn, command)


_QueueCommand = (
    c.Delete | c.Subscribe | c.SetBacklog | c.Unsubscribe | c.Ack | c.Cancel | c.Reject | c.Renew
    | c.Returned | c.TransportAck | c.Describe | c.Browse | c.Purge | c.Shutdown
    | c.SubscribeTopic | c.UnsubscribeTopic | c.Redrive
)  # fmt: skip


def _on_queue(broker: Broker, vpn: str, command: _QueueCommand) -> Any:
    queue = broker.find(vpn, command.queue)
    if queue is None:
        if isinstance(command, c.Unsubscribe | c.TransportAck):
            return None
        raise ConfigError(f"queue: {command.queue!r} – there is no such queue in VPN {vpn!r}")
    match command:
        case c.Delete():
            return administration.delete(broker, vpn, queue)
        case c.Subscribe():
            return sessions.subscribe(broker, vpn, queue, command)
        case c.SetBacklog():
            return sessions.set_backlog(queue, command)
        case c.Unsubscribe():
            return sessions.unsubscribe(broker, vpn, queue, command)
        case c.Describe():
            return administration.describe(broker, queue)
        case c.Browse():
            return administration.browse(broker, queue, command)
        case c.Shutdown():
            return administration.shutdown(broker, vpn, queue, command)
        case c.Purge():
            return administration.purge(broker, queue, command)
        case c.Redrive():
            return redrive(broker, queue, command)
        case c.SubscribeTopic():
            return topic_subscriptions.subscribe_topic(broker, vpn, queue, command)
        case c.UnsubscribeTopic():
            return topic_subscriptions.unsubscribe_topic(broker, vpn, queue, command)
        case c.TransportAck():
            return settling.has_arrived(broker, queue, command)
        case _:
            return _settle(broker, queue, command)


def _settle(
    broker: Broker, queue: Queue, command: c.Ack | c.Cancel | c.Reject | c.Renew | c.Returned
) -> Any:
    match command:
        case c.Ack():
            return settling.acknowledge(broker, queue, command)
        case c.Cancel():
            return settling.cancel(broker, queue, command)
        case c.Reject():
            return settling.reject(broker, queue, command)
        case c.Renew():
            return settling.renew(broker, queue, command)
        case c.Returned():
            return settling.hand_back(broker, queue, command)
        case _:
            assert_never(command)


def _events(broker: Broker, vpn: str, limit: int) -> list[dict[str, Any]]:
    # What concerns the whole broker is told in every VPN.
    ring = [
        e for e in broker.notes.read("e") or [] if e[1] == vpn or e[4].get("scope") == "broker"
    ]
    return [
        {"event": event, "vpn": name, "queue": queue, "time": time, **details}
        for event, name, queue, time, details in ring[-max(limit, 0) :]
    ]


def _deadlines(broker: Broker) -> None:
    """Act on what is due: of queues and sessions in the calendar, and of all queues in use."""
    for name in broker.calendar.due(broker.now, DEFAULT.due_per_step):
        if name[0] == "s":
            sessions.lost(broker, name)
        else:
            broker.queue(int(name[1:]))
    done: set[int] = set()
    while True:
        due = [q for q in broker.touched() if q.number not in done]
        if not due:
            return
        for queue in due:
            done.add(queue.number)
            act_on_deadlines(broker, queue)


def _deliver(broker: Broker) -> None:
    """Dispatch what waits for others' acks, then every queue that changed; dead messages may
    change others in turn."""
    broker.count_unacked()
    _dispatch_waiting(broker)
    for _ in range(DISPATCH_ROUNDS):
        wanting = [q for q in broker.touched() if q.dispatch_wanted]
        if not wanting:
            break
        for queue in wanting:
            dispatch(broker, queue)
    _dispatch_waiting(broker)


def _dispatch_waiting(broker: Broker) -> None:
    """Queues that `max_delivered_unacked` held back, the longest waiting first, while there is
    room (B4). One that finds none again goes to the end."""
    waiting = broker.header.waiting
    while waiting and broker.unacked_total < broker.header.system.max_delivered_unacked:
        number = next(iter(waiting))
        del waiting[number]
        queue = broker.queue(number)
        if queue is not None:
            dispatch(broker, queue)
