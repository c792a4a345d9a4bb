"""Definitions of queues and bridges, limits, configuration files, units, as users write them
(Q1–Q9).

Pure: a mapping in; a checked and complete value out, or every problem in it at once.
"""

from .brokers import BROKERS_MAX, DEFAULT_BROKER, check_in_home, hosts_of, wrong_hosts
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

__all__ = [
    "BROKERS_MAX",
    "DEFAULT_BROKER",
    "DEFAULT_VPN",
    "Configuration",
    "QueueDefinition",
    "SystemLimits",
    "VpnLimits",
    "check_in_home",
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
