"""The scenarios that run on the real job, and their queues' names there."""

from __future__ import annotations

from rules.scenario import Scenario, load

# The rules are proved in memory: these scenarios show that the job carries them. One of each group.
RULES = ("B1", "C4", "F1", "L4", "L6", "O3", "Q2", "S3", "X5")
# Each line costs a batch of Spark's there. One that acknowledges, one that returns, one that waits.
IN_BATCHES = ("C4", "L6", "X5")


def chosen() -> dict[str, Scenario]:
    """The first scenario of each of these rules that is short enough.

    `next` names the next id, which nobody knows while others send.
    """
    found: dict[str, Scenario] = {}
    for scenario in load():
        rule = scenario.name.partition("_")[0]
        words = {word for line in scenario.lines for word in line.words}
        if rule in RULES and scenario.fit_for_job and not {"next", "restart"} & words:
            found.setdefault(rule, scenario)
    return found


def queues_of(scenario: Scenario) -> list[str]:
    """The queues that a scenario defines, each once."""
    names = [line.words[1] for line in scenario.lines if line.words[0] == "queue"]
    return list(dict.fromkeys(names))


def queue_name(rule: str, queue: str) -> str:
    """A name for one scenario only. The slash excludes a Kafka topic of that name, so the engine
    reads none for it: clients' messages come through ``<vpn>.publish`` anyway."""
    return f"scenario {rule}/{queue}"
