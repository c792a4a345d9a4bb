"""The core's questions about other brokers and bridges, with the answers of a broker that has
neither.

The core does not import `mesh`. It asks this class where other brokers matter, and `mesh` answers
in its place once there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...protocol.messages import Records
from ..limits import Budget
from ..storage.blocks import Content
from ..storage.row import NEVER, Row
from .header import Subscription, Task
from .queue import Queue

LATER = object()  # the result of a command that is answered later, or by another broker


class MeshInterface:
    """The answers of a broker without others."""

    @property
    def commands(self) -> Mapping[type, Callable[[str, Any], Any]]:
        """The commands that also concern other brokers, each with its handler: (VPN, command) →
        answer."""
        return {}

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the home's brokers; empty if the home has only this one."""
        return ()

    @property
    def groups(self) -> Mapping[str, str]:
        """The group of each broker that is in one."""
        return {}

    @property
    def keeps_directory(self) -> bool:
        """Whether the brokers keep the directory of queues themselves."""
        return False

    # ------------------------------------------------------------ a step

    def engine_begins(self) -> None:
        """Write into the directory again which ends of bridges are here, for the engine, and which
        queues have several hosts, for clients. Read records again that failed."""

    def hear(self, records: Records, skipped: Mapping[tuple[str, int, int], str]) -> None:
        """Read records from other brokers."""
        assert not records, "a record from another broker, but this broker has no mesh"

    def speak(self) -> None:
        """Write the step's records to other brokers."""

    def deadline(self) -> int:
        """When the mesh needs a step, epoch ms, or NEVER."""
        return NEVER

    def mark(self) -> None:
        """Write what has changed since the last mark."""

    # ------------------------------------------------------------ queues elsewhere

    def target_of(self, vpn: str, to: str) -> str:
        """The topic of a destination that is not a queue of this broker."""
        return to

    def with_others(self, vpn: str, to: str, topic: str, own: list[Queue]) -> list[Queue]:
        """This broker's queues that store a message with this destination. topic: of the
        destination, unless it is exactly one queue; own: the matching queues here; `mesh` adds
        stand-ins for queues at other brokers."""
        return own

    def of_record(self, vpn: str, topic: str, partition: int, own: list[Queue]) -> list[Queue]:
        """This broker's queues that store a record of a plain topic. own: the matching queues here
        that have not taken it before (M5, S5)."""
        return own

    def reads(self, queue: Queue, partition: int) -> bool:
        """Whether this broker reads plain records of this partition for a queue (M5)."""
        return True

    def forward_command(self, vpn: str, command: Any) -> bool:
        """Forward a command if its queue is at another broker; returns whether it did. Raises
        `Moved` if the sender must ask there itself."""
        return False

    def stand_in(self, vpn: str, name: str) -> Queue | None:
        """The stand-in for a queue at another broker, or None."""
        return None

    def lanes(self, vpn: str) -> list[dict[str, Any]]:
        """The messages waiting here for queues of other brokers, for people."""
        return []

    # ------------------------------------------------------------ stand-ins, messages that cross

    def prepare_stand_in(self, queue: Queue, rows: list[Row], to: str) -> None:
        """Prepare rows that are about to enter a stand-in. to: their published destination."""

    def left(self, queue: Queue, rows: list[Row]) -> None:
        """Note that messages have left a stand-in, for whatever reason."""

    def of_engine(self, queue: Queue) -> str:
        """Describe a stand-in, as part of a sentence that refuses a command."""
        raise NotImplementedError

    def why_waiting(self, queue: Queue) -> str | None:
        """Why messages wait in a stand-in, or None."""
        return None

    def send(
        self, queue: Queue, subscription: Subscription, rows: list[Row], contents: list[Content]
    ) -> None:
        """Send messages to the broker that the subscription belongs to."""
        raise NotImplementedError

    def forward_for_moving(self, queue: Queue, command: Any, ids: list[int]) -> int:
        """Forward a command for messages that are moving to another broker; returns for how many
        that broker will carry it out."""
        raise NotImplementedError

    def leave(self, queue: Queue, task: Task, budget: Budget) -> bool:
        """Go on moving a queue to another broker, within the budget; returns whether it is done."""
        raise NotImplementedError
