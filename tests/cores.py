"""The rules hold on both cores: `state/`, and the one on live objects.

The modules in `BOTH` run on each. `LAKEQUEUE_JUDGE=live` runs all on the live one, but for tests
with several brokers, which it does not have here; those that look at pages of the old core fail.
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
from lakequeue.state import Home as OldHome
from lakequeue.state import Limits as OldLimits
from rules import steps
from rules.harness import ON_REFERENCE

LIVE, PAGES = "live", "pages"
BOTH = {
    "test_acks", "test_backlog", "test_fairness", "test_leases", "test_order",
    "test_producer_starts", "test_queues", "test_redrive", "test_scenarios", "test_what_comes_in",
    "test_against_reference", "test_fuzz", "test_told", "test_waiting",
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On which core a module's tests run."""
    if os.environ.get("LAKEQUEUE_JUDGE") == LIVE:
        metafunc.parametrize("core", [LIVE], indirect=True, scope="module")
    elif metafunc.module.__name__.rpartition(".")[2] in BOTH and not ON_REFERENCE:
        metafunc.parametrize("core", [PAGES, LIVE], indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def core(request: pytest.FixtureRequest) -> Iterator[str]:
    """The core that the test runs on."""
    name: str = getattr(request, "param", PAGES)
    with pytest.MonkeyPatch.context() as patch:
        if name == LIVE:
            _use_live(patch)
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
