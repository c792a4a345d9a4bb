"""A configuration as commands: what makes an engine what a configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..protocol import commands
from .bridge import bridge_to_wire
from .configuration import DEFAULT_VPN, Configuration
from .definition import to_wire


def vpns_of(configuration: Configuration) -> list[str]:
    """The VPNs that a configuration names."""
    first = next(iter(configuration.vpns), DEFAULT_VPN)
    return sorted({first, *configuration.vpns, *(q.vpn for q in configuration.queues)})


def configure_commands(
    configuration: Configuration,
    broker: str | None = None,
    numbers: Mapping[str, int] | None = None,
) -> list[tuple[str, bytes]]:
    """The engine's instructions, each with its VPN, that make a broker what a configuration says.
    Queues are the keeper's affair, the first broker's: it places them.

    broker: one of the configuration's, None for the first; numbers: of the brokers, by default
    their places.
    """

    def plain(value: Any) -> dict[str, Any]:
        return {
            k.removesuffix("_ms"): (f"{v}ms" if k.endswith("_ms") else v)
            for k, v in msgspec.structs.asdict(value).items()
            if v is not None
        }

    system = plain(configuration.system)
    vpns = {name: plain(limits) for name, limits in configuration.vpns.items()}
    first = next(iter(configuration.vpns), DEFAULT_VPN)
    out: list[tuple[str, commands.Command]] = []
    brokers = configuration.brokers
    if len(brokers) > 1:
        given = numbers or {name: number for number, name in enumerate(brokers)}
        groups = {
            name: configuration.groups[name] for name in given if name in configuration.groups
        }
        out.append((first, commands.Peers(brokers=dict(given), groups=groups)))
    out.append((first, commands.Configure(system=system, vpns=vpns)))
    if broker in (None, *brokers[:1]):
        out += [(q.vpn, commands.Define(definition=to_wire(q))) for q in configuration.queues]
        for one in configuration.bridges:
            out.append((one.vpn, commands.Bridge(definition=bridge_to_wire(one))))
    return [(vpn, commands.encode_command(command)) for vpn, command in out]
