"""What listens and is not Kafka is told soon, in one sentence. Needs no broker."""

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
    """Addresses where somebody answers everything with the same bytes, or (None) never."""
    servers: list[socket.socket] = []

    def answer(server: socket.socket, words: bytes, once: bool) -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):  # whoever asked may be gone
                while peer.recv(1000) and words:
                    peer.sendall(words)
                    if once:
                        break

    def one(words: bytes | None, once: bool = False) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        if words is not None:
            threading.Thread(target=answer, args=(server, words, once), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield one
    for server in servers:
        server.close()


def test_settings_that_are_not_there_are_told_although_nothing_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else Kafka is looked for where it is, and only then its credentials."""
    monkeypatch.setenv(VARIABLE, "/nowhere")
    with pytest.raises(ConfigError, match=f"{VARIABLE}: '?/nowhere"):
        require_broker("127.0.0.1:1")


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_broker_is_told_soon_in_one_sentence(library: str) -> None:
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
def test_what_is_no_kafka_is_told_soon(
    monkeypatch: pytest.MonkeyPatch, listen: Listen, library: str, words: bytes | None
) -> None:
    monkeypatch.setattr(require_broker, "__defaults__", (1.0,))
    address = listen(words)
    started = time.monotonic()
    said = "does not answer in time" if words is None else "does not speak Kafka"
    with pytest.raises(NotConnected, match=f"{address}.* {said}"):
        open_kafka(address, "test", library)
    assert time.monotonic() - started < OPEN_SECONDS_MAX + 10


def test_who_answers_the_first_question_only_asks_for_credentials(listen: Listen) -> None:
    address = listen(ANSWER, once=True)
    with pytest.raises(NotConnected, match=f"{address} asks for credentials.*{VARIABLE}"):
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
