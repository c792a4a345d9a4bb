"""Settings for short walks (R5)."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _short_walks(small_active_sets: None) -> None:
    """Active sets may be small."""
