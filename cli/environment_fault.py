"""What a command raises where not lakequeue is at fault, but what it stands on."""

from __future__ import annotations

from ..protocol.errors import LakequeueError


class EnvironmentFault(LakequeueError):
    """Something around lakequeue is missing: Kafka, Java, a free port, a package (exit 3)."""
