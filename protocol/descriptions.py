"""What the hosts of a distributed queue say of it, added up (Q5, H4).

Each host describes what it owns. A message that moved was counted as it came at each of them, and
as `transferred` where it left; so what came into the queue as a whole is what came less what was
transferred. A message on its way may stand at both ends, and counts as `moving` only. What each
host holds stands in ``brokers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

SUMS = ("depth", "ready", "leased", "delayed", "moving", "active", "spool_bytes")
JOINED = ("alerts", "subscriptions")


def add_up(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One description of what several brokers, by name, say of one queue."""
    names = list(parts)
    whole = dict(parts[names[0]])
    if len(names) == 1:
        return whole
    each = list(parts.values())
    for name in SUMS:
        whole[name] = sum(one[name] for one in each)
    whole["depth"] -= whole["moving"]
    for name in JOINED:
        whole[name] = sorted({value for one in each for value in one[name]})
    ages = [one["oldest_age_s"] for one in each if one["oldest_age_s"] is not None]
    whole["oldest_age_s"] = max(ages, default=None)
    whole["ingress"] = all(one["ingress"] for one in each)
    whole["egress"] = all(one["egress"] for one in each)
    whole["consumers"] = [
        {**consumer, "broker": name} for name in names for consumer in parts[name]["consumers"]
    ]
    for name in ("blocked", "faulted"):
        said = {broker: one[name] for broker, one in parts.items() if one[name]}
        whole[name] = ", ".join(f"{broker}: {why}" for broker, why in said.items()) or None
    counters = _counters([one["counters"] for one in each])
    whole |= {"broker": None, "counters": counters, **counters, "brokers": parts}
    return whole


def add_up_usage(each: list[dict[str, Any]]) -> dict[str, Any]:
    """What several brokers say of their limits, as one. A limit holds for each of them, so these
    are added too; none of one is none of all."""
    if len(each) == 1:
        return each[0]
    whole: dict[str, Any] = {}
    for scope in ("vpn", "broker"):
        parts = [one[scope] for one in each]
        sums = {
            key: None if any(part[key] is None for part in parts) else sum(p[key] for p in parts)
            for key, value in parts[0].items() if isinstance(value, int | None)
        }  # fmt: skip
        alerts = sorted({alert for part in parts for alert in part["alerts"]})
        names = sorted({part["name"] for part in parts})
        whole[scope] = {"name": ", ".join(names), **sums, "alerts": alerts}
    refused: dict[str, int] = {}
    for one in each:
        for reason, n in one["vpn"]["refused"].items():
            refused[reason] = refused.get(reason, 0) + n
    whole["vpn"]["refused"] = refused
    whole["lanes"] = lanes_of(each)
    return {**whole, "brokers": {one["broker"]["name"]: one for one in each}}


def lanes_of(each: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What waits at brokers for queues of others, of what they say of their limits; at: where."""
    found = [{"at": one["broker"]["name"], **lane} for one in each for lane in one.get("lanes", ())]
    return sorted(found, key=lambda lane: (-(lane["for_s"] or 0), -lane["waiting"]))


def _counters(each: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for counters in each:
        for name, value in counters.items():
            if isinstance(value, dict):
                known = total.setdefault(name, {})
                for reason, n in value.items():
                    known[reason] = known.get(reason, 0) + n
            else:
                total[name] = total.get(name, 0) + value
    total["spooled"] -= total["transferred"]
    return total
