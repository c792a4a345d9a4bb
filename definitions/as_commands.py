"""A configuration as commands: what makes an engine what a configuration says."""

from __future__ import annotations

from typing import Any

import msgspec

from ..protocol import commands
from .configuration import Configuration
from .definition import to_wire


def configure_commands(configuration: Configuration, epoch: int = 0) -> list[tuple[str, bytes]]:
    """The commands, each with its VPN, that make an engine what a configuration says.

    epoch: the home's; 0 where there is no other (in memory).
    """

    def plain(value: Any) -> dict[str, Any]:
        return {
            k.removesuffix("_ms"): (f"{v}ms" if k.endswith("_ms") else v)
            for k, v in msgspec.structs.asdict(value).items()
            if v is not None
        }

    system = plain(configuration.system)
    vpns = {name: plain(limits) for name, limits in configuration.vpns.items()}
    first = next(iter(configuration.vpns), "default")
    out: list[tuple[str, commands.Command]] = []
    if epoch:
        names = sorted({first, *configuration.vpns, *(q.vpn for q in configuration.queues)})
        out += [(vpn, commands.Begin(epoch=epoch)) for vpn in names]
    out.append((first, commands.Configure(system=system, vpns=vpns)))
    out += [(q.vpn, commands.Define(definition=to_wire(q))) for q in configuration.queues]
    return [(vpn, commands.encode_command(command)) for vpn, command in out]
