"""The model in the engine's place, behind the same batches: it tests the judge."""

import pickle
from typing import Any

from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries, Receipts, Reply
from reference.model import Model, Refused, Subscription
from rules.steps import NOW


class OnModel:
    """Like `Steps`: takes commands and publishes, returns outputs."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.now = NOW

    def restart(self) -> None:
        self.model = pickle.loads(pickle.dumps(self.model))

    def run(self, commands: list[Any] = (), publishes: list[Any] = ()) -> list[Any]:
        self.model.now = self.now - NOW
        with self.model.joined():
            out = [Reply("", 0, "", self.carry_out(one)) for one in commands]
            receipt = Receipts("", "walk", 0)
            for to, payload, options in publishes:
                self.publish(receipt, to, payload, options)
        return [*out, receipt, *self.deliveries()]

    def publish(self, receipt: Receipts, to: str, payload: bytes, options: Any) -> None:
        ttl = options.get("ttl_ms")
        text, key = None if ttl is None else f"{ttl}ms", options["key"].decode()
        try:
            number = self.model.publish(to, payload, text, key=key)
            receipt.runs.append([options["seq"], 1, number or 0])
        except Refused as nack:
            receipt.nacks.append((options["seq"], nack.reason, "", ""))

    def deliveries(self) -> list[Deliveries]:
        out = []
        for flow in self.model.subscriptions:
            for d in flow.inbox:
                one = Deliveries(flow.queue, flow.name, "", 0, "single", 0, barrier=d.is_barrier)
                one.ids, one.counts = [d.id], [d.count]
                out.append(one)
            flow.inbox = []
        return out

    def flow(self, command: Any) -> Subscription:
        return next(s for s in self.model.subscriptions if s.name == command.subscription)

    def carry_out(self, command: Any) -> Any:
        model = self.model
        match command:
            case c.Define():
                model.define(command.definition)
            case c.Delete():
                model.delete(command.queue)
            case c.Subscribe():
                no_ack = command.acks == "none"
                backlog, name = command.max_backlog or 1, command.subscription
                model.subscribe(command.queue, name, backlog, command.filter, no_ack)
            case c.SubscribeTopic():
                model.subscribe_topic(command.queue, command.topic)
            case c.UnsubscribeTopic():
                model.unsubscribe_topic(command.queue, command.topic)
            case c.Redrive():
                model.redrive(command.queue)
            case c.Describe():
                return self.describe(command.queue)
            case c.Browse():
                return [{"id": i} for i in model.browse(command.queue)]
            case _:
                self.of_a_flow(command, self.flow(command))
        return None

    def of_a_flow(self, command: Any, flow: Subscription) -> None:
        model = self.model
        numbers = ids_of(command.ids) if getattr(command, "ids", None) else []
        match command:
            case c.Unsubscribe():
                model.unsubscribe(flow)
            case c.SetBacklog():
                model.set_backlog(flow, command.max_backlog)
            case c.Ack(where=str() as where):
                model.acknowledge_where(flow, where)
            case c.Ack(up_to=str() as last):
                model.acknowledge_up_to(flow, int(last))
            case c.Ack():
                model.acknowledge(flow, numbers)
            case c.Cancel(delay_ms=delay):
                model.cancel(flow, numbers[0], None if delay is None else f"{delay}ms")
            case c.Reject():
                model.reject(flow, numbers[0])
            case c.Renew(period_ms=period):
                given = model.queues[flow.queue].get("lease_period")
                model.renew(flow, numbers[0], given if period is None else f"{period}ms")
            case c.Returned():
                model.hand_back(flow, numbers[0])

    def describe(self, name: str) -> dict[str, Any]:
        queue = self.model.queues[name]
        flows = self.model.bound_to(queue)
        return self.model.describe(name) | {
            "consumers": [{"name": s.name, "held": queue.held(s)} for s in flows]
        }


def ids_of(text: str) -> list[int]:
    parts = [part.partition("-") for part in text.split(",")]
    return [i for low, _, high in parts for i in range(int(low), int(high or low) + 1)]
