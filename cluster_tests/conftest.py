"""The copies of the project that tests of the workflow use."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "workflow"))
