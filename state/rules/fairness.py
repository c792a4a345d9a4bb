"""How messages are shared out among candidates that can all take them (F1–F3).

The order in which candidates are served is in `queue.consumers`.
"""

from __future__ import annotations

from heapq import heappop, heapreplace

from ..queue.consumers import Candidate, Kind, Order


def share(order: Order, kind: Kind, messages: int, served: int) -> list[Candidate]:
    """The candidates of a kind that get ``messages`` messages in a row; together they have room for
    them. Each has room for one at least, so no more candidates than messages are needed. served:
    the number of the one served last."""
    if len(kind.ranked) == 1:  # most often
        return [kind.ranked[0][2]] * messages
    candidates = order.first(kind, served, messages)
    if len(candidates) < 2 or (kind.free and order.model != "round-robin"):
        return candidates[:1] * messages
    if order.model == "proportional":
        return _by_ratio(candidates, messages)
    out: list[Candidate] = []
    given = 0
    while len(out) < messages:
        if order.model == "fast":  # each is filled up
            candidate = candidates[given]
            out += [candidate] * min(candidate.room, messages - len(out))
        else:  # each gets one in turn
            candidates = [one for one in candidates if one.room > given]
            out += candidates[: messages - len(out)]
        given += 1
    return out


def _by_ratio(candidates: list[Candidate], messages: int) -> list[Candidate]:
    heap = [(one.rank, one.number, one.held, one) for one in candidates]  # sorted, so a heap
    out: list[Candidate] = []
    while len(out) < messages:
        _, number, held, one = heap[0]
        out.append(one)
        held += 1
        if held < one.backlog:
            heapreplace(heap, (held / one.backlog, number, held, one))
        else:
            heappop(heap)
    return out
