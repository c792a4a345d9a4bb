"""`lakequeue consume` as a process: it acknowledges only messages that its reader took."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from lakequeue.cli import consume as stdout_reader
from memory_shell import Engine

PROCESS = [sys.executable, str(Path(__file__).with_name("consuming_process.py"))]
BROKEN_PIPE = 141


def start(messages: int, *arguments: str) -> subprocess.Popen[bytes]:
    """A process that consumes, with pipes to read."""
    command = [*PROCESS, str(messages), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The messages left when the process has ended."""
    _, said = process.communicate(timeout=90)
    return json.loads(said.splitlines()[-1])


def left(status: int, depth: int, acknowledged: int = 0, attempts: int = 0) -> dict[str, int]:
    """The messages left when nothing is leased; prefetched ones count no attempt (L5)."""
    found = {"status": status, "depth": depth, "leased": 0, "acknowledged": acknowledged}
    return found | {"attempts": attempts}


def wait_until_written(process: subprocess.Popen[bytes]) -> None:
    """Wait until the pipe has data, and the writer has had time to count it wrongly as read."""
    assert process.stdout is not None
    deadline = time.monotonic() + 90
    while fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)) == bytes(4):
        assert process.poll() is None, "it ended without printing anything"
        assert time.monotonic() < deadline, "nothing was printed"
        time.sleep(0.01)
    time.sleep(0.1)


def test_L1_head_takes_one_message_and_no_more_is_acknowledged() -> None:
    shell = f"{' '.join(PROCESS)} 200 | head -1"
    done = subprocess.run(shell, shell=True, capture_output=True, timeout=90)
    assert done.stdout == b"0\n"
    said = json.loads(done.stderr)
    assert said == left(BROKEN_PIPE, depth=199, acknowledged=1, attempts=said["attempts"])


def test_L1_a_reader_that_reads_all_gets_all() -> None:
    process = start(100, "--timeout", "0")
    out, said = process.communicate(timeout=90)
    assert out.split() == [b"%d" % n for n in range(100)]
    assert json.loads(said)["depth"] == 0


def test_L1_messages_a_slow_reader_has_not_read_return_to_the_queue() -> None:
    process = start(3)
    wait_until_written(process)
    process.send_signal(signal.SIGTERM)
    said = json.loads(process.stderr.read())  # its output stays unread
    assert process.wait(60) == 0
    assert said == left(status=0, depth=3, attempts=said["attempts"])


def test_consume_ends_with_its_reader_although_no_message_comes() -> None:
    process = start(1)
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    said = json.loads(process.stderr.read())
    assert said == left(status=BROKEN_PIPE, depth=0, acknowledged=1)


def test_L1_messages_read_before_the_reader_exits_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader reads and exits between the check of unread bytes and the check for readers."""
    there, here = os.pipe()
    looks = iter((2, 0))

    def unread(pipe: int) -> int:
        found = next(looks)
        if found:
            assert os.read(there, 100) == b"0\n"
            os.close(there)
        return found

    monkeypatch.setattr(stdout_reader, "_unread", unread)
    with os.fdopen(here, "wb", buffering=0) as end:
        monkeypatch.setattr(sys, "stdout", end)
        assert stdout_reader.StdoutReader(lambda: False).give(b"0\n")
        monkeypatch.undo()


# ---------------------------------------------------------------- --exec


@pytest.mark.parametrize(
    ("headers", "left_out"),
    [({"k": "v"}, ""), ({"k": "v", "huge": "x" * 200_000}, "1"),
     ({"k": "v", **{f"h{n}": "x" * 60_000 for n in range(60)}}, "52"),
     ({"k": "v", "n" * 200_000: "x"}, "1")],
)  # fmt: skip
def test_no_header_keeps_a_command_from_starting(
    shell: Engine, headers: dict[str, str], left_out: str, tmp_path: Path
) -> None:
    """Otherwise a publisher could end each worker that gets its message, again and again."""
    shell.admin.define({"name": "orders", "message_type": "binary"})
    said = tmp_path / "said"
    shell.connection.producer().send("orders", b"1", headers=headers)
    command = f'echo "$LAKEQUEUE_HEADER_K,$LAKEQUEUE_HEADERS_LEFT_OUT" > {said}'
    result = shell.run("consume", "orders", "--exec", command, "--count", "1")
    assert result.exit_code == 0, result.output
    assert said.read_text() == f"v,{left_out}\n"


def test_ctrl_c_lets_a_running_command_end(tmp_path: Path) -> None:
    """Also when pressed twice, as `timeout` sends its signal."""
    started, told, finished = tmp_path / "started", tmp_path / "told", tmp_path / "finished"
    command = f"touch {started}; until test -e {told}; do sleep 0.1; done; touch {finished}"
    process = start(10, "--exec", command, "--max-backlog", "10")
    while not started.exists():
        time.sleep(0.01)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    time.sleep(0.5)
    told.touch()
    assert ended(process) == left(status=0, depth=9, acknowledged=1)
    assert finished.exists()


def test_a_second_ctrl_c_ends_the_command_too(tmp_path: Path) -> None:
    started, finished = tmp_path / "started", tmp_path / "finished"
    process = start(2, "--exec", f"touch {started}; sleep 20; touch {finished}")
    while not started.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert not finished.exists()


def test_json_has_all_of_a_message(shell: Engine) -> None:
    keys = {"expiration": "1h", "lease_period": "30s"}
    shell.admin.define({"name": "orders", "message_type": "binary"} | keys)
    producer = shell.connection.producer()
    producer.send("orders", b"\xff\x00", key=b"k", headers={"a": "b"}, priority=9)
    producer.send("orders", b"text", key=b"\xff")
    result = shell.run("consume", "orders", "--json", "--timeout", "0")
    first, second = map(json.loads, result.stdout.splitlines())
    now = shell.connection.now().isoformat()
    assert first == {
        "id": "1", "queue": "orders", "payload": "/wA=", "encoding": "base64", "key": "k",
        "headers": {"a": "b"}, "delivery_count": 1, "redelivered": False, "priority": 9,
        "is_barrier": False, "published_at": now, "expires_at": first["expires_at"],
        "lease_expires_at": first["lease_expires_at"],
    }  # fmt: skip
    assert first["expires_at"] > first["lease_expires_at"] > now
    assert (second["payload"], "encoding" in second) == ("text", False)
    assert (second["key"], second["key_encoding"]) == ("/w==", "base64")


def test_up_ends_cleanly_when_nobody_reads_its_output(tmp_path: Path) -> None:
    """`lakequeue up --json | head -1` reads the addresses and exits."""
    code = (
        "import time; from pathlib import Path\n"
        "from lakequeue.cli.service import goodbye\n"
        "time.sleep(0.5)\n"
        "goodbye(Path('home'), True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 0)
