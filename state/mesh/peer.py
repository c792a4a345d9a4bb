"""Another broker of the home, as one broker knows it. It stands in the broker's header: a step that
says or hears something reads and writes no page besides."""

from __future__ import annotations

import msgspec


class Peer(msgspec.Struct, array_like=True):
    """One end of the two channels between this broker and another. lost: records that were missing
    between two that came; repeated: records that had been heard before."""

    name: str
    said: int = 0  # number of the last record to it
    heard: int = 0  # number of the last record from it
    lost: int = 0
    repeated: int = 0
    knows_routes: bool = False  # it was told which topics queues here take
    went: int = 0  # queues that have moved away from it, as far as it has said
    undecided: int = 0  # messages that it was offered and has not voted on (S5)
    group: str = ""  # the group of brokers that it is in; none: empty
    lost_words: list[list[int]] = []  # [first, last] number from it of steps that are lost (R3)
    knows_ways_out: bool = False  # and which bridges here lead to other homes and VPNs


class Parting(msgspec.Struct, array_like=True):
    """The removal of a broker, as each of them knows it (`parting`)."""

    number: int  # of the broker that is removed
    round: int
    told: bool = False  # the keeper has said so
    quiet: bool = False  # who is removed has said that it has no queue
    said: bool = False  # nothing more is said to it
    closed: bool = False  # it hears nothing of clients
    left: bool = False  # it has said its last words
    heard: list[int] = []  # at who is removed: who has nothing to say; at the keeper: who heard all
    cursor: str = ""  # the last producer that was told of
    aware: list[int] = []  # at who is removed: who grants it nothing more
    begins: bool = False  # at the keeper: local queues go from there before it begins
    ended: bool = False  # at who is removed: it takes no record of captured topics any more
