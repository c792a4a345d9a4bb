"""`bridges`: what waits for each, and which endpoints hold it (H1–H3)."""

from __future__ import annotations

import lakequeue
from memory_shell import Engine


def test_h2_bridges_are_defined_shown_and_deleted(shell: Engine) -> None:
    assert shell.run("bridges").stdout == "VPN 'default' has no bridges.\n"
    with lakequeue.connect("memory://cli-far") as far:
        there = {"name": "out", "from": shell.url, "to": "broker-0", "subscriptions": ["a/>"]}
        far.admin().bridge(there)
        queue = {"message_type": "text", "type": "LocalQueue", "subscriptions": ["a/>"]}
        far.admin().define({"name": "small", "max_spool_messages": 1, **queue})
        shell.run("bridges", "name=out", "to=memory://cli-far", "subscriptions=[a/>, b]")
        for n in range(3):
            shell.send("a/x", b"%d" % n)
        (one,) = shell.json("bridges")
        assert (one["state"], one["waiting"], one["taken"]) == ("blocked", 2, 1)
        assert one["subscriptions"] == ["a/>", "b"]
        lines = shell.run("bridges").stdout.splitlines()
        assert lines[0].split("  ")[0] == "bridge"
        assert "small: queue_quota for 0 ms, 2 waiting" in lines[1]
        refused = shell.run("bridges", "--delete", "out", stdin="n\n")
        assert refused.exit_code == 1
        done = shell.json("bridges", "--delete", "out", "--yes")
        assert done == {"bridge": "out", "deleted": True, "messages": 2}
    assert shell.json("bridges") == []


def test_a_wrong_bridge_is_a_sentence(shell: Engine) -> None:
    result = shell.run("bridges", "name=b", "to=broker-0", "subscriptions=a")
    assert result.exit_code == 2
    assert "to: 'broker-0' – is the broker where it begins" in result.stderr
    result = shell.run("bridges", "name=b", "name=c")
    assert result.exit_code == 2
    assert "'out' is not KEY=VALUE" in shell.run("bridges", "out").stderr
    result = shell.run("bridges", "--delete", "none")
    assert "there is no such bridge in VPN 'default', which has none" in result.stderr
