"""Everything that brokers say to each other, and what is done when it is heard.

A handler gets (broker, number of the peer that says it, what it says). It may take it as given that
each thing said comes once, in the order in which that peer said it. What it raises as a sentence
(`LakequeueError`, `ValueError`) is refused and must have changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...protocol.bridges import BridgeCommand, BridgeReceipt, BridgeSend
from ...protocol.carrying import (
    BridgesKept,
    Carried,
    Carry,
    Entries,
    Keeps,
    KnowsKeeper,
    PassMessage,
    PassOn,
    QueueCaptures,
    SayDefinition,
    SaySinceDefined,
    SinceDefined,
)
from ...protocol.dead_letters import DeadCounted, DeadLetters, DeadTaken, GoBack, WentBack
from ...protocol.farewells import (
    Aware,
    Bequest,
    Farewell,
    HandIn,
    HeardLast,
    LastCounts,
    LastRead,
    Left,
    Part,
    Quiet,
    ReadTo,
    Stays,
)
from ...protocol.granting import (
    Drained,
    Grant,
    Here,
    Hold,
    Inherited,
    Line,
    Release,
    Released,
    TakenOver,
    Want,
)
from ...protocol.mesh import Said
from ...protocol.offering import Offer, RoutesWent, TopicRoutes, Verdict, Vote
from ...protocol.queue_moves import Adopted, Arrive, Expected, HandOver, QueueTakes, TrailReads
from ...protocol.sharing import PassRecord, TakeFrom
from ..bridges.bridge_keeper import hear_command
from ..bridges.crossing import take_in
from ..bridges.far import refuse_all
from ..bridges.link import receipt
from ..bridges.trails import hear_takes
from . import (
    barrier_moves,
    barriers,
    carried_out,
    dead_arrivals,
    dead_bringing,
    dead_counts,
    emptying,
    going_back,
    keeper,
    keepership,
    known_places,
    last_reading,
    newcomers,
    ownership,
    parting,
    partitions,
    passing,
    queue_moving,
    taking_back,
    topic_routes,
    verdicts,
    voting,
)

Handler = Callable[[Any, int, Any], None]

KINDS: dict[str, tuple[type[Said], Handler]] = {
    "bridge_send": (BridgeSend, take_in),
    "bridge_receipt": (BridgeReceipt, receipt),
    "bridge_command": (BridgeCommand, hear_command),
    "arrive": (Arrive, queue_moving.arrive),
    "expected": (Expected, queue_moving.expected),
    "hand_over": (HandOver, queue_moving.handed_over),
    "queue_takes": (QueueTakes, hear_takes),
    "trail_reads": (TrailReads, keeper.hear_reads),
    "adopted": (Adopted, keeper.hear_adopted),
    "carry": (Carry, carried_out.hear_carry),
    "carried": (Carried, carried_out.hear_carried),
    "entries": (Entries, known_places.hear_entries),
    "bridges_kept": (BridgesKept, keepership.hear_bridges),
    "keeps": (Keeps, keepership.hear_keeps),
    "knows_keeper": (KnowsKeeper, keepership.hear_knows),
    "pass_message": (PassMessage, passing.hear_message),
    "pass_record": (PassRecord, partitions.hear_record),
    "take_from": (TakeFrom, partitions.hear_taken),
    "pass_on": (PassOn, keeper.hear_pass_on),
    "say_definition": (SayDefinition, keeper.say_definition),
    "say_since_defined": (SaySinceDefined, newcomers.answer),
    "since_defined": (SinceDefined, newcomers.hear),
    "queue_captures": (QueueCaptures, keeper.hear_captures),
    "here": (Here, ownership.joined),
    "want": (Want, ownership.wanted),
    "grant": (Grant, ownership.granted),
    "taken": (TakenOver, ownership.taken),
    "dead_letters": (DeadLetters, dead_arrivals.arrived),
    "dead_taken": (DeadTaken, dead_bringing.taken),
    "dead_counted": (DeadCounted, dead_counts.counted),
    "go_back": (GoBack, taking_back.take_back),
    "went_back": (WentBack, going_back.went_back),
    "line": (Line, barriers.hear_line),
    "hold": (Hold, barriers.hold),
    "drained": (Drained, barriers.drained),
    "release": (Release, barriers.release),
    "released": (Released, barriers.released),
    "inherited": (Inherited, barrier_moves.inherited),
    "topic_routes": (TopicRoutes, topic_routes.hear_routes),
    "routes_went": (RoutesWent, topic_routes.hear_went),
    "offer": (Offer, voting.hear_offer),
    "vote": (Vote, verdicts.hear_vote),
    "verdict": (Verdict, voting.hear_verdict),
    "part": (Part, parting.hear_part),
    "aware": (Aware, parting.hear_aware),
    "read_to": (ReadTo, last_reading.hear_read_to),
    "last_read": (LastRead, last_reading.hear_last_read),
    "hand_in": (HandIn, emptying.handed_in),
    "last_counts": (LastCounts, barrier_moves.hear_last_counts),
    "stays": (Stays, parting.hear_stays),
    "quiet": (Quiet, parting.hear_quiet),
    "farewell": (Farewell, parting.hear_farewell),
    "bequest": (Bequest, parting.hear_bequest),
    "left": (Left, parting.hear_left),
    "heard_last": (HeardLast, parting.hear_heard_last),
}

# What is answered where a record of this kind was refused: who said it would wait for ever.
REFUSED: dict[str, tuple[type[Said], Handler]] = {
    "bridge_send": (BridgeSend, refuse_all),
    "dead_letters": (DeadLetters, dead_arrivals.send_back),
    "go_back": (GoBack, taking_back.refuse_all),
    "offer": (Offer, voting.refuse_offer),
    "vote": (Vote, verdicts.refuse_vote),
    "verdict": (Verdict, voting.drop_offer),
}
