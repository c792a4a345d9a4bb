"""Serves the page: uvicorn in a thread, on an address that is bound before it starts."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import uvicorn

START_S = 5.0
STOP_S = 1.0
AT_ONCE = 100  # requests; more are refused


class PageServer:
    """Serves an application at an address. Raises OSError if the address is in use."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        # Errors only: any client could fill the log with invalid requests.
        config = uvicorn.Config(
            app, log_config=None, log_level="error", access_log=False, lifespan="off",
            server_header=False, limit_concurrency=AT_ONCE, timeout_graceful_shutdown=1,
            ws="none",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True, name="lakequeue-page"
        )

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """The address for a browser."""
        host = self._socket.getsockname()[0]
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/"

    def start(self) -> None:
        """Start serving; returns when it does."""
        self._thread.start()
        until = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop within about a second; hanging requests end with the process."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        self._socket.close()
