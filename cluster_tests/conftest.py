"""The copies of the project that tests of the workflow use, and the processes that tests start."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS), str(TESTS / "workflow")]
