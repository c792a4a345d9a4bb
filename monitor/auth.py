"""Access to the page: sign-in by token, and forms that only the page itself can send.

Without a token the page is read-only and local: requests must name a loopback host, so that no
other site can reach it under its own host name. With a token everything needs a sign-in, on any
host. A form carries a secret of its session, so another site's form has no effect; nor do browsers
send the cookies with another site's requests.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

COOKIE = "lakequeue_monitor"
SESSION_S = 12 * 3600
SESSIONS_MAX = 100
FAILURES_MAX, FAILURES_S = 10, 60.0
TOKEN_MIN = 16
LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class SignIn:
    """A session. form: the secret in its forms. until: by the monotonic clock."""

    form: str
    until: float


@dataclass
class Auth:
    """token: None for a page without sign-in. host: the address that it listens on."""

    token: str | None = None
    admin: bool = False
    host: str = "127.0.0.1"
    clock: Callable[[], float] = time.monotonic
    _sessions: dict[str, SignIn] = field(default_factory=dict)
    _failures: deque[float] = field(default_factory=lambda: deque(maxlen=FAILURES_MAX))

    def __post_init__(self) -> None:
        """Raises ValueError for settings that would give anyone access to the page."""
        if self.token is not None and len(self.token) < TOKEN_MIN:
            raise ValueError(f"the token has {len(self.token)} characters: at least {TOKEN_MIN}")
        if self.token is None and self.admin:
            raise ValueError("--admin needs a token: --token-file FILE")
        if self.token is None and self.host not in LOOPBACK:
            raise ValueError(
                f"--host {self.host}: other machines can reach it, so a token is needed: "
                "--token-file FILE; or listen on 127.0.0.1"
            )

    def host_allowed(self, header: str) -> bool:
        """Whether requests to this host name are accepted."""
        return self.token is not None or _name(header) in LOOPBACK

    def sign_in(self, given: str) -> str | None:
        """Check a token; returns a new session's cookie if it is right."""
        if self.too_many_failures or self.token is None:
            return None
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            self._failures.append(self.clock())
            return None
        now = self.clock()
        self._sessions = {k: s for k, s in self._sessions.items() if s.until > now}
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = SignIn(secrets.token_urlsafe(32), now + SESSION_S)
        return cookie

    @property
    def too_many_failures(self) -> bool:
        """Whether sign-in is closed for a while, after many wrong tokens."""
        failures = self._failures
        return len(failures) == FAILURES_MAX and self.clock() - failures[0] < FAILURES_S

    def session(self, cookie: str | None) -> SignIn | None:
        """The session of a cookie, if it has not expired."""
        found = self._sessions.get(cookie or "")
        return found if found is not None and found.until > self.clock() else None

    def sign_out(self, cookie: str | None) -> None:
        self._sessions.pop(cookie or "", None)

    def form_allowed(
        self, session: SignIn | None, word: str, origin: str | None, host: str
    ) -> bool:
        """Whether a form may change something: sent by this page, with its session's secret."""
        if not self.admin or session is None:
            return False
        if origin is not None and origin.partition("://")[2] != host:
            return False
        return hmac.compare_digest(word.encode(), session.form.encode())


def _name(header: str) -> str:
    """The host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
