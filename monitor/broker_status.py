"""The state of all brokers of an engine, requested at the same time, and the brokers that do not
answer.

Every broker is asked, so a queue is shown wherever it is, and the figures of a queue's hosts are
added up (Q5). A broker that is down or slow must not hide the others: its last answer is shown,
with a note. Brokers that are added meanwhile are included the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..protocol import LakequeueError, Timeout, commands

ANSWER_S = 2.0  # for each broker's answer, at the same time
SENTENCES_MAX = 3
RUNNING = ("running", "")  # also ask brokers of unknown state


@dataclass(slots=True)
class BrokerLook:
    """One broker's answer. queues: as `describe` returns them. state: as `Admin.brokers` returns
    it. silent: the reason why it did not answer; the rest is then its last answer."""

    name: str
    state: dict[str, Any]
    queues: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    silent: str = ""


def ask_all(
    connection: Any, before: Mapping[str, BrokerLook], events: int
) -> dict[str, BrokerLook]:
    """Queues, usage and newest events of each broker, by name, in the order of their numbers.
    Raises LakequeueError if none answers."""
    known = connection.brokers()
    if len(known) < 2:  # a single broker: if it does not answer, there is nothing to show
        one = _ask(connection, connection.number, events)
        one.name = one.usage["broker"]["name"]
        one.state = known[0] if known else {"name": one.name, "state": ""}
        return {one.name: one}
    asked = [partial(_ask_known, connection, one, events) for one in known]
    found = {status.name: status for status in _at_once(connection, asked)}
    if all(status.silent for status in found.values()):
        raise Timeout(_and_more([status.silent for status in found.values()]))
    for name, status in found.items():
        if status.silent and name in before:
            then = before[name]
            status.queues, status.usage, status.events = then.queues, then.usage, then.events
    return found


def silence(looks: Mapping[str, BrokerLook]) -> str:
    """A sentence about brokers that did not answer; empty if all did."""
    silent = [look.silent for look in looks.values() if look.silent]
    return f"{_and_more(silent)}: the last answer is shown." if silent else ""


def ask_hosts(
    connection: Any, ask: Callable[[Any], Any], hosts: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """These brokers' answers to a request, by name. `ask` gets a broker's number. Omits brokers
    that refuse or do not answer."""

    def one(host: Mapping[str, Any]) -> tuple[str, Any]:
        try:
            return host["name"], ask(host["number"])
        except LakequeueError:
            return host["name"], None

    running = [host for host in hosts if host["state"] in RUNNING]
    answers = _at_once(connection, [partial(one, host) for host in running])
    return {name: answer for name, answer in answers if answer is not None}


def _ask_known(connection: Any, known: dict[str, Any], events: int) -> BrokerLook:
    name, state = known["name"], known["state"]
    if state not in RUNNING:
        why = f": {known['why']}" if known.get("why") else ""
        return BrokerLook(name, known, silent=f"Broker {name} is {state}{why}")
    try:
        status = _ask(connection, known["number"], events, timeout=ANSWER_S)
    except LakequeueError as error:
        what = f"has not answered within {ANSWER_S:.0f} s" if isinstance(error, Timeout) else error
        return BrokerLook(name, known, silent=f"Broker {name} {what}")
    status.name, status.state = name, known
    return status


def _ask(connection: Any, number: int, events: int, **timeout: float) -> BrokerLook:
    request = partial(connection.request, broker=number, **timeout)
    return BrokerLook(
        "", {}, connection.request_list(commands.Queues(), "after", broker=number, **timeout),
        request(commands.Usage()), request(commands.Events(limit=events)),
    )  # fmt: skip


def _at_once(connection: Any, asked: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make requests at the same time; on memory://, where no request waits, one after the other."""
    if len(asked) < 2 or not connection.runner.waits:
        return [one() for one in asked]
    with ThreadPoolExecutor(len(asked), "lakequeue-look") as pool:
        return list(pool.map(lambda one: one(), asked))


def _and_more(sentences: list[str]) -> str:
    more = len(sentences) - SENTENCES_MAX
    return "; ".join(sentences[:SENTENCES_MAX]) + (f"; and {more} more" if more > 0 else "")
