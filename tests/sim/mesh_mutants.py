"""Planted bugs of the mesh, and of changes of brokers."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from lakequeue.mesh import channel, failures, handover, moves, rehome, stand_ins
from lakequeue.mesh.bridges import far_end
from lakequeue.mesh.bridges.bridge_facts import Link
from lakequeue.mesh.keeper import Keeper
from lakequeue.mesh.mesh import Mesh
from lakequeue.mesh.queue_placement import QueuePlacement
from lakequeue.state.queue import change
from lakequeue.state.queue.broker import Broker

from .mutants import msgspec_replace, never_done, planted, with_value

never_done("a_refused_lane_is_not_retried", stand_ins, "retry")
never_done("a_confirmed_move_does_not_continue", stand_ins, "resume")
never_done("changes_wait_without_bound", Keeper, "check_room")
never_done("a_record_that_failed_is_not_kept", failures, "keep")
never_done("records_that_were_left_out_are_not_sent", failures, "send_left_out")
never_done("a_stand_in_that_failed_stays_out_of_service", stand_ins, "put_back")
never_done("records_overtake_one_that_failed", failures, "must_wait", False)
never_done("a_forwarded_command_that_failed_is_not_answered", failures, "answer_malformed")
never_done("a_move_that_failed_before_it_began_does_not_end", moves, "failed")
never_done("a_missing_message_between_brokers_is_not_noticed", channel, "_ask")
never_done("a_repetition_repeats_nothing", channel, "_repeat")
never_done("a_repetition_over_a_bridge_is_not_answered", far_end, "_answered")
never_done("messages_waiting_for_a_queue_are_not_redirected", rehome._Rehoming, "_redirect")
# Those of another broker may be lower.
with_value(
    "a_recreated_bridge_ignores_the_numbers_of_other_brokers",
    Link, "number", property(lambda self: self.queue),
)  # fmt: skip


@planted(channel, "hear")
def a_message_between_brokers_is_read_twice(
    original: Any, broker: Any, facts: Any, vpn: str, value: Any
) -> Any:
    envelope = channel.mesh_messages.decode(value)
    peer = facts.peers.get(envelope.sender)
    if peer is not None and envelope.number == peer.heard and envelope.kind != "sync":
        peer.heard -= 1
    return original(broker, facts, vpn, value)


@planted(channel, "hear")
def messages_after_a_lost_one_are_accepted(
    original: Any, broker: Any, facts: Any, vpn: str, value: Any
) -> Any:
    envelope = channel.mesh_messages.decode(value)
    peer = facts.peers.get(envelope.sender)
    if peer is not None and envelope.kind != "sync":
        peer.heard = max(peer.heard, envelope.number - 1)
    return original(broker, facts, vpn, value)


@planted(channel, "_forget_confirmed")
def one_message_more_is_forgotten_than_confirmed(
    original: Any, broker: Any, peer: Any, number: int
) -> None:
    original(broker, peer, number + 1)


@planted(stand_ins, "with_messages")
def a_repetition_lacks_the_last_message_of_a_queue(
    original: Any, broker: Any, queue: Any, to: int, message: Any, ids: Any, budget: Any
) -> Any:
    return original(broker, queue, to, message, ids[:-1], budget)


@planted(failures, "begin_again")
def a_channel_that_failed_stays_stopped(original: Any, broker: Any, facts: Any) -> Any:
    stopped = [peer for peer in facts.peers.values() if peer.is_stopped]
    found = original(broker, facts)
    for peer in stopped:
        peer.is_stopped = True
    return found


@planted(failures, "leave_out")
def a_record_that_is_left_out_is_lost(
    original: Any, facts: Any, queue: Any, to: int, sent: Any
) -> Any:
    found = original(facts, queue, to, sent)
    del facts.left_out[queue.number][-1]
    return found


@planted(Mesh, "mark")
def a_mark_does_not_count_the_last_message_to_a_broker(original: Any, self: Mesh) -> None:
    said = {n: peer.said for n, peer in self.facts.peers.items()}
    for peer in self.facts.peers.values():
        peer.said = max(peer.said - 1, 0)
    original(self)
    for n, peer in self.facts.peers.items():
        peer.said = said[n]


@planted(stand_ins, "_refused")
def a_far_refusal_loses_a_message_in_transit(
    original: Any, broker: Any, facts: Any, queue: Any, sender: int, said: Any
) -> None:
    for one in queue.header.subscriptions:
        rows = list(queue.leases.get(one.number, {}).values())
        change.apply(broker, queue, rows[:1], stand_ins.Event.TRANSFER)
    original(broker, facts, queue, sender, said)


@planted(stand_ins, "_stored")
def a_message_stored_far_away_is_sent_again(
    original: Any, broker: Any, facts: Any, queue: Any, sender: int, said: Any
) -> None:
    original(broker, facts, queue, sender, msgspec_replace(said, stored=said.stored[:-1]))


@planted(handover, "enter_in_place")
def a_moving_queue_loses_messages(original: Any, broker: Any, queue: Any, row: Any) -> None:
    if row.id % 2:
        original(broker, queue, row)


@planted(handover, "enter_in_place")
def a_moving_queue_counts_deliveries_anew(original: Any, broker: Any, queue: Any, row: Any) -> None:
    row.deliveries = 0
    original(broker, queue, row)


@planted(moves, "_hand_over")
def a_moving_queue_forgets_unconfirmed_messages(
    original: Any, broker: Any, facts: Any, queue: Any, one: Any, rows: Any
) -> None:
    original(broker, facts, queue, one, rows)
    change.apply(broker, queue, rows, stand_ins.Event.TRANSFER)


@planted(stand_ins, "_not_granted")
def a_failure_at_another_broker_takes_all_messages_back(
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
def failures_at_another_broker_are_not_counted(original: Any, *said: Any) -> None:
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
def a_repetition_over_a_bridge_is_accepted(
    original: Any, broker: Any, vpn: str, arrival: Any, said: Any
) -> bool:
    is_next = original(broker, vpn, arrival, said)
    home = arrival.homes[said.epoch]
    return bool(is_next or said.send.number == home.heard)


@planted(far_end, "_accept_number")
def a_missing_number_of_a_bridge_is_skipped(
    original: Any, broker: Any, vpn: str, arrival: Any, said: Any
) -> bool:
    home = arrival.homes.get(said.epoch)
    if home is not None:
        home.heard = max(home.heard, said.send.number - 1)
    return bool(original(broker, vpn, arrival, said))


@planted(rehome._Rehoming, "_know")
def messages_of_a_removed_broker_are_accepted(original: Any, self: Any, broker: Broker) -> None:
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
