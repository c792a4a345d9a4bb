"""What a user writes down: definitions of queues, limits, configuration files, units (Q1–Q9).

Pure: a mapping in, a checked and complete value out, or every problem in it at once.
"""

from .broker_section import BROKERS_MAX, DEFAULT_BROKER
from .configuration import (
    DEFAULT_VPN,
    Configuration,
    SystemLimits,
    VpnLimits,
    parse_configuration,
)
from .definition import (
    QueueDefinition,
    dead_message_ring,
    defined_over,
    is_regex,
    parse_definition,
    redefine,
    to_wire,
)
from .hosts import hosts_of, wrong_hosts

__all__ = [
    "BROKERS_MAX",
    "DEFAULT_BROKER",
    "DEFAULT_VPN",
    "Configuration",
    "QueueDefinition",
    "SystemLimits",
    "VpnLimits",
    "dead_message_ring",
    "defined_over",
    "hosts_of",
    "is_regex",
    "parse_configuration",
    "parse_definition",
    "redefine",
    "to_wire",
    "wrong_hosts",
]
