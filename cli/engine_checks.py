"""Checks of the home and of Spark: the second part of `lakequeue doctor`. They change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..protocol.errors import ConfigError, LakequeueError
from ..protocol.home_places import ABOUT, places_of
from .machine_checks import Check, result

if TYPE_CHECKING:
    from ..definitions import Configuration


def look(home: Path | None, configuration: Configuration | None, master: str | None) -> list[Check]:
    """All checks that are possible with these facts."""
    from ..streaming.spark.spark_session import default_master

    checks = []
    if home is not None:
        checks += [whole_home_check(home), *places_checks(home)]
    if configuration is not None:
        brokers = len(brokers_of(configuration, home))
        checks.append(slots_check(master or default_master(brokers), brokers))
    return checks


def home_problem(home: Path) -> str:
    """The reason why this version cannot start this home, and what to do; empty if it can, or if
    there is no home yet."""
    from ..streaming.home.home_folder import HomeFolder

    if not home.is_dir() or (not (home / ABOUT).exists() and not (home / "checkpoint").exists()):
        return ""
    try:
        return HomeFolder(home).problem()
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f"{home / ABOUT} cannot be read: {error}"


def whole_home_check(home: Path) -> Check:
    """Do the home and its checkpoint belong together?"""

    name, wanted = "checkpoint", "this home's own"
    if problem := home_problem(home):
        what, _, advice = problem.partition(": ")
        return Check(name, False, what, wanted, advice)
    lived = (home / ABOUT).exists()
    return Check(name, True, f"that of {home}" if lived else "none yet", wanted)


def places_checks(home: Path) -> list[Check]:
    """Can the home's parts on other file systems be written? No checks if everything is in the
    home."""
    from ..streaming.home.home_folder import HomeFolder

    folder = HomeFolder(home)
    found = {"tables": folder.tables, "checkpoints": folder.checkpoints}
    advice = (
        "Check the address, the rights, and the environment (AWS_ENDPOINT_URL, AWS_REGION, "
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), here and where the engine runs."
    )
    checks = []
    for name in sorted(places_of(home)):
        why = folder.unwritable(found[name])
        text = why or f"{found[name]} can be written"
        checks.append(result(f"place of {name}", not why, text, "writable", advice))
    return checks


def brokers_of(configuration: Configuration | None, home: Path | None) -> set[str]:
    """The brokers that an engine would run: those of its home and those in the configuration."""
    from ..definitions import DEFAULT_BROKER
    from ..streaming.home.home_folder import HomeFolder

    named = {DEFAULT_BROKER} if configuration is None else set(configuration.brokers)
    if home is None or configuration is None:
        return named
    try:
        return set(HomeFolder(home).brokers(configuration.brokers))
    except (OSError, ValueError, AttributeError, LakequeueError):  # another check reports that
        return named


def slots_check(master: str, brokers: int) -> Check:
    """Does Spark have a slot for each broker and one for the tables?"""
    from ..streaming.spark.spark_session import slots, slots_needed

    needed = slots_needed(brokers)
    wanted = f"{needed} or more: one for each broker, one for the tables"
    found = slots(master)
    if found is None:
        advice = f"See the page of {master} for its cores; doctor does not check them."
        return Check("task slots", True, "unknown", wanted, advice, required=False)
    advice = f"Give Spark more: --master 'local[{needed}]'."
    return result("task slots", found >= needed, f"{found} ({master})", wanted, advice)


def load_configuration(config: Path) -> tuple[Configuration | None, list[Check]]:
    """The engine's configuration, or a failed check with its problems."""
    from ..conf import load

    try:
        return load(config), []
    except ConfigError as error:
        wanted = "a file of queues that can be read"
        return None, [Check("configuration", False, str(error), wanted, "Correct it, or --config.")]
