"""`python forked.py SOCKET`: imports the commands once, and runs each requested one in a fork of
itself, because imports are most of a command's cost. The fork has its own streams, folder and exit
status, and ends as Python does."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from pathlib import Path

from lakequeue.cli import COMMANDS, main

NOT_HERE = {"lakequeue.examples.demo.demo", "lakequeue.cli.start_engine", "lakequeue.bench"}
ASKS = """#!{python} -IS
import os, socket, sys
with socket.socket(socket.AF_UNIX) as one:
    one.connect("{place}")
    socket.send_fds(one, ["\\0".join([os.getcwd(), *sys.argv[1:]]).encode()], [0, 1, 2])
    sys.exit(int(one.recv(16) or 1))
"""


def write_command(folder: Path, place: Path) -> None:
    """Write a `lakequeue` that requests its run."""
    folder.mkdir()
    command = folder / "lakequeue"
    command.write_text(ASKS.format(python=sys.executable, place=place))
    command.chmod(0o755)


def become(folder: str, words: list[str], streams: list[int]) -> None:
    """Become the requested command."""
    for number, (stream, mode) in enumerate(zip(streams, "rww", strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        name = ("stdin", "stdout", "stderr")[number]
        setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    os.chdir(folder)
    sys.argv = ["lakequeue", *words]
    main()


def serve(place: str) -> None:
    """Serve until killed. Each request has a process that waits for the command's."""
    for module in {where.partition(":")[0] for where, _ in COMMANDS.values()} - NOT_HERE:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        print("ready", flush=True)
        while True:
            asked, _ = server.accept()
            if not os.fork():
                break
            asked.close()
    told, streams, _, _ = socket.recv_fds(asked, 100_000, 3)
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asked.sendall(str(status).encode())
        os._exit(0)
    asked.close()
    folder, *words = told.decode().split("\0")
    become(folder, words, streams)


if __name__ == "__main__":
    serve(sys.argv[1])
