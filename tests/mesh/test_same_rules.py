"""The rules of several brokers, on brokers that are clients of their neighbours (H4, Q5, L*, R6).

The tests are those of `rules`; here they run on `mesh`. What M1 to M4 say in another way than the
brokers before did, and what is still to be built, is named with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mortal_mesh import MortalMeshBroker
from rules import mortal, test_all_owners, test_groups, test_mesh_ownership

AT_REST = "M4: brokers are added at rest"
ASKED = "H4: who asks for a message has room for it, so its quota is not asked again"
RECEIPT = "M2: a message of a GroupLocalQueue waits for its initial owner where it entered"
AHEAD = "H4: room is told ahead, so a message may cross that finds it taken"
ELSEWHERE = "M6: messages are moved to a queue of another broker as dead ones are"
OTHERWISE = {
    "test_H4_a_host_that_comes_later_is_asked_too": AT_REST,
    "test_H4_where_a_host_has_no_such_queue_what_was_granted_returns": AT_REST,
    "test_Q5_a_broker_that_is_added_hosts_the_queues_of_its_group": AT_REST,
    "test_S3_what_has_no_room_there_returns_to_its_place": ASKED,
    "test_H4_S3_where_the_initial_owner_has_no_room_a_message_stays_where_it_entered": RECEIPT,
    "test_B3_L13_a_consumer_speaks_to_its_broker_when_its_queue_has_one_more": AT_REST,
    "test_R6_L13_what_moves_because_something_was_removed_is_meant_too": AHEAD,
    "test_R6_moves_within_a_broker_are_said_to_be_so": ELSEWHERE,
    "test_Q9_a_queue_stays_what_it_is": "the refusal is worded by the definition alone",
}

for module in (test_mesh_ownership, test_groups, test_all_owners):
    for name, test in vars(module).items():
        if name.startswith("test_") and name not in OTHERWISE:
            globals()[name] = test
del module, name, test


@pytest.fixture(autouse=True)
def of_neighbours() -> Iterator[None]:
    """Brokers are those of `mesh`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mortal.MortalEngine, "BROKER", MortalMeshBroker)
        yield
