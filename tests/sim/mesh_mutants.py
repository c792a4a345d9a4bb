"""Planted bugs of the mesh, and of brokers that come and go."""

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
from lakequeue.state.rules.edits import TRANSIT

from .mutants import around, msgspec_replace, mutant


@mutant
def a_word_is_heard_twice() -> Any:
    def heard(original: Any, broker: Any, facts: Any, vpn: str, value: Any) -> Any:
        envelope = channel.mesh_messages.decode(value)
        peer = facts.peers.get(envelope.sender)
        if peer is not None and envelope.number == peer.heard:
            peer.heard -= 1
        return original(broker, facts, vpn, value)

    return around(channel, "hear", heard)


@mutant
def what_was_said_is_not_counted() -> Any:
    def mark(original: Any, self: Mesh) -> None:
        said = {n: peer.said for n, peer in self.facts.peers.items()}
        for peer in self.facts.peers.values():
            peer.said = max(peer.said - 1, 0)
        original(self)
        for n, peer in self.facts.peers.items():
            peer.said = said[n]

    return around(Mesh, "mark", mark)


@mutant
def a_far_refusal_loses_what_was_under_way() -> Any:
    def refused(original: Any, broker: Any, facts: Any, queue: Any, sender: int, said: Any) -> None:
        for one in queue.header.subscriptions:
            rows = list(queue.leases.get(one.number, {}).values())
            change.apply(broker, queue, rows[:1], stand_ins.Event.TRANSFER)
        original(broker, facts, queue, sender, said)

    return around(stand_ins, "_refused", refused)


@mutant
def what_was_stored_far_away_is_sent_again() -> Any:
    def stored(original: Any, broker: Any, facts: Any, queue: Any, sender: int, said: Any) -> None:
        original(broker, facts, queue, sender, msgspec_replace(said, stored=said.stored[:-1]))

    return around(stand_ins, "_stored", stored)


@mutant
def a_lane_that_was_refused_is_not_tried_again() -> Any:
    return around(stand_ins, "retry", lambda original, broker, facts: None)


@mutant
def a_queue_that_moves_forgets_its_last_message() -> Any:
    def take_in(
        original: Any, broker: Any, queue: Any, rows: Any, contents: Any, peer: str
    ) -> None:
        original(broker, queue, rows[:-1] or rows, contents[: len(rows) - 1] or contents, peer)

    return around(moves, "_take_in", take_in)


@mutant
def a_queue_that_moves_counts_deliveries_anew() -> Any:
    def take_in(
        original: Any, broker: Any, queue: Any, rows: Any, contents: Any, peer: str
    ) -> None:
        for row in rows:
            row.deliveries = 0
        original(broker, queue, rows, contents, peer)

    return around(moves, "_take_in", take_in)


@mutant
def a_queue_that_moves_forgets_what_nobody_has_confirmed() -> Any:
    def hand_over(original: Any, broker: Any, facts: Any, queue: Any, one: Any, rows: Any) -> None:
        original(broker, facts, queue, one, rows)
        change.apply(broker, queue, rows, stand_ins.Event.TRANSFER)

    return around(moves, "_hand_over", hand_over)


@mutant
def what_is_said_again_of_a_moving_queue_is_stored_again() -> Any:
    return patch.object(moves, "REPEATED", "")


@mutant
def what_is_lost_of_a_moving_queue_is_not_said_again() -> Any:
    def hand_over(original: Any, broker: Any, facts: Any, queue: Any, *rest: Any) -> None:
        if (
            queue.header.stands_for
            or moves.key_of(broker.vpn_of(queue), queue.definition.name) not in facts.leaving
        ):
            original(broker, facts, queue, *rest)

    return around(stand_ins, "_hand_over_again", hand_over)


@mutant
def a_moving_queue_is_not_asked_for_again() -> Any:
    return around(moves, "expect_again", lambda original, *said: None)


@mutant
def a_move_does_not_go_on_when_it_is_confirmed() -> Any:
    return around(stand_ins, "resume", lambda original, *given: None)


@mutant
def what_fails_at_another_broker_takes_all_back() -> Any:
    """All that is under way there, which is stored over there as well."""

    def not_granted(
        original: Any, broker: Any, facts: Any, queue: Any, sender: int, said: Any
    ) -> None:
        for one in list(queue.header.subscriptions):
            if one.broker == sender:
                rows = list(queue.leases.get(one.number, {}).values())
                stand_ins._take_back(broker, facts, queue, one, rows, said.why)
        queue.wanted = True
        broker.touch(queue)

    return around(stand_ins, "_not_granted", not_granted)


@mutant
def what_failed_at_another_broker_is_not_counted() -> Any:
    """So its consumers seem to have room for less and less."""

    def failed(original: Any, *said: Any) -> None:
        with patch.object(handover, "count_come", lambda *counted: None):
            original(*said)

    return around(handover, "failed", failed)


@mutant
def what_is_said_again_is_stored_again() -> Any:
    """The answer to it was lost."""
    return around(handover, "_comes_once", lambda original, queue, row, waiting: False)


@mutant
def what_is_delayed_is_stored_again() -> Any:
    def comes_once(original: Any, queue: Any, row: Any, waiting: bool) -> bool:
        transit = (row.extras or {}).get(TRANSIT, {})
        return bool(original(queue, row, waiting)) and "until" not in transit

    return around(handover, "_comes_once", comes_once)


@mutant
def a_mark_leaves_out_used_room() -> Any:
    """A loaded broker believes that another has more room than the live one did."""

    def count_come(original: Any, facts: Any, *rest: Any) -> None:
        before = facts.credits_changed
        original(facts, *rest)
        facts.credits_changed = before

    return around(handover, "count_come", count_come)


@mutant
def changes_wait_without_bound() -> Any:
    return around(Keeper, "check_room", lambda original, self: None)


@mutant
def a_missing_word_is_not_noticed() -> Any:
    return around(Mesh, "_missed", lambda original, self, sender, number: None)


@mutant
def a_word_that_nobody_can_read_is_not_missed() -> Any:
    def ask(original: Any, self: Mesh, sender: int) -> None:
        self.facts.peers[sender].skipped = []

    return around(Mesh, "_ask_for_skipped", ask)


@mutant
def what_comes_again_over_a_bridge_is_not_answered_again() -> Any:
    return around(far_end, "_answered", lambda original, *said: None)


@mutant
def what_comes_again_over_a_bridge_is_taken_again() -> Any:
    def is_next(original: Any, broker: Any, vpn: str, arrival: Any, said: Any) -> bool:
        is_next = original(broker, vpn, arrival, said)
        home = arrival.homes[said.epoch]
        return bool(is_next or said.send.number == home.heard)

    return around(far_end, "_accept_number", is_next)


@mutant
def a_missing_number_of_a_bridge_is_passed_over() -> Any:
    def is_next(original: Any, broker: Any, vpn: str, arrival: Any, said: Any) -> bool:
        home = arrival.homes.get(said.epoch)
        if home is not None:
            home.heard = max(home.heard, said.send.number - 1)
        return bool(original(broker, vpn, arrival, said))

    return around(far_end, "_accept_number", is_next)


@mutant
def a_bridge_that_is_made_again_has_the_numbers_of_its_broker_alone() -> Any:
    """Another broker's may be lower."""
    return patch.object(Link, "number", property(lambda self: self.queue))


@mutant
def words_behind_a_lost_one_are_taken() -> Any:
    def missed(original: Any, self: Mesh, sender: int, number: int) -> None:
        original(self, sender, number)
        self.facts.peers[sender].is_behind = False

    return around(Mesh, "_missed", missed)


@mutant
def a_removed_broker_is_heard_again() -> Any:
    def know(original: Any, self: Any, broker: Broker) -> None:
        original(self, broker)
        rehome.facts_of(broker).removed = []

    return around(rehome._Rehoming, "_know", know)


# ---------------------------------------------------------------- brokers come and go


@mutant
def producers_of_a_removed_broker_are_forgotten() -> Any:
    def leave_rest(original: Any, self: Any, leaving: Broker) -> None:
        leaving.producers.clear()
        original(self, leaving)

    return around(rehome._Rehoming, "_leave_rest", leave_rest)


@mutant
def what_waits_for_a_queue_stays_where_it_was() -> Any:
    return around(rehome._Rehoming, "_redirect", lambda original, self, holder, to: None)


# ---------------------------------------------------------------- a loaded broker differs


@mutant
def counts_for_placing_queues_are_stale() -> Any:
    """A queue has moved since."""

    def change(original: Any, self: Any, vpn: str, name: str, before: Any, after: Any) -> None:
        moved = before is not None and after is not None and before.hosts != after.hosts
        original(self, vpn, name, before, before if moved else after)

    return around(QueuePlacement, "change", change)
