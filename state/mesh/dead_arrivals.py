"""Dead messages come to their dead message queue from another broker (X5, Q5). See `dead_ways`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.dead_letters import DeadLetters, DeadTaken
from ...protocol.errors import Reason
from ..dead import died_in, join, names_of, place_in
from ..message import enter
from ..rules.deferred import came_early, settle_arrivals
from ..rules.entering import over_quota
from ..rules.lifetime import expires_at
from ..storage import NEVER
from . import known_places
from .columns_said import stage
from .dead_counts import write_down
from .hosting import initial_owner
from .ownership import has_room
from .saying import tell

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def arrived(broker: Broker, sender: int, said: DeadLetters) -> None:
    """Dead messages for a queue that may be here."""
    queue = broker.find(said.vpn, said.queue)
    owner = None if queue is None else initial_owner(broker, queue)
    if queue is None or known_places.is_moving(queue) or owner is not None:
        send_back(broker, sender, said, -1 if owner is None else owner)
        return
    if not queue.header.ingress:
        why = "dead message queue shut down"
        tell(broker, sender, DeadTaken(said.vpn, said.queue, [], said.refs, why, []))
        return
    work = _Arrivals(broker, queue, said, moves=sender == broker.header.number)
    work.take()
    tell(
        broker, sender,
        DeadTaken(
            said.vpn, said.queue, work.taken, work.lost, "dead message queue full", work.back
        ),
    )  # fmt: skip


def send_back(broker: Broker, sender: int, said: DeadLetters, to: int = -1) -> None:
    """Nothing of this can be taken here now."""
    tell(broker, sender, DeadTaken(said.vpn, said.queue, [], [], "", said.refs, to))


class _Arrivals:
    """A record of dead messages, and what becomes of each. moves: they are stored here already, and
    leave their way in this step."""

    def __init__(self, broker: Broker, queue: Queue, said: DeadLetters, moves: bool) -> None:
        self.broker, self.queue, self.said, self.moves = broker, queue, said, moves
        self.taken: list[int] = []
        self.lost: list[int] = []
        self.back: list[int] = []
        self._new: dict[int, str] = {}  # ids that enter now, and the reasons of their deaths

    def take(self) -> None:
        """Take what the queue takes. From the first for which this broker has no room on, all
        wait: their order holds."""
        broker, queue, said = self.broker, self.queue, self.said
        for at, ref in enumerate(said.refs):
            if said.ids[at] in self._new:
                self._enter()
            held = broker.spool.held_under(said.ids[at], queue.number)
            if over_quota(queue, said.sizes[at]):
                self.lost.append(ref)
                continue
            if not (held or self.moves or has_room(broker, queue, said.sizes[at])):
                self.back = said.refs[at:]
                break
            if held is not None:
                for name in names_of(said.dead[at]):
                    join(broker, queue, held, died_in(said.dead[at], [name]))
            else:
                self._store(at)
            self.taken.append(ref)
        self._enter()

    def _store(self, at: int) -> None:
        """Store a message, and give it its place by the queue's expressions."""
        broker, queue, said = self.broker, self.queue, self.said
        size, arrivals = said.sizes[at], queue.arrivals
        if queue.early and came_early(broker, queue, said.ids[at]):
            broker.early.append((queue, queue.next_place()))
            arrivals.leaving += 1
            arrivals.leaving_bytes += size
        number = stage(broker, queue, said, at)
        arrivals.dead[len(arrivals.ids)] = said.dead[at]
        level, barrier, lane = place_in(
            queue, said.payloads[at], said.priorities[at], said.keys[at]
        )
        expires = expires_at(queue.definition, broker.now, NEVER, own_only=True)
        arrivals.add(number, [size], level, expires, NEVER, barrier, lane)
        self._new[said.ids[at]] = str(Reason(said.dead[at]["reason"]))

    def _enter(self) -> None:
        """Give what was stored its rows, and write it down."""
        if not self._new:
            return
        broker, queue = self.broker, self.queue
        broker.spool.settle_staged()
        enter(broker, queue)
        broker.arrived_in.append(queue)
        settle_arrivals(broker)
        by_reason: dict[str, list[int]] = {}
        for number, reason in self._new.items():
            by_reason.setdefault(reason, []).append(number)
        for reason, ids in by_reason.items():
            write_down(broker, "spooled", self.said.vpn, self.said.queue, ids, reason)
        self._new = {}
