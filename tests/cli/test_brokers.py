"""`brokers`: which there are."""

from __future__ import annotations

from memory_shell import Engine


def test_the_brokers_and_their_states(shell: Engine) -> None:
    (one,) = shell.json("brokers")
    assert (one["name"], one["number"], one["state"]) == ("broker-0", 0, "running")
    assert one["load"] is None  # no batch has ended
    shown = shell.run("brokers").stdout.splitlines()
    assert shown[0].split() == ["broker", "number", "state", "worker", "steps", "load", "why"]
    assert shown[1].split() == ["broker-0", "0", "running", "–", "–", "–"]


def test_a_broker_more_needs_an_engine_on_kafka(shell: Engine) -> None:
    result = shell.run("brokers", "--add", "west")
    assert result.exit_code == 2
    assert "only over Kafka" in result.stderr
