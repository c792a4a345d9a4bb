"""A listener that is not Kafka is reported soon, in one sentence. Needs no broker."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from lakequeue.client.kafka import LIBRARIES, open_kafka
from lakequeue.client.kafka.base import require_broker, servers
from lakequeue.client.kafka.kafka_bounds import OPEN_SECONDS_MAX
from lakequeue.protocol.errors import ConfigError, NotConnected
from lakequeue.protocol.kafka_settings import VARIABLE

Listen = Callable[..., str]
ANSWER = bytes.fromhex("0000000a 6c717565 0000 00000000")


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Addresses whose listener answers everything with the same bytes, or (None) never."""
    servers: list[socket.socket] = []

    def answer(server: socket.socket, words: bytes, once: bool, dies: bool) -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):  # the client may be gone
                while peer.recv(1000) and words:
                    peer.sendall(words)
                    if once:
                        break
                if dies:
                    server.shutdown(socket.SHUT_RDWR)
                    server.close()

    def one(words: bytes | None, once: bool = False, dies: bool = False) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        if words is not None:
            threading.Thread(target=answer, args=(server, words, once, dies), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield one
    for server in servers:
        server.close()


def test_missing_settings_are_reported_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise Kafka would be contacted first, and the credentials missed only then."""
    monkeypatch.setenv(VARIABLE, "/nowhere")
    with pytest.raises(ConfigError, match=f"{VARIABLE}: '?/nowhere"):
        require_broker("127.0.0.1:1")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_broker_is_reported_soon(library: str) -> None:
    started = time.monotonic()
    with pytest.raises(
        NotConnected, match=r"no Kafka broker answers at 127.0.0.1:1 – conn.* refus"
    ):
        open_kafka("127.0.0.1:1", "test", library)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "words", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "closes", "http"]
)
def test_a_listener_that_is_no_kafka_is_reported_soon(
    monkeypatch: pytest.MonkeyPatch, listen: Listen, library: str, words: bytes | None
) -> None:
    monkeypatch.setattr(require_broker, "__defaults__", (1.0,))
    address = listen(words)
    started = time.monotonic()
    said = "does not answer in time" if words is None else "does not speak Kafka"
    with pytest.raises(NotConnected, match=f"{address}.* {said}"):
        open_kafka(address, "test", library)
    assert time.monotonic() - started < OPEN_SECONDS_MAX + 10


def test_a_kafka_that_requires_credentials_is_recognised(listen: Listen) -> None:
    address = listen(ANSWER, once=True)
    with pytest.raises(NotConnected, match=f"{address} asks for credentials.*{VARIABLE}"):
        require_broker(address)


@pytest.mark.parametrize("words", [b"", ANSWER], ids=["before its answer", "after it"])
def test_a_kafka_that_is_killed_meanwhile_does_not_answer(listen: Listen, words: bytes) -> None:
    """It speaks Kafka, and asks for no credentials."""
    address = listen(words, once=True, dies=True)
    with pytest.raises(NotConnected, match=rf"answers at {address} – conn\S+ refused$"):
        require_broker(address)


def test_one_of_several_addresses_is_enough(listen: Listen) -> None:
    silent = f"127.0.0.1:1,{listen(None)}"
    require_broker(f"{silent},{listen(ANSWER)}", 3.0)
    with pytest.raises(NotConnected):
        require_broker(silent, 0.5)


def test_addresses() -> None:
    assert servers("a:1, b,[::1]:9093") == [("a", 1), ("b", 9092), ("::1", 9093)]
    for wrong in ("", "a:b", "a:99999", "a b:1", "a:1:2"):
        with pytest.raises(ConfigError, match="allowed is host:port"):
            servers(wrong)
