"""What a person reads of a round in the log."""

from pathlib import Path
from typing import Any

import pytest

from bayesfed.engine.progress import Reporter
from bayesfed.engine.rounds import Progress
from bayesfed.methods.node import GLOBAL
from bayesfed.runs.run_file import resolve
from bayesfed.runs.run_folder import Row


@pytest.mark.parametrize(("server", "told"), [(True, "accuracy 0.7500"), (False, "mean client accuracy 0.2500")])
def test_a_line_tells_the_rounds_accuracy_however_many_clients(
    mapping: Any, tmp_path: Path, server: bool, told: str
) -> None:
    before = [Row(1, "global", GLOBAL, "test_accuracy", 0.1), Row(1, "0", "local", "shard_accuracy", 0.9)]
    rows = [Row(2, "global", GLOBAL, "test_accuracy", 0.75)] if server else []
    rows += [Row(2, str(k), "local", "shard_accuracy", 0.25) for k in range(2000)]
    with Reporter(resolve(mapping("fml", rounds=2, dataset="digits")), tmp_path / "log", 1) as report:
        report.round_done(Progress(2, {}, history=before + rows))
    assert f"round 2/2  {told}  " in (tmp_path / "log").read_text()
