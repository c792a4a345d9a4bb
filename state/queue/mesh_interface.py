"""What a broker asks of whoever works with it from above: other brokers, and bridges (`mesh`).

The core knows none. It says where it wants to be helped, and without help it is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ...protocol.messages import Records
from ..limits import Budget
from ..storage.row import Row
from ..storage.spool import Content
from .header import Subscription, Task
from .queue import Queue

LATER = object()  # the answer to a command that another broker gives


class MeshInterface(Protocol):
    """Other brokers, as one of them sees them."""

    @property
    def commands(self) -> Mapping[type, Callable[[str, Any], Any]]:
        """Commands that concern other brokers too: (VPN, command) → answer."""
        ...

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of all brokers of the home."""
        ...

    @property
    def groups(self) -> Mapping[str, str]:
        """The groups of those that are in one."""
        ...

    @property
    def keeps_directory(self) -> bool:
        """Whether they agree on where queues are, and say it."""
        ...

    def takes(self, vpn: str, command: Any) -> bool:
        """Whether a command about a queue is for another broker; then it has gone there. Raises
        `Moved` where its sender is to ask there."""
        ...

    def leave(self, queue: Queue, task: Task, budget: Budget) -> bool:
        """A queue goes to another broker, as far as the budget allows; whether it has left."""
        ...

    def later(self, queue: Queue, command: Any, ids: list[int]) -> int:
        """A command means messages that are on their way; on how many of them it is carried out
        by whoever has them next."""
        ...

    def hear(self, records: Records, skipped: Mapping[tuple[str, int, int], str]) -> None:
        """What they say."""
        ...

    def target_of(self, vpn: str, to: str) -> str:
        """The topic of a destination that is no queue here."""
        ...

    def with_others(self, vpn: str, to: str, own: list[Queue]) -> list[Queue]:
        """The queues in which a message with this destination is stored here, where these are the
        own ones that take it: others' have stand-ins."""
        ...

    def stand_in(self, vpn: str, name: str) -> Queue | None:
        """The queue in which messages wait here for one of another broker; None: there is none."""
        ...

    def wait(self, queue: Queue, rows: list[Row], to: str) -> None:
        """Messages that were published to this destination are about to wait in a stand-in."""
        ...

    def left(self, queue: Queue, rows: list[Row]) -> None:
        """Messages have left a stand-in, whatever the reason."""
        ...

    def of_engine(self, queue: Queue) -> str:
        """What a stand-in is, for clients that want more than to look at it, purge it, or shut it
        down."""
        ...

    def lanes(self, vpn: str) -> list[dict[str, Any]]:
        """What waits here for queues of other brokers, for people."""
        ...

    def of_record(self, vpn: str, topic: str, partition: int, own: list[Queue]) -> list[Queue]:
        """The queues in which this broker stores a record of a plain topic, where these are the own
        ones that take it, and have not had it (M5, S5)."""
        ...

    def why_waiting(self, queue: Queue) -> str | None:
        """Why messages wait in a stand-in, where something holds them back."""
        ...

    def reads(self, queue: Queue, partition: int) -> bool:
        """Whether this broker reads plain records of this partition for a queue (M5)."""
        ...

    def send(
        self, queue: Queue, subscription: Subscription, rows: list[Row], contents: list[Content]
    ) -> None:
        """Messages go to the broker whose subscription it is."""
        ...

    def speak(self) -> None:
        """The step ends: say what is to be said."""
        ...

    def deadline(self) -> int:
        """When a step is wanted, epoch ms, or NEVER."""
        ...

    def mark(self) -> None:
        """Write what changed since the last mark."""
        ...
