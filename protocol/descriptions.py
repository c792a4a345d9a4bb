"""Combines the descriptions of a distributed queue from its hosts (Q5, H4).

Each host describes its own messages. A message that moved counts as spooled at both hosts, and as
`transferred` at the one it left, so the queue's total is spooled minus transferred. A message in
transit may be at both hosts, and counts only as `moving`. ``brokers`` has each host's description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

SUMS = ("depth", "ready", "leased", "delayed", "moving", "active", "spool_bytes")
JOINED = ("alerts", "subscriptions")
TOPIC_MISSING = "topic_missing"  # an alert that a queue has only if all its hosts have it


def add_up(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Combine a queue's descriptions by several brokers into one. parts: by the broker's name."""
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
    if not all(TOPIC_MISSING in one["alerts"] for one in each):
        whole["alerts"] = [name for name in whole["alerts"] if name != TOPIC_MISSING]
    ages = [one["oldest_age_s"] for one in each if one["oldest_age_s"] is not None]
    whole["oldest_age_s"] = max(ages, default=None)
    whole["ingress"] = all(one["ingress"] for one in each)
    whole["egress"] = all(one["egress"] for one in each)
    whole["consumers"] = [
        {**consumer, "broker": name} for name in names for consumer in parts[name]["consumers"]
    ]
    for name in ("blocked", "faulted"):
        reasons = {broker: one[name] for broker, one in parts.items() if one[name]}
        whole[name] = ", ".join(f"{broker}: {why}" for broker, why in reasons.items()) or None
    counters = _counters([one["counters"] for one in each])
    whole |= {"broker": None, "counters": counters, **counters, "brokers": parts}
    return whole


def add_up_usage(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the usage of several brokers. Limits are added too, since each broker has its own; if
    one broker has no limit, the sum has none."""
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
    """The lanes of stand-ins, from the usage of several brokers. at: the broker's name."""
    found = [{"at": one["broker"]["name"], **lane} for one in each for lane in one.get("lanes", ())]
    return sorted(found, key=lambda lane: (-(lane["for_s"] or 0), -lane["waiting"]))


def _counters(each: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for counters in each:
        for name, value in counters.items():
            if isinstance(value, dict):
                reasons = total.setdefault(name, {})
                for reason, n in value.items():
                    reasons[reason] = reasons.get(reason, 0) + n
            else:
                total[name] = total.get(name, 0) + value
    total["spooled"] -= total["transferred"]
    return total
