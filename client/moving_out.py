"""Who keeps the directory is asked to remove a broker; its local queues leave it before.

The keeper says which queues are to go where, and from then on has nothing made there
(`state.mesh.parting`); whoever removes the broker has them moved, as `move-queue` moves them, and
asks again, until nothing is left. What could not be moved ends the removal; what has moved stays
where it is. A keeper that is to go itself hands the directory over, and says to whom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..protocol import LakequeueError, commands
from .connection import Connection

MOVE_S_MAX = 300.0
NAMES_SHOWN = 20


class MovedOut(NamedTuple):
    """A queue that has left; broker: where it is now."""

    vpn: str
    queue: str
    broker: str


class Keeper:
    """Who keeps the directory, as far as it is known; wait: a little, False: no longer."""

    def __init__(self, wait: Callable[[], bool]) -> None:
        self._number, self._wait = commands.KEEPER, wait

    def ask(self, connection: Connection, command: commands.RemoveBroker) -> dict[str, Any]:
        """What it answers. Raises LakequeueError."""
        while True:
            told = dict(connection.request(command, broker=self._number))
            if "keeper" not in told:
                return told
            self._number = told["keeper"]
            if not self._wait():
                raise LakequeueError(
                    f"broker {command.broker!r}: cannot be removed while the directory changes "
                    "hands; try again"
                )


def move_out(
    ask: Callable[[commands.RemoveBroker], dict[str, Any]],
    connect: Callable[[str], Connection],
    command: commands.RemoveBroker,
    begun: Callable[[], None],
    wait: Callable[[], bool],
    moved: list[MovedOut],
) -> int:
    """Move what is to be moved, and begin the removal; gives the number of its round. connect: to a
    VPN; begun: called when something changes; wait: a little, False: no longer; moved: gets what
    has moved, also before LakequeueError is raised."""
    while True:
        told = ask(command)
        begun()
        if told["round"]:
            return int(told["round"])
        by_vpn: dict[str, list[MovedOut]] = {}
        for move in map(MovedOut._make, told["moves"]):
            by_vpn.setdefault(move.vpn, []).append(move)
        for vpn, moves in by_vpn.items():
            with connect(vpn) as connection:
                _move(connection, moves, moved)
        if not by_vpn and not wait():
            raise LakequeueError(f"broker {command.broker!r}: {told['why']}")


def _move(connection: Connection, moves: list[MovedOut], moved: list[MovedOut]) -> None:
    """Have these moved, all at once. Raises what stands in the way of one, when all are done."""
    asked = [commands.MoveQueue(queue=one.queue, broker=one.broker) for one in moves]
    refusals = []
    for one, refusal in zip(moves, connection.request_all(asked, MOVE_S_MAX), strict=True):
        if refusal is None:
            moved.append(one)
        else:
            refusals.append(refusal)
    if refusals:
        raise refusals[0]


def with_moved(error: LakequeueError, moved: list[MovedOut]) -> LakequeueError:
    """The error of a removal, with what had moved before."""
    if not moved:
        return error
    some = [f"{one.queue!r} of VPN {one.vpn!r} to {one.broker!r}" for one in moved[:NAMES_SHOWN]]
    more = f" and {len(moved) - NAMES_SHOWN} more" if len(moved) > NAMES_SHOWN else ""
    return LakequeueError(f"{error}; moved before, and there now: {', '.join(some)}{more}")
