"""Makes `fuzz` importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cores import core, pytest_generate_tests

__all__ = ["core", "pytest_generate_tests"]
