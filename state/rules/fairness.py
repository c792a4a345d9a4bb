"""Which subscription gets the next message (F1–F4), within backlog limits (B1–B3).

A *candidate* is a subscription that can take more messages in this step. The three models differ
only in the order in which candidates are served. Ties go to the one that subscribed first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right

import msgspec

from ...definitions import QueueDefinition
from ..queue.header import Subscription

UNLIMITED = 1 << 62


class Candidate(msgspec.Struct, eq=False):
    """A subscription with room. backlog: its limit; room: how many more messages it can take
    now."""

    subscription: Subscription
    backlog: int
    held: int
    room: int

    @property
    def free(self) -> bool:
        """Whether its messages leave the queue when they are sent, without a lease (L2)."""
        return self.room == UNLIMITED


def backlog_of(definition: QueueDefinition, subscription: Subscription) -> int:
    """The lowest of the queue's limit, the subscription's own (B2) and the flow's (B4)."""
    if subscription.broker is not None:
        return own_backlog(subscription)
    return min(own_backlog(subscription), _backlog_of_queue(definition))


def _backlog_of_queue(definition: QueueDefinition) -> int:
    """The lower of the queue's own limits."""
    return min(definition.max_per_subscription_backlog, definition.max_delivered_unacked_per_flow)


def own_backlog(subscription: Subscription) -> int:
    """The limit that the subscription asks for; 1 if it names none (B2)."""
    return 1 if subscription.max_backlog is None else subscription.max_backlog


def candidates_of(
    definition: QueueDefinition, subscriptions: list[Subscription]
) -> tuple[list[Candidate], list[Candidate]]:
    """The subscriptions that can take at least one message, in order of subscribing: consumers of
    this broker, and other brokers."""
    own: list[Candidate] = []
    others: list[Candidate] = []
    removes = definition.semantics == "at-most-once"
    most = _backlog_of_queue(definition)
    for subscription in subscriptions:  # all of them, in each step that delivers
        if subscription.ending or subscription.again:
            continue
        backlog = 1 if subscription.max_backlog is None else subscription.max_backlog
        if subscription.broker is not None:
            # With quota 0 the queue is separate at each host (S10).
            if definition.max_spool_usage and backlog > subscription.held:
                room = backlog - subscription.held
                others.append(Candidate(subscription, backlog, subscription.held, room))
            continue
        if backlog > most:
            backlog = most
        free = removes or subscription.removes_on_send
        room = UNLIMITED if free else backlog - subscription.held
        if room > 0 and backlog > 0:
            own.append(Candidate(subscription, backlog, subscription.held, room))
    return own, others


def _first(candidate: Candidate) -> tuple[int, int]:
    """Order under `fast`: the highest consumer priority, then the oldest subscription (F1)."""
    return -candidate.subscription.priority, candidate.subscription.number


def _number(candidate: Candidate) -> int:
    return candidate.subscription.number


def _turn(candidate: Candidate, served: int) -> tuple[bool, int]:
    """Order under `round-robin`: the candidates behind the one served last, then the others
    (F2)."""
    number = candidate.subscription.number
    return number <= served, number


def choose(model: str, candidates: list[Candidate], served: int) -> Candidate:
    """The candidate that gets one message; ``served`` is the number served last."""
    if model == "fast":
        return min(candidates, key=_first)
    if model == "round-robin":
        return min(candidates, key=lambda c: _turn(c, served))
    return min(candidates, key=lambda s: (s.held / s.backlog, s.subscription.number))


def take(candidate: Candidate) -> None:
    """Count one message against a candidate."""
    if candidate.room < UNLIMITED:
        candidate.held += 1
        candidate.room -= 1


def share(model: str, candidates: list[Candidate], messages: int, served: int) -> list[Candidate]:
    """The candidates that get up to ``messages`` messages in a row, all of which any can take."""
    if len(candidates) == 1:
        return candidates * min(candidates[0].room, messages)
    out: list[Candidate] = []
    if model == "fast":
        # Each has room for at least one message, so these are enough.
        for candidate in heapq.nsmallest(messages, candidates, key=_first):
            out += [candidate] * min(candidate.room, messages - len(out))
        return out
    if model == "round-robin":
        return _rotate(candidates, messages, served)
    heap = [(s.held / s.backlog, s.subscription.number, s) for s in candidates]
    heapq.heapify(heap)
    while heap and len(out) < messages:
        _, number, candidate = heap[0]
        out.append(candidate)
        take(candidate)
        if candidate.room:
            heapq.heapreplace(heap, (candidate.held / candidate.backlog, number, candidate))
        else:
            heapq.heappop(heap)
    return out


def _rotate(candidates: list[Candidate], messages: int, served: int) -> list[Candidate]:
    # Candidates are in order of subscribing, which is that of their numbers.
    behind = bisect_right(candidates, served, key=_number)
    ring = candidates[behind:] + candidates[:behind]
    out: list[Candidate] = []
    while ring and len(out) < messages:
        turn = ring[: messages - len(out)]
        out += turn
        for candidate in turn:
            take(candidate)
        ring = ring[len(turn) :] + turn
        ring = [s for s in ring if s.room]
    return out
