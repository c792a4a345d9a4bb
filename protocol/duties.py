"""Runs several functions, all of them even if some fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

log = logging.getLogger("lakequeue")


def do_every(duties: Iterable[Callable[[], object]]) -> None:
    """Run all duties in order, then raise the first error. The other errors are logged."""
    errors: list[Exception] = []
    for duty in duties:
        try:
            duty()
        except Exception as error:  # the duties after it must still run
            errors.append(error)
    for other in errors[1:]:
        log.warning("also failed: %s: %s", type(other).__name__, other)
    if errors:
        raise errors[0]
