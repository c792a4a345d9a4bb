"""Bugs of the mesh that tests plant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lakequeue.mesh import mesh
from lakequeue.mesh.keeper import Keeper
from lakequeue.protocol import commands as c
from rules.mesh import Mesh
from rules.two_homes import Two

BEGIN = c.encode_command(c.Begin(epoch=0))


class Bug:
    """Functions that do their work and then fail, so a step that failed must leave no trace.
    is_mended: a version without the bug runs; failures: their number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.is_mended = False
        self.failures = 0

    def plant(
        self, owner: Any, name: str, at: str, when: Callable[..., bool] = lambda *_, **__: True
    ) -> None:  # fmt: skip
        """at: the broker at which it fails, or letters of several; when: with which arguments."""
        original = getattr(owner, name)

        def failing(own: Any, *rest: Any, **keys: Any) -> Any:
            broker = own._broker if isinstance(own, Keeper | mesh.Mesh) else own
            found = original(own, *rest, **keys)
            if not self.is_mended and broker.header.name in at and when(*rest, **keys):
                self.failures += 1
                raise RuntimeError("a bug")
            return found

        self._monkeypatch.setattr(owner, name, failing)

    def plant_from_now(self, home: Mesh, *given: Any) -> None:
        """Plant a function that has not failed in earlier steps, which are not replayed."""
        for broker in home.engine.brokers:
            broker._mark()
        self.plant(*given)

    def begin(self, home: Any, is_mended: bool = True) -> None:
        """The engine begins again."""
        self.is_mended = is_mended
        engine = home.engines["west"] if isinstance(home, Two) else home.engine
        for broker in engine.brokers:
            engine.instruct("default", BEGIN, broker.home.name)
        home.advance("3s")


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> Bug:
    return Bug(monkeypatch)
