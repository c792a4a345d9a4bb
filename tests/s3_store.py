"""An S3 store for tests: moto's server in this process, which keeps its objects in memory."""

from __future__ import annotations

import contextlib
import logging
import urllib.request
from collections.abc import Iterator

import pytest
from lakequeue.protocol import folders
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler

BUCKET = "lake"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def store(patch: pytest.MonkeyPatch, host: str = "127.0.0.1") -> Iterator[str]:
    """The URI of an empty bucket; the environment has the access settings, for this host."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Python's server and Werkzeug's each send `100 Continue`; Amazon's client takes the second for
    # the answer to its upload.
    patch.setattr(WSGIRequestHandler, "handle_expect_100", lambda handler: True)
    server = ThreadedMotoServer(ip_address=host, port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    patch.setenv("AWS_ENDPOINT_URL", address)
    for name, value in KEYS.items():
        patch.setenv(name, value)
    folders._s3.cache_clear()
    for path, method in (("moto-api/reset", "POST"), (BUCKET, "PUT")):
        urllib.request.urlopen(urllib.request.Request(f"{address}/{path}", method=method)).close()
    try:
        yield f"s3a://{BUCKET}"
    finally:
        folders._s3.cache_clear()
        server.stop()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of an empty bucket."""
    with store(monkeypatch) as uri:
        yield uri
