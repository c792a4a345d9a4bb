"""Which scenarios run on the real job, and the names that their queues have there."""

from __future__ import annotations

from rules.scenario import Scenario, load

WAIT_S_MAX = 2.0  # as the scenario's clock counts; the real clock is stretched
GROUPS = "LBFOXSQC"


def chosen() -> list[Scenario]:
    """One scenario of each rule: short, and at home beside others.

    `next` names the id that the broker gives next, which nobody knows while others send.
    """
    found: dict[str, Scenario] = {}
    for scenario in load():
        rule = rule_of(scenario)
        words = {word for line in scenario.lines for word in line.words}
        if not scenario.fit_for_job or scenario.waits_s > WAIT_S_MAX or {"next", "restart"} & words:
            continue
        found.setdefault(rule, scenario)
    return list(found.values())


def rule_of(scenario: Scenario) -> str:
    return scenario.name.partition("_")[0]


def queues_of(scenario: Scenario) -> list[str]:
    """The queues that a scenario defines, each once."""
    names = [line.words[1] for line in scenario.lines if line.words[0] == "queue"]
    return list(dict.fromkeys(names))


def queue_name(index: int, queue: str) -> str:
    """A name for one scenario only. The slash makes it no name of a Kafka topic, so the engine
    reads none for it: clients' messages come through ``<vpn>.publish`` anyway."""
    return f"scenario {index}/{queue}"
