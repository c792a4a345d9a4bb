"""Planted bugs are found; otherwise the judges of `sim.world` are blind. Here a sample, which the
first seven worlds find; `python -m sim --mutants` hunts all of them."""

from __future__ import annotations

import pytest
from sim import mesh_mutants as mesh_mutants
from sim.mutants import MUTANTS, hunt

SAMPLE = (
    "outputs_are_sent_before_the_log_has_their_step",
    "the_fence_is_skipped",
    "a_snapshot_forgets_the_journal",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    assert hunt(name, 200) is not None, f"none of 200 worlds finds {name}"


def test_there_are_enough_planted_bugs() -> None:
    assert len(MUTANTS) >= 30


def test_every_planted_bug_is_in_the_product() -> None:
    """A function that a mutant replaces may have another name by now, or be gone."""
    for patches in MUTANTS.values():
        for make in patches:
            make().get_original()
