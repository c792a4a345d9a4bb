"""Which subscription gets the next message (F1–F4), within backlog limits (B1–B3).

A *seat* is a subscription that may still take messages in this step. The three models differ only
in the order in which seats are asked; ties go to the one that subscribed first.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from ..definitions import QueueDefinition
from .queue import Subscription

UNLIMITED = 1 << 62


@dataclass(slots=True)
class Seat:
    """A subscription with room. backlog: its limit; room: how many more it may take now."""

    subscription: Subscription
    backlog: int
    held: int
    room: int

    @property
    def free(self) -> bool:
        """Whether its messages leave the queue as they are sent, and take no lease (L2)."""
        return self.room == UNLIMITED


def backlog_of(definition: QueueDefinition, subscription: Subscription) -> int:
    """The lower of the queue's and the subscription's own limit (B2), and the flow's (B4)."""
    own = 1 if subscription.max_backlog is None else subscription.max_backlog
    return min(
        own, definition.max_per_subscription_backlog, definition.max_delivered_unacked_per_flow
    )


def seats_of(definition: QueueDefinition, subscriptions: list[Subscription]) -> list[Seat]:
    """The subscriptions that may take at least one message, in order of subscribing."""
    seats = []
    removes = definition.semantics == "at-most-once"
    for subscription in subscriptions:
        backlog = backlog_of(definition, subscription)
        free = removes or subscription.removes_on_send
        room = UNLIMITED if free else backlog - subscription.held
        if room > 0 and backlog > 0:
            seats.append(Seat(subscription, backlog, subscription.held, room))
    return seats


def _first(seat: Seat) -> tuple[int, int]:
    """Order under `fast`: by the consumer's own priority, then by subscribing (F1)."""
    return -seat.subscription.priority, seat.subscription.number


def choose(model: str, seats: list[Seat], served: int) -> Seat:
    """The seat that gets one message; ``served`` is the number served last."""
    if model == "fast":
        return min(seats, key=_first)
    if model == "round-robin":
        return min(seats, key=lambda s: (s.subscription.number <= served, s.subscription.number))
    return min(seats, key=lambda s: (s.held / s.backlog, s.subscription.number))


def take(seat: Seat) -> None:
    """Count one message against a seat."""
    if seat.room < UNLIMITED:
        seat.held += 1
        seat.room -= 1


def share(model: str, seats: list[Seat], messages: int, served: int) -> list[Seat]:
    """The seats of up to ``messages`` messages in a row that any seat can take."""
    if model == "fast":
        out: list[Seat] = []
        for seat in sorted(seats, key=_first):
            n = min(seat.room, messages - len(out))
            out += [seat] * n
            _take_many(seat, n)
        return out
    if len(seats) == 1:
        n = min(seats[0].room, messages)
        _take_many(seats[0], n)
        return seats * n
    if model == "round-robin":
        return _rotate(seats, messages, served)
    heap = [(s.held / s.backlog, s.subscription.number, s) for s in seats]
    heapq.heapify(heap)
    out = []
    while heap and len(out) < messages:
        _, number, seat = heap[0]
        out.append(seat)
        take(seat)
        if seat.room:
            heapq.heapreplace(heap, (seat.held / seat.backlog, number, seat))
        else:
            heapq.heappop(heap)
    return out


def _take_many(seat: Seat, n: int) -> None:
    if seat.room < UNLIMITED:
        seat.held += n
        seat.room -= n


def _rotate(seats: list[Seat], messages: int, served: int) -> list[Seat]:
    ring = sorted(seats, key=lambda s: (s.subscription.number <= served, s.subscription.number))
    out: list[Seat] = []
    while ring and len(out) < messages:
        turn = ring[: messages - len(out)]
        out += turn
        for seat in turn:
            take(seat)
        ring = ring[len(turn) :] + turn
        ring = [s for s in ring if s.room]
    return out
