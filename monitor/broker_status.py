"""All brokers of an engine, asked at once: what each says of itself, and who does not answer.

A queue is shown whoever has it, so a look asks every broker, and adds up what the hosts of a queue
say (Q5). A broker that does not run, or not in time, must not hide the others: what it said last
stays, and the look says whose that is. Brokers that came meanwhile are asked from the next look on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..protocol import LakequeueError, Timeout, commands

ANSWER_S = 2.0  # for one broker's answer; the others have theirs meanwhile
SENTENCES_MAX = 3
RUNNING = ("running", "")  # what is not known is asked


@dataclass(slots=True)
class BrokerLook:
    """What one broker said. queues: as its `describe`; state: as `Admin.brokers` gives it; silent:
    why it did not answer, and then what it said before stands here."""

    name: str
    state: dict[str, Any]
    queues: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    silent: str = ""


def ask_all(
    connection: Any, before: Mapping[str, BrokerLook], events: int
) -> dict[str, BrokerLook]:
    """Of each broker, by name, in the order of their numbers, its queues, its usage and its newest
    events. Raises LakequeueError when none answers."""
    known = connection.brokers()
    if len(known) < 2:  # as a client sees it that knows of one: it is there, or nothing is
        one = _ask(connection, connection.number, events, None)
        name = one.usage["broker"]["name"]
        one.name, one.state = name, known[0] if known else {"name": name, "state": ""}
        return {name: one}
    asked = [partial(_ask_known, connection, one, events) for one in known]
    found = {said.name: said for said in _at_once(connection, asked)}
    if all(said.silent for said in found.values()):
        raise Timeout(_and_more([said.silent for said in found.values()]))
    for name, said in found.items():
        if said.silent and name in before:
            then = before[name]
            said.queues, said.usage, said.events = then.queues, then.usage, then.events
    return found


def silence(looks: Mapping[str, BrokerLook]) -> str:
    """Who did not answer, and what that means for what is shown; empty when all did."""
    silent = [look.silent for look in looks.values() if look.silent]
    return f"{_and_more(silent)}: of it stands here what it said last." if silent else ""


def ask_hosts(
    connection: Any, ask: Callable[[Any], Any], hosts: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """What these brokers, as `Admin.brokers` gives them, answer to a question, by name. `ask` gets
    a broker's number; who refuses, or does not answer, is left out."""

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
        said = _ask(connection, known["number"], events, ANSWER_S)
    except LakequeueError as error:
        what = f"has not answered within {ANSWER_S:.0f} s" if isinstance(error, Timeout) else error
        return BrokerLook(name, known, silent=f"Broker {name} {what}")
    said.name, said.state = name, known
    return said


def _ask(connection: Any, number: int, events: int, timeout: float | None) -> BrokerLook:
    within = {} if timeout is None else {"timeout": timeout}
    request = partial(connection.request, broker=number, **within)
    return BrokerLook(
        "", {}, connection.request_list(commands.Queues(), "after", broker=number, **within),
        request(commands.Usage()), request(commands.Events(limit=events)),
    )  # fmt: skip


def _at_once(connection: Any, asked: Sequence[Callable[[], Any]]) -> list[Any]:
    """In memory one after the other: there nothing waits."""
    if len(asked) < 2 or not connection.runner.waits:
        return [one() for one in asked]
    with ThreadPoolExecutor(len(asked), "lakequeue-look") as pool:
        return list(pool.map(lambda one: one(), asked))


def _and_more(sentences: list[str]) -> str:
    more = len(sentences) - SENTENCES_MAX
    return "; ".join(sentences[:SENTENCES_MAX]) + (f"; and {more} more" if more > 0 else "")
