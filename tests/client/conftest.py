"""Fixtures of the client's tests."""

from collections.abc import Iterator

import pytest
from client.threaded import close_connections


@pytest.fixture(autouse=True)
def _connections_are_closed() -> Iterator[None]:
    yield
    close_connections()
