"""The client for asyncio: the same connection, producers and consumers, awaited.

    async with await lakequeue.aio.connect("kafka://127.0.0.1:9092") as connection:
        producer = connection.producer()
        receipt = await producer.send("orders", b"...")
        consumer = await connection.consumer("orders", ack_mode="individual")
        async for message in consumer:
            await work(message)
            message.ack()

A thin layer over the synchronous client, which keeps all rules. Calls that may wait for Kafka or
the engine run in a thread; waiting for messages is waiting on an event. `Message` is the same
class, and its methods do not block. On ``memory://`` nothing waits, as in the synchronous API:
`receive` returns None at once, and iteration ends when no message is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from ..protocol import LakequeueError, NotConnected, Timeout
from ..protocol.bounds import BACKLOG_MAX
from . import connect as _connect
from .connection import Connection
from .consumer.callbacks import Join
from .consumer.consumer import CLOSE_S, Consumer
from .message import Message
from .producer.producer import SEND_TIMEOUT_S, Producer, Receipt
from .producer.receipts import Pending
from .session.runner import PAUSE_S
from .values import deadline_s, function_of, whole

__all__ = ["AsyncAdmin", "AsyncConnection", "AsyncConsumer", "AsyncProducer", "connect"]

LOOK_S = 0.5  # how soon a close in another thread is noticed
LOOK_MEMORY_S = 0.001


async def connect(url: str, **options: Any) -> AsyncConnection:
    """`lakequeue.connect`, awaited, with the same options and errors."""
    return AsyncConnection(await _made(partial(_connect, url, **options)))


async def _made(make: Callable[[], Any]) -> Any:
    """Make a connection or a consumer in a thread. It is closed again if the waiting task is
    canceled: nobody else could."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="lakequeue-aio")
    making = thread.submit(make)
    try:
        return await asyncio.wrap_future(making)
    except asyncio.CancelledError:
        thread.submit(_close_made, making)
        raise
    finally:
        thread.shutdown(wait=False)


def _close_made(making: Future[Any]) -> None:
    with contextlib.suppress(LakequeueError, CancelledError):
        making.result().close()


class AsyncConnection:
    """`lakequeue.Connection` for asyncio. ``sync`` is the synchronous connection."""

    def __init__(self, sync: Connection) -> None:
        self.sync = sync
        self.waits = sync.runner.waits
        # One thread for sends keeps them in order.
        self._sends = ThreadPoolExecutor(1, thread_name_prefix="lakequeue-aio")
        self._consumers: weakref.WeakSet[AsyncConsumer] = weakref.WeakSet()

    def producer(self, **options: Any) -> AsyncProducer:
        """Make a producer, with the options of `lakequeue.Connection.producer`."""
        return AsyncProducer(self, self.sync.producer(**options))

    async def consumer(self, queue: str, **options: Any) -> AsyncConsumer:
        """Make a consumer of a queue, with the options of `lakequeue.Connection.consumer`."""
        make = partial(self.sync.consumer, queue, **options)
        sync = await _made(make) if self.waits else make()
        consumer = AsyncConsumer(self, sync)
        self._consumers.add(consumer)
        return consumer

    def admin(self) -> AsyncAdmin:
        """The administration interface; every call is awaited."""
        return AsyncAdmin(self)

    async def close(self) -> None:
        """Flush producers, return what consumers hold, end the session. Raises as
        `Connection.close`."""
        consumers = list(self._consumers)
        try:
            await self.end(consumers, self.sync.close)
        finally:
            if not self.sync.is_open:
                self._sends.shutdown(wait=False)

    async def end(self, consumers: list[AsyncConsumer], close: Callable[[], None]) -> None:
        """Let consumers receive nothing more, wait up to 5 s for callbacks that run, except the
        calling one, and close, in a thread. If the task is canceled, that goes on."""
        for consumer in consumers:
            consumer.sync.stop()
            consumer._wake()
        running = [task for consumer in consumers if (task := consumer._working) is not None]
        try:
            if working := [task for task in running if task is not asyncio.current_task()]:
                await asyncio.wait(working, timeout=CLOSE_S)
        finally:
            closing = asyncio.get_running_loop().run_in_executor(None, close)
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(closing)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a call that may wait, in a thread; on `memory://`, where nothing waits, at once."""
        if not self.waits:
            return function(*arguments)
        return await asyncio.to_thread(function, *arguments)

    async def send(self, function: Callable[..., Any]) -> Any:
        """Run a send, after the sends that were called before it."""
        if not self.waits or not self.sync.is_open:  # closed: the call raises that
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._sends, function)

    async def __aenter__(self) -> AsyncConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncAdmin:
    """`lakequeue.Admin` for asyncio: the same methods, awaited."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._sync = connection.sync.admin()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._sync, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return await self._connection.call(partial(method, *arguments, **options))

        return call

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class AsyncProducer:
    """`lakequeue.Producer` for asyncio. ``sync`` is the synchronous producer."""

    def __init__(self, connection: AsyncConnection, sync: Producer) -> None:
        self._connection = connection
        self.sync = sync

    async def send(self, destination: str, payload: bytes | str, **options: Any) -> Receipt:
        """Send a message; arguments and errors as for `lakequeue.Producer.send`.

        While the window is full it waits, and later sends of this connection wait behind it (P5).
        """
        timeout = options.get("timeout", SEND_TIMEOUT_S)
        until = deadline_s(timeout)
        mode = options.get("delivery_mode") or self.sync.delivery_mode
        future = await self.send_async(destination, payload, **options)
        if mode != "persistent":
            return self.sync.receipt_of(future)
        if future.done():  # on memory://, whatever the timeout
            return future.result()
        left_s = max(until - time.monotonic(), 0.0)
        try:  # shielded: the future is the producer's and outlives this wait
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), left_s)
        except TimeoutError:
            text = f"no answer to a message for {destination!r} within {timeout} s"
            raise Timeout(text) from None

    async def send_async(self, destination: str, payload: bytes | str, **options: Any) -> Pending:
        """Send without waiting for the receipt, as `lakequeue.Producer.send_async`: the future
        gives the `Receipt` or raises Rejected."""
        call = partial(self.sync.send_async, destination, payload, **options)
        return await self._connection.send(call)

    async def flush(self, timeout: float | None = 30.0) -> None:
        """Wait until every sent message has an answer; raises as `lakequeue.Producer.flush`."""
        await self._connection.call(self.sync.flush, timeout)

    def unacknowledged(self) -> list[bytes]:
        """Payloads of messages not known to be stored (P6)."""
        return self.sync.unacknowledged()

    async def close(self, timeout: float = 30.0) -> None:
        """Flush and close; raises as `lakequeue.Producer.close`."""
        await self._connection.end([], partial(self.sync.close, timeout))

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncConsumer:
    """`lakequeue.Consumer` for asyncio. ``sync`` is the synchronous consumer, for calls that do not
    wait. Receive from one task at a time."""

    def __init__(self, connection: AsyncConnection, sync: Consumer) -> None:
        self._connection = connection
        self.sync = sync
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._working: asyncio.Task[Any] | None = None
        connection.sync.on_delivery(sync, self._wake)

    @property
    def is_closed(self) -> bool:
        """True once nothing more is received."""
        return self.sync.is_closed

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _expect(self) -> None:
        """Let the next arrival wake the loop that runs now: a program may run one after another."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop, self._arrived = loop, asyncio.Event()
        self._arrived.clear()

    async def _wait(self, until: float) -> None:
        """Wait until a message is here or the consumer is closed, at most until this moment
        (monotonic, s); on `memory://` only yield to the loop."""
        if not self._connection.waits:
            await asyncio.sleep(0)
            return
        while not self.sync.has_messages and not self.sync.is_closed:
            left = min(LOOK_S, until - time.monotonic())
            if left <= 0:
                return
            self._expect()
            if self.sync.has_messages:
                return
            await self._arrival(left)

    async def _arrival(self, timeout: float) -> None:
        """Wait until something arrives."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), timeout)

    async def receive(self, timeout: float | None = None) -> Message | None:
        """See `lakequeue.Consumer.receive`. A task canceled while it waits has taken no message."""
        found = await self.receive_many(1, timeout)
        return found[0] if found else None

    async def receive_many(self, most: int, timeout: float | None = None) -> list[Message]:
        """Up to ``most`` messages, see `lakequeue.Consumer.receive_many`."""
        until, found = deadline_s(timeout), list[Message]()
        whole(most, "most", 0, BACKLOG_MAX)
        self.sync.check_open()
        while most > 0 and not found:
            await self._wait(until)
            found = self.sync.receive_many(most, 0)
            if not self._connection.waits or time.monotonic() >= until:
                break
        return found

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, until the consumer is closed; on `memory://` until none is left.
        Raises NotConnected when the queue is deleted."""
        with contextlib.suppress(NotConnected):  # of `receive`, once it is closed
            while True:
                await self._wait(math.inf)
                message = self.sync.receive(0)
                if message is not None:
                    yield message
                elif not self._connection.waits:
                    return
        self.sync.check_why()

    def on_message(self, callback: Callable[[Message], Any]) -> None:
        """Call a function or coroutine function with each message, one after the other, in a task.

        Otherwise like `lakequeue.Consumer.on_message` (C4): another call replaces the callback. A
        canceled callback has failed. SystemExit also ends the event loop. On `memory://` the task
        looks again whenever the loop is idle for a moment.
        """
        self.sync.check_open()
        self.sync.serving.use(function_of(callback, "callback"), self._begin)

    def _begin(self, ready: Callable[[], bool], _: Callable[[], bool]) -> Join:
        self._task = asyncio.create_task(self._serve(ready))
        return lambda _: None

    async def _serve(self, ready: Callable[[], bool]) -> None:
        serving = self.sync.serving
        while not self.sync.is_closed:
            try:
                message = serving.begin()
            except LakequeueError as error:  # failing to reach Kafka must not end the consumer
                self._connection.sync.report(str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            if message is not None:
                self._working = asyncio.create_task(self._one(message))
                await asyncio.wait([self._working])
            elif not self._connection.waits:
                self._connection.sync.wait(ready, 0)
                await asyncio.sleep(LOOK_MEMORY_S)
            elif rest_s := serving.rest_s():
                self._expect()
                await self._arrival(rest_s)
            else:
                await self._wait(time.monotonic() + LOOK_S)

    async def _one(self, message: Message) -> None:
        serving = self.sync.serving
        try:
            try:
                with serving.current(message):
                    result = serving.call(message)
                    if inspect.isawaitable(result):
                        await result
            except BaseException as error:  # of the application's callback
                serving.failed(message, error)
            else:
                serving.returned(message)
        except LakequeueError as error:
            self._connection.sync.report(str(error))

    async def set_max_backlog(self, max_backlog: int) -> None:
        """Change this subscription's backlog (B3), see `lakequeue.Consumer.set_max_backlog`."""
        await self._connection.call(self.sync.set_max_backlog, max_backlog)

    async def ack(self, *which: Any, **named: Any) -> None:
        """Acknowledge by ``ids``, ``up_to`` or ``where`` (L13), see `lakequeue.Consumer.ack`."""
        await self._connection.call(partial(self.sync.ack, *which, **named))

    async def close(self) -> None:
        """Wait up to 5 s for the running callback, send acks, return the rest; raises as
        `lakequeue.Consumer.close`."""
        await self._connection.end([self], self.sync.close)
        self._connection._consumers.discard(self)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
