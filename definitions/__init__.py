"""What a user writes down: definitions of queues, limits, configuration files, units (Q1–Q9).

Pure: a mapping in, a checked and complete value out, or every problem in it at once.
"""

from .configuration import (
    DEFAULT_BROKER,
    DEFAULT_VPN,
    Configuration,
    SystemLimits,
    VpnLimits,
    parse_configuration,
)
from .definition import (
    QueueDefinition,
    brokers_named,
    dead_message_ring,
    is_regex,
    parse_definition,
    redefine,
    to_wire,
)

__all__ = [
    "DEFAULT_BROKER",
    "DEFAULT_VPN",
    "Configuration",
    "QueueDefinition",
    "SystemLimits",
    "VpnLimits",
    "brokers_named",
    "dead_message_ring",
    "is_regex",
    "parse_configuration",
    "parse_definition",
    "redefine",
    "to_wire",
]
