"""The rules hold on both cores: `state/`, and the one on live objects.

What is named in `BOTH` runs on each. `LAKEQUEUE_JUDGE=live` runs all on the live one, but for tests
with several brokers, which it does not have here, and those that look inside the old one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from fuzz import runner
from lakequeue.core import Batch, Broker, Home, check, step
from lakequeue.memory.in_process import MemoryEngine
from lakequeue.memory.live_broker import LiveBroker, limits_of
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.state import Home as OldHome
from lakequeue.state import Limits as OldLimits
from rules import steps
from rules.harness import ON_REFERENCE

LIVE, PAGES = "live", "pages"
# Modules, and tests of others.
BOTH = {
    "test_acks", "test_any_value", "test_backlog", "test_durable", "test_fairness",
    "test_filter_budget",
    "test_fuzz", "test_leases", "test_order", "test_producer_starts", "test_queues",
    "test_redrive", "test_scenarios", "test_told", "test_waiting", "test_what_comes_in",
    "test_L12_X4_a_delay_and_a_ttl_count_from_when_kafka_took_the_message",
    "test_L_B_F_O_X_Q9_batches", "test_L_B_F_O_X_short_walks",
}  # fmt: skip

# Modules and tests that look inside the old core: into its pages, or at its functions.
OF_PAGES = {
    "test_C2_the_entries_are_bounded",
    "test_L8_an_administrator_changes_what_was_seen_only",
    "test_L8_who_has_looked_at_nothing_names_no_home",
    "test_L9_a_queue_that_is_deleted_leaves_no_page_of_early_acks",
    "test_L9_a_step_costs_what_it_changes_however_many_acks_wait",
    "test_L9_early_acks_of_an_older_state_are_kept_on",
    "test_L9_one_ack_of_very_many_ids_does_not_become_many",
    "test_L9_one_more_that_waits_costs_a_few_pages",
    "test_O3_the_header_does_not_grow_with_the_barriers_that_wait",
    "test_Q2_routing_compares_a_topic_with_few_subscriptions",
    "test_S1_the_message_is_stored_once_for_all",
    "test_a_step_costs_the_same_however_long_the_row_is",
    "test_cost", "test_idle_queues", "test_isolation", "test_runs",
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On which core a module's tests run."""
    name, module = metafunc.function.__name__, metafunc.module.__name__.rpartition(".")[2]
    inside = not OF_PAGES.isdisjoint((name, module))
    live = pytest.param(LIVE, marks=pytest.mark.skipif(inside, reason="of the old core"))
    if os.environ.get("LAKEQUEUE_JUDGE") == LIVE:
        metafunc.parametrize("core", [live], indirect=True, scope="module")
    elif not ON_REFERENCE and not BOTH.isdisjoint((name, module)):
        both = [PAGES] if inside else [PAGES, LIVE]
        metafunc.parametrize("core", both, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def core(request: pytest.FixtureRequest) -> Iterator[str]:
    """The core that the test runs on."""
    name: str = getattr(request, "param", PAGES)
    with pytest.MonkeyPatch.context() as patch:
        if name == LIVE:
            _use_live(patch)
        else:
            patch.setattr(MemoryEngine, "BROKER", MemoryBroker)
        yield name


def _use_live(patch: pytest.MonkeyPatch) -> None:
    """Engines in memory, `Steps` and `Fuzz` run on the live core."""
    made = MemoryEngine._broker

    def broker(engine: MemoryEngine, name: str, number: int) -> Any:
        if number and engine.BROKER is LiveBroker:
            pytest.skip("several brokers")
        return made(engine, name, number)

    patch.setattr(MemoryEngine, "BROKER", LiveBroker)
    patch.setattr(MemoryEngine, "_broker", broker)
    for module in (steps, runner):
        patch.setattr(module, "step", _step)
        patch.setattr(module, "check", _check)


def _step(
    store: Any, batch: Any, now: int, home: OldHome | None = None, limits: OldLimits | None = None
) -> list[Any]:
    """A step, and a mark behind it. What the store holds is loaded when it is a new one."""
    known = getattr(store, "live", None)
    if known is None or known[1:] != (home, limits):
        own = Home() if home is None else Home(home.name, home.number, home.epoch, home.secret)
        broker = Broker.load(store, own, limits_of(limits or OldLimits()))
        known = store.live = broker, home, limits
    said = step(known[0], Batch(batch.commands, batch.publishes), now)
    known[0].mark()
    return said


def _check(store: Any, now: int, limits: OldLimits) -> None:
    check(Broker.load(store, Home(), limits_of(limits)))
