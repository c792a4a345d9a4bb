"""The transport that kombu opens for `lakequeue+kafka://` and `lakequeue+memory://`.

Over Kafka the client's threads read, and a byte through a pipe tells the worker's event loop that a
message waits. In memory the engine works only while it is called (`memory_clock`).
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import Transport as BaseTransport

from ..protocol import NotConnected, Timeout
from .engine_link import Address, EngineLink, acquire, release
from .flow import Flow
from .kombu_channel import SHARE_S, KombuChannel
from .memory_clock import WAIT_S, pass_time


class KombuTransport(virtual.Transport):
    """See `kombu.transport.virtual.Transport`."""

    Channel = KombuChannel

    can_parse_url = True
    driver_type = "lakequeue"
    driver_name = "lakequeue"
    connection_errors: tuple[Any, ...] = (
        *virtual.Transport.connection_errors, NotConnected, Timeout,
    )  # fmt: skip
    channel_errors = (ChannelError,)
    implements = BaseTransport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.address = Address.of(_url(client), client.transport_options)
        self.queue_defaults = dict(client.transport_options.get("queues") or {})
        self._link: EngineLink | None = None
        # Sockets, not bare file descriptors: a thread that signals after they are closed must not
        # write into another file that has the number by then, such as a pipe to a pool process.
        self._pipe: tuple[socket.socket, socket.socket] | None = None
        self._loop: Any = None
        self._look_again = False
        if self.address.is_memory:
            self.implements = self.implements.extend(asynchronous=False)

    def driver_version(self) -> str:
        """kombu requires it."""
        return "1"

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The address; there is no password in it."""
        return uri if uri.startswith("lakequeue+") else f"lakequeue+{uri}"

    # ------------------------------------------------------------ opening and closing

    def establish_connection(self) -> KombuTransport:
        self._let_go()  # of one that was lost
        self._link = acquire(self.address)
        try:
            self._pass_time()  # it counts from now on
            return super().establish_connection()
        except BaseException:  # nobody else could release the link
            self._let_go()
            raise

    def close_connection(self, connection: Any) -> None:
        """Close all channels, and the link with the last connection."""
        self.unregister_from_event_loop(connection, self._loop)
        try:
            super().close_connection(connection)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            release(link)

    @property
    def link(self) -> EngineLink:
        """The connection to the engine. Raises NotConnected if there is none."""
        if self._link is None:
            raise NotConnected("the connection is closed")
        return self._link

    def verify_connection(self, connection: Any) -> bool:
        """True if it can still be used. A forked child opens its own."""
        return self._link is not None and self._link.is_open

    # ------------------------------------------------------------ waiting

    def hear(self, flow: Flow) -> None:
        """Let a new consumer's messages wake waiting calls and the event loop."""
        if not self.address.is_memory:
            self.link.connection.on_delivery(flow.consumer, self._signal)
            self._signal()  # messages may have come before that

    def look_again(self) -> None:
        """Wake waiting calls and the event loop if a waiting message can be handed over now."""
        if self._is_ready():
            self.link.connection.wake()
            self._signal()

    def _is_ready(self) -> bool:
        return any(channel.is_ready for channel in list(self.channels))

    def _signal(self) -> None:
        pipe = self._pipe
        if pipe is not None and self._is_ready():
            with contextlib.suppress(OSError):  # it is full, so the loop knows; or closed
                pipe[1].send(b".")

    def _hand_over(self) -> int:
        """Hand over waiting messages; returns how many. Notes whether to look again soon."""
        channels = list(self.channels)
        count = sum(channel.hand_over() for channel in channels)
        self._look_again = sum(channel.share() for channel in channels) > 0
        return count

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Hand over waiting messages, or wait for the first. Raises TimeoutError, which is
        `socket.timeout`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._pass_time()
        while not self._hand_over():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            if self._look_again:
                left = SHARE_S if left is None else min(left, SHARE_S)
            if self.address.is_memory:
                time.sleep(WAIT_S if left is None else min(WAIT_S, left))
            elif not self.link.is_open:
                raise NotConnected("the connection is closed")
            else:
                self.link.connection.wait(self._is_ready, left)
            self._pass_time()

    def _pass_time(self) -> None:
        """In memory: move the engine's clock on by the time that has really passed."""
        if self.address.is_memory:
            pass_time(self.link.connection)

    # ------------------------------------------------------------ the worker's event loop

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let the event loop hand over messages from now on."""
        self.unregister_from_event_loop(connection, self._loop)
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._pipe, self._loop = (reader, writer), loop
        loop.add_reader(reader, self.on_readable, connection, loop)
        self._signal()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        if self._pipe is None:
            return
        (reader, writer), self._pipe = self._pipe, None
        if self._loop is not None:
            self._loop.remove_reader(reader)
            self._loop = None
        reader.close()
        writer.close()

    def on_readable(self, connection: Any, loop: Any) -> None:
        if self._pipe is None:
            return
        with contextlib.suppress(BlockingIOError):
            self._pipe[0].recv(4096)
        if not self.link.is_open:
            raise NotConnected("the connection is closed")
        self._hand_over()
        self._signal()
        if self._look_again:
            loop.call_later(SHARE_S, self.on_readable, connection, loop)


def _url(client: Any) -> str:
    """The address without `lakequeue+`. kombu has split the second and later ones of `url;url`."""
    hostname, name = client.hostname, str(client.transport_cls)
    if "://" in hostname or not name.startswith("lakequeue+"):
        return hostname
    port = f":{client.port}" if client.port else ""
    return f"{name.removeprefix('lakequeue+')}://{hostname}{port}/{client.virtual_host.strip('/')}"
