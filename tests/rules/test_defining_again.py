"""Q9, H1: a redefinition keeps omitted keys; `replace` gives them their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args

import pytest
from lakequeue.client.admin import Admin
from lakequeue.protocol import ConfigError
from lakequeue.protocol import commands as c

from .two_homes import BRIDGE, Two

QUEUE = {"name": "q", "message_type": "text", "max_backlog": 7, "lease_period": "30s"}
LINK = {**BRIDGE, "lanes": "none", "max_spool_usage": 5_000_000}


def told(admin: Admin, kind: str) -> dict[str, Any]:
    if kind == "define":
        return admin.describe("q")["definition"]
    return {
        k: v for k, v in admin.describe_bridge(BRIDGE["name"]).items() if k in LINK or k == "from"
    }


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # a whole definition, and one change
    "define": (QUEUE, {"max_backlog": 9}),
    "bridge": (LINK, {"subscriptions": ["b/>"]}),
}


def test_every_defining_method_is_tested_here() -> None:
    methods = {
        name for name, function in inspect.getmembers(Admin, inspect.isfunction)
        if "definition" in inspect.signature(function).parameters
    }  # fmt: skip
    assert methods == set(KINDS)
    for name in methods:
        assert inspect.signature(getattr(Admin, name)).parameters["replace"].default is False
    commands = [k for k in get_args(c.AnyCommand) if "definition" in k.__struct_fields__]
    assert {k.__struct_config__.tag for k in commands} == set(KINDS)
    assert all("replace" in k.__struct_fields__ for k in commands)


@pytest.mark.parametrize("kind", KINDS)
def test_Q9_omitted_keys_keep_their_values(kind: str) -> None:
    two = Two()
    whole, change = KINDS[kind]
    define: Callable[..., None] = getattr(two.west.admin(), kind)
    define(whole, replace=True)
    before = told(two.west.admin(), kind)
    again: Admin = two.west.admin()
    getattr(again, kind)({"name": whole["name"]})
    assert told(two.west.admin(), kind) == before
    getattr(again, kind)({"name": whole["name"], **change})
    after = told(two.west.admin(), kind)
    assert {k for k in before if before[k] != after[k]} == set(change)


@pytest.mark.parametrize("kind", KINDS)
def test_Q9_replace_and_none_give_a_key_its_default(kind: str) -> None:
    two = Two()
    admin = two.west.admin()
    whole, _ = KINDS[kind]
    key, default = {
        "define": ("max_backlog", None), "bridge": ("lanes", "per-destination")
    }[kind]  # fmt: skip
    needed = {k: whole[k] for k in whole if k not in ("max_backlog", "lease_period", "lanes")}
    define = getattr(admin, kind)
    define(whole, replace=True)
    define({"name": whole["name"], key: None})
    assert told(admin, kind)[key] == default
    define(whole)
    define(needed, replace=True)
    assert told(admin, kind)[key] == default
    with pytest.raises(ConfigError, match="is required"):
        define({"name": whole["name"]}, replace=True)
