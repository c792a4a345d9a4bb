"""The runner on memory://: nothing happens between calls.

Each call lets the engine run and takes the results. A call waits only for other threads, which may
have taken its answer and not handed it over yet. Time is the engine's: it stands still until the
test moves it (`advance`), and then duties are done at their times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ..client.session.runner import Duties, Runner, end_in_children
from ..protocol.duties import do_every
from .in_process import MemoryEngine


class _OfThread(threading.local):
    """A thread's state. depth: of nested turns, of any session; held: the number of clients' locks
    it holds; late: the sessions whose results it takes once it holds none."""

    depth = held = 0

    def __init__(self) -> None:
        self.late: dict[Inline, None] = {}


_thread = _OfThread()


class ClientLock:
    """The lock of a producer or consumer, reentrant. A thread takes the engine's answers only while
    it holds none of these locks: it hands answers to other producers and consumers too, whose locks
    other threads may hold, and runs callbacks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()
        _thread.held += 1

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        _thread.held -= 1
        if _thread.late and not _thread.held:
            late, _thread.late = _thread.late, {}
            do_every([runner.attend for runner in late])


class Inline(Runner):
    """See `Runner`. Each subscription has a session of its own here, so that one consumer can be
    silenced; the engine sends the heartbeats."""

    acks_most = 1
    gather_ms = 0
    waits = False

    def __init__(self, engine: MemoryEngine) -> None:
        self.tag = engine.new_tag()
        self._engine = engine
        self._session: Duties
        self.sessions: dict[str, None] = {}  # whose heartbeats the engine sends
        self._served: list[Callable[[], bool]] = []
        self._turns = 0  # turns begun so far
        self._busy: set[int] = set()  # the turns that have not ended

    def start(self, session: Duties) -> None:
        """See `Runner.start`: the engine does the duties from now on as time passes."""
        self._session = session
        end_in_children(session)  # they have a copy of the engine, which nobody else sees
        self._engine.attend(self)

    def new_lock(self) -> ClientLock:
        """See `ClientLock`."""
        return ClientLock()

    @property
    def vpn(self) -> str:
        return self._session.vpn

    @property
    def is_open(self) -> bool:
        return self._session.is_open

    def due(self) -> int | None:
        """When the session's next duty is due, by the engine's clock."""
        return self._session.due()

    def attend(self) -> int:
        """Do all duties; returns the number of this turn."""
        changed, depth, own = self._session.changed, _thread.depth, 0
        try:  # also at Ctrl-C the turn ends: others wait for it
            with changed:
                own = self._turns = self._turns + 1
                self._busy.add(own)
            _thread.depth = depth + 1
            if self.is_open:
                works = [partial(self._work, work) for work in self._served]
                do_every([partial(self._session.receive, 0), self._session.upkeep, *works])
        finally:
            _thread.depth = depth
            with changed:
                self._busy.discard(own)
                changed.notify_all()
        return own

    def _work(self, work: Callable[[], bool]) -> None:
        if not work() and work in self._served:
            self._served.remove(work)

    def now_ms(self) -> int:
        return self._engine.now

    def clock_ms(self) -> float:
        """The engine's time, in ms: leases end by the clock that tests move."""
        return self._engine.now

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """See `Runner.wait`. Waits only while another thread is in a turn that began earlier, and
        never inside a turn (in a callback): two threads would wait for each other."""
        own = self.attend()
        if not _thread.depth:
            with self._session.changed:
                self._session.changed.wait_for(
                    lambda: condition() or min(self._busy, default=own) >= own, timeout
                )
        return condition()

    def sent(self) -> None:
        """See `Runner.sent`: takes the results at once, or when this thread holds no lock."""
        if _thread.held:
            _thread.late[self] = None
        else:
            self.attend()

    def gathering(self) -> None:
        """See `Runner.gathering`: sends at once."""
        self._session.send_gathered()

    def serve(self, ready: Callable[[], bool], work: Callable[[], bool]) -> Callable[[float], None]:
        """See `Runner.serve`: works now and at each later turn, in the calling thread."""
        if work not in self._served:  # Ctrl-C may have interrupted the first call
            self._served.append(work)
        self.attend()
        return lambda _: None

    def session_of(self, subscription: str) -> str:
        """The subscription's own session, whose heartbeats the engine sends from now on."""
        own = self._own(subscription)
        self.sessions[own] = None
        return own

    def silence(self, subscription: str) -> None:
        self.sessions.pop(self._own(subscription), None)

    ended = silence

    def _own(self, subscription: str) -> str:
        """The name of a subscription's own session. It is bounded as over Kafka, so what both names
        begin with appears once."""
        session = self._session.session
        return f"{session}/{subscription.removeprefix(session)}"
