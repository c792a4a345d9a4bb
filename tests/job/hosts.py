"""Hosts with their own network on this machine: network namespaces on a bridge, where they can be
made. This process is on the bridge, like a client on one more host.

A link is cut in both directions, or in one: a host's packets to another are lost, while those from
there arrive. A slow link has a limited bandwidth.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import subprocess
import threading
from collections.abc import Iterator

_NAMES = itertools.count(os.getpid() * 10)
_CLONE_NEWNET = 0x40000000
_NOBODY = "02:00:00:00:00:01"


class NoNetwork(Exception):
    """No network of our own can be made here; the text has the reason."""


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoNetwork(f"{command[0]}: it is not installed") from error
    if done.returncode != 0:
        raise NoNetwork(f"{' '.join(command)}: {done.stderr.strip()}")


def _enter(handle: int) -> None:
    """Move this thread, and processes it starts from now on, into that namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET) != 0:
        raise NoNetwork(f"a network namespace: {os.strerror(ctypes.get_errno())}")


class Host:
    """One host. address: its IP address; namespace: its name for `ip`."""

    def __init__(self, address: str, namespace: str, link: str) -> None:
        self.address, self.namespace, self._link = address, namespace, link

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """The thread's calls inside run there, and processes started inside stay there."""
        with (
            open(f"/proc/self/task/{threading.get_native_id()}/ns/net") as here,
            open(f"/run/netns/{self.namespace}") as there,
        ):
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(here.fileno())

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Nobody reaches it, and it reaches nobody."""
        _run("ip", "link", "set", self._link, "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", self._link, "up")

    @contextlib.contextmanager
    def unheard(self, by: Host) -> Iterator[None]:
        """Its packets to another host are lost: they go to a card that nobody has."""
        neighbour = ("ip", "-n", self.namespace, "neighbour")
        _run(*neighbour, "replace", by.address, "lladdr", _NOBODY, "dev", "eth0")
        try:
            yield
        finally:
            _run(*neighbour, "del", by.address, "dev", "eth0")

    @contextlib.contextmanager
    def slow(self, kbit_s: int) -> Iterator[None]:
        """Its packets have this bandwidth, and wait half a second at most."""
        rate = ("rate", f"{kbit_s}kbit", "burst", "16kb", "latency", "500ms")
        place = ("tc", "-n", self.namespace, "qdisc")
        _run(*place, "add", "dev", "eth0", "root", "tbf", *rate)
        try:
            yield
        finally:
            _run(*place, "del", "dev", "eth0", "root")


class Network:
    """So many hosts on a bridge; a context manager. Raises NoNetwork."""

    def __init__(self, count: int) -> None:
        self._number = next(_NAMES) % 60_000
        self._bridge = f"lqb{self._number}"
        # Another process may have hosts at the same time: few numbers collide.
        self._part = f"10.{200 + self._number // 250 % 50}.{self._number % 250}"
        self.bridge = f"{self._part}.254"  # the address of this process
        self.hosts = [
            Host(f"{self._part}.{n + 1}", f"lq{self._number}-{n}", f"lqv{self._number}-{n}")
            for n in range(count)
        ]

    def __enter__(self) -> Network:
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "address", "add", f"{self.bridge}/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for host in self.hosts:
                self._make(host)
            self._try()
        except BaseException:
            self.close()
            raise
        return self

    def _make(self, host: Host) -> None:
        link, there = host._link, ("ip", "-n", host.namespace)
        _run("ip", "netns", "add", host.namespace)
        _run("ip", "link", "add", link, "type", "veth", "peer", "eth0", "netns", host.namespace)
        _run("ip", "link", "set", link, "master", self._bridge, "up")
        _run(*there, "address", "add", f"{host.address}/24", "dev", "eth0")
        _run(*there, "link", "set", "eth0", "up")
        _run(*there, "link", "set", "lo", "up")

    def _try(self) -> None:
        """A machine may create everything, and let no packet through."""
        first, *others = self.hosts
        with first():
            server = socket.create_server((first.address, 0))
        with server, others[0]() if others else contextlib.nullcontext(), first.slow(1_000):
            try:
                socket.create_connection(server.getsockname(), 5.0).close()
            except OSError as error:
                raise NoNetwork(f"{first.address}: {error}") from error

    def close(self) -> None:
        """Remove everything. Processes still running there have no network."""
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)
            subprocess.run(["ip", "link", "del", host._link], capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)

    def __exit__(self, *_: object) -> None:
        self.close()
