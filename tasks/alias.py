"""Makes `lakequeue+kafka://` and `lakequeue+memory://` known to kombu.

kombu has no entry point for transports, but it loads those for serializers when it is imported. So
the package registers the serializer `SERIALIZER`: JSON, like kombu's own, under a name that no
worker accepts by default. Loading it runs `register`, so an application only changes `broker_url`.
"""

from __future__ import annotations

import json

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT = "lakequeue.tasks.kombu_transport:KombuTransport"
# The longer names are for an address behind the first (`url;url`): kombu does not split those.
NAMES = ("lakequeue", "lakequeue+kafka", "lakequeue+memory")
SERIALIZER = (json.dumps, json.loads, "application/x-lakequeue-json", "utf-8")


def register() -> None:
    """Register the transport's names with kombu."""
    for name in NAMES:
        TRANSPORT_ALIASES[name] = TRANSPORT


register()
