"""Makes `storage` importable: the helpers of these tests."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))

settings.register_profile("storage", deadline=None)  # the machine may be busy
settings.load_profile("storage")
