"""Who does a session's duties, and by which clock: what else Kafka and memory differ in.

Duties are reading what came in, acks and renewals that are due, heartbeats, messages to be sent
again, callbacks. Over Kafka threads do them (`threads`), and a call may wait. In memory nobody does
unless somebody calls: each call runs the engine first, and none waits (`lakequeue.memory`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Duties(Protocol):
    """What a runner asks of a session."""

    client_name: str
    is_open: bool
    changed: threading.Condition

    def receive(self, timeout_s: float) -> None:
        """Take what came in, waiting at most so long for it."""
        ...

    def upkeep(self) -> None:
        """Do what is due."""
        ...

    def due(self) -> int | None:
        """When `upkeep` has something to do next, by the runner's clock; None: nothing."""
        ...

    def beat(self) -> None:
        """Heartbeats, where they are this session's own affair."""
        ...

    def send_gathered(self) -> None:
        """Send what producers have gathered."""
        ...

    def report(self, text: str) -> None:
        """Something that the application should hear of."""
        ...

    def forked(self) -> None:
        """This is a forked child: nothing works here any more."""
        ...


class Runner(Protocol):
    """One for each session.

    tag: makes the session's names unlike all others'; acks_most: how many acks are collected before
    they are sent; gather_ms: how long a transport ack waits for an ack that can carry it; waits:
    whether things happen while nobody calls, so that it makes sense to wait for them.
    """

    tag: str
    acks_most: int
    gather_ms: int
    waits: bool

    def start(self, session: Duties) -> None:
        """Begin with the session's duties."""
        ...

    def stop(self) -> None:
        """The session was closed: end them."""
        ...

    def now_ms(self) -> int:
        """What a clock on the wall shows, epoch ms: for people, and for times that they name."""
        ...

    def clock_ms(self) -> float:
        """Milliseconds that only grow: leases and intervals are counted by them."""
        ...

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Whether a condition holds, after waiting for it at most ``timeout`` s."""
        ...

    def sent(self) -> None:
        """Something was sent to the engine."""
        ...

    def gathering(self) -> None:
        """What producers have gathered may go out now."""
        ...

    def serve(self, ready: Callable[[], bool], work: Callable[[], bool]) -> Callable[[float], None]:
        """Have ``work`` done now and whenever it is ``ready``, until it answers False.

        Gives a function that waits until it has ended, at most so many seconds.
        """
        ...

    def session_of(self, vpn: str, session: str, subscription: str) -> str:
        """The session whose heartbeats keep a subscription."""
        ...

    def ended(self, vpn: str, session: str, subscription: str) -> None:
        """A subscription needs no heartbeats any more."""
        ...

    def silence(self, vpn: str, session: str, subscription: str) -> None:
        """A subscription's heartbeats stop, as when its process is killed: an aid for tests."""
        ...
