"""Planted bugs of the mesh, and of changes of brokers."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from lakequeue.mesh import channel, handover, moves, rehome, stand_ins
from lakequeue.mesh.bridges import far_end
from lakequeue.mesh.bridges.bridge_facts import Link
from lakequeue.mesh.keeper import Keeper
from lakequeue.mesh.mesh import Mesh
from lakequeue.mesh.queue_placement import QueuePlacement
from lakequeue.state.queue import change
from lakequeue.state.queue.broker import Broker

from .mutants import msgspec_replace, never_done, planted, with_value

never_done("a_lane_that_was_refused_is_not_tried_again", stand_ins, "retry")
never_done("a_move_does_not_go_on_when_it_is_confirmed", stand_ins, "resume")
never_done("changes_wait_without_bound", Keeper, "check_room")
never_done("a_missing_word_is_not_noticed", channel, "_ask")
never_done("a_repetition_repeats_nothing", channel, "_repeat")
never_done("what_comes_again_over_a_bridge_is_not_answered_again", far_end, "_answered")
never_done("what_waits_for_a_queue_stays_where_it_was", rehome._Rehoming, "_redirect")
# Those of another broker may be lower.
with_value(
    "a_bridge_that_is_made_again_has_the_numbers_of_its_broker_alone",
    Link, "number", property(lambda self: self.queue),
)  # fmt: skip


@planted(channel, "hear")
def a_word_is_heard_twice(original: Any, broker: Any, facts: Any, vpn: str, value: Any) -> Any:
    envelope = channel.mesh_messages.decode(value)
    peer = facts.peers.get(envelope.sender)
    if peer is not None and envelope.number == peer.heard and envelope.kind != "sync":
        peer.heard -= 1
    return original(broker, facts, vpn, value)


@planted(channel, "hear")
def words_behind_a_lost_one_are_taken(
    original: Any, broker: Any, facts: Any, vpn: str, value: Any
) -> Any:
    envelope = channel.mesh_messages.decode(value)
    peer = facts.peers.get(envelope.sender)
    if peer is not None and envelope.kind != "sync":
        peer.heard = max(peer.heard, envelope.number - 1)
    return original(broker, facts, vpn, value)


@planted(channel, "_forget_confirmed")
def one_more_is_forgotten_than_was_confirmed(
    original: Any, broker: Any, peer: Any, number: int
) -> None:
    original(broker, peer, number + 1)


@planted(stand_ins, "with_messages")
def what_is_said_again_of_a_queue_lacks_its_last_message(
    original: Any, broker: Any, to: int, message: Any, ids: Any, budget: Any
) -> Any:
    return original(broker, to, message, ids[:-1], budget)


@planted(Mesh, "mark")
def what_was_said_is_not_counted(original: Any, self: Mesh) -> None:
    said = {n: peer.said for n, peer in self.facts.peers.items()}
    for peer in self.facts.peers.values():
        peer.said = max(peer.said - 1, 0)
    original(self)
    for n, peer in self.facts.peers.items():
        peer.said = said[n]


@planted(stand_ins, "_refused")
def a_far_refusal_loses_what_was_under_way(
    original: Any, broker: Any, facts: Any, queue: Any, sender: int, said: Any
) -> None:
    for one in queue.header.subscriptions:
        rows = list(queue.leases.get(one.number, {}).values())
        change.apply(broker, queue, rows[:1], stand_ins.Event.TRANSFER)
    original(broker, facts, queue, sender, said)


@planted(stand_ins, "_stored")
def what_was_stored_far_away_is_sent_again(
    original: Any, broker: Any, facts: Any, queue: Any, sender: int, said: Any
) -> None:
    original(broker, facts, queue, sender, msgspec_replace(said, stored=said.stored[:-1]))


@planted(handover, "enter_in_place")
def a_queue_that_moves_forgets_a_message(original: Any, broker: Any, queue: Any, row: Any) -> None:
    if row.id % 2:
        original(broker, queue, row)


@planted(handover, "enter_in_place")
def a_queue_that_moves_counts_deliveries_anew(
    original: Any, broker: Any, queue: Any, row: Any
) -> None:
    row.deliveries = 0
    original(broker, queue, row)


@planted(moves, "_hand_over")
def a_queue_that_moves_forgets_what_nobody_has_confirmed(
    original: Any, broker: Any, facts: Any, queue: Any, one: Any, rows: Any
) -> None:
    original(broker, facts, queue, one, rows)
    change.apply(broker, queue, rows, stand_ins.Event.TRANSFER)


@planted(stand_ins, "_not_granted")
def what_fails_at_another_broker_takes_all_back(
    original: Any, broker: Any, facts: Any, queue: Any, sender: int, said: Any
) -> None:
    """Everything in transit to it comes back, also messages stored there."""
    for one in list(queue.header.subscriptions):
        if one.broker == sender:
            rows = list(queue.leases.get(one.number, {}).values())
            stand_ins._take_back(broker, queue, one, rows, said.why)
    queue.wanted = True
    broker.touch(queue)


@planted(handover, "failed")
def what_failed_at_another_broker_is_not_counted(original: Any, *said: Any) -> None:
    """So its consumers seem to have room for less and less."""
    with patch.object(handover, "count_come", lambda *counted: None):
        original(*said)


@planted(handover, "count_come")
def a_mark_leaves_out_used_room(original: Any, facts: Any, *rest: Any) -> None:
    """A loaded broker believes that another has more room than the live one did."""
    before = facts.credits_changed
    original(facts, *rest)
    facts.credits_changed = before


@planted(far_end, "_accept_number")
def what_comes_again_over_a_bridge_is_taken_again(
    original: Any, broker: Any, vpn: str, arrival: Any, said: Any
) -> bool:
    is_next = original(broker, vpn, arrival, said)
    home = arrival.homes[said.epoch]
    return bool(is_next or said.send.number == home.heard)


@planted(far_end, "_accept_number")
def a_missing_number_of_a_bridge_is_passed_over(
    original: Any, broker: Any, vpn: str, arrival: Any, said: Any
) -> bool:
    home = arrival.homes.get(said.epoch)
    if home is not None:
        home.heard = max(home.heard, said.send.number - 1)
    return bool(original(broker, vpn, arrival, said))


@planted(rehome._Rehoming, "_know")
def a_removed_broker_is_heard_again(original: Any, self: Any, broker: Broker) -> None:
    original(self, broker)
    rehome.facts_of(broker).removed = []


# ---------------------------------------------------------------- changes of brokers


@planted(rehome._Rehoming, "_leave_rest")
def producers_of_a_removed_broker_are_forgotten(original: Any, self: Any, leaving: Broker) -> None:
    leaving.producers.clear()
    original(self, leaving)


# ---------------------------------------------------------------- a loaded broker differs


@planted(QueuePlacement, "change")
def counts_for_placing_queues_are_stale(
    original: Any, self: Any, vpn: str, name: str, before: Any, after: Any
) -> None:
    """A queue has moved since."""
    moved = before is not None and after is not None and before.hosts != after.hosts
    original(self, vpn, name, before, before if moved else after)
