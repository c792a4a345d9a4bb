"""Duties of which each gets its turn, whatever becomes of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

log = logging.getLogger("lakequeue")


def do_every(duties: Iterable[Callable[[], object]]) -> None:
    """Do all of them, in order. Then raises the first error; further ones are logged."""
    errors: list[Exception] = []
    for duty in duties:
        try:
            duty()
        except Exception as error:  # what comes behind it concerns somebody else
            errors.append(error)
    for other in errors[1:]:
        log.warning("besides: %s: %s", type(other).__name__, other)
    if errors:
        raise errors[0]
