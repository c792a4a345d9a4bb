"""What an acknowledgement mode means (C4).

| mode | acknowledged | after an exception in the callback |
|---|---|---|
| auto | when the callback has returned, or as receive() hands over | canceled |
| client | by `ack()`: this one and all received before it | stays with the consumer |
| individual | by `ack()`: this one | stays with the consumer |
| dups_ok | every n messages or k ms, whichever is first | canceled |
| pre_ack | as it arrives in the client, before the callback or receive() | it is gone |
| no_ack | never: the engine removes it as it sends it | it is gone |

A component of `dups_ok` that is 0 is switched off. With n=0 and k=0 the mode *is* client, with n=1
and k=0 it *is* auto, and both are carried out as such: there is one piece of code for each meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol import ConfigError
from ..protocol.bounds import shown
from .values import duration_ms

ACK_MODES = ("auto", "client", "individual", "dups_ok", "pre_ack", "no_ack")
DUPS_OK_COUNT = 10


@dataclass(slots=True)
class AckRule:
    """How a consumer acknowledges. mode: the meaning, one of `ACK_MODES`; count: dups_ok's n, None
    for 10 or the prefetch, whichever is lower; interval_ms: dups_ok's k; 0 switches either off."""

    mode: str
    count: int | None
    interval_ms: int
    backlog: int = 1

    @property
    def n(self) -> int:
        """After how many messages dups_ok acknowledges; 0 for never."""
        if self.count is None:
            return max(1, min(DUPS_OK_COUNT, self.backlog))
        return self.count

    def fit(self, backlog: int) -> None:
        """The prefetch is this many (C6). Raises ConfigError where n is more: with k = 0 nothing
        would ever be acknowledged."""
        if self.mode == "dups_ok" and self.count is not None and self.count > backlog:
            raise ConfigError(
                f"dups_ok_count: {self.count} – allowed is at most the prefetch, {backlog} "
                "(the lower of max_backlog and the queue's max_per_subscription_backlog)"
            )
        self.backlog = backlog


def ack_rule(ack_mode: str, count: int | None, interval: str | float) -> AckRule:
    """The rule that these options of a consumer name; raises ConfigError for what is not one."""
    if ack_mode not in ACK_MODES:
        raise ConfigError(f"ack_mode: {shown(ack_mode)} – allowed are {', '.join(ACK_MODES)}")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise ConfigError(
            f"dups_ok_count: {shown(count)} – allowed is a number of messages, 0 for none"
        )
    interval_ms = duration_ms(interval, "dups_ok_interval")
    mode = ack_mode
    if mode == "dups_ok" and not interval_ms and count in (0, 1):
        mode = "auto" if count else "client"
    return AckRule(mode, count, interval_ms)
