"""The folder of tests is a root for imports, as for the other rooms."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
