"""What a run file says of its partition, read alone and without torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bayesfed.core.errors import InputError
from bayesfed.runs import dealt, run_file

RUN = """
dataset: digits
partition: {alpha: 0.5, clients: 4}
method: {name: fedavg, lr: 0.01}
models: {global: mlp}
rounds: 1
local_epochs: 1
batch_size: 16
seed: 3
"""


def written(folder: Path, **changes: object) -> Path:
    """A run file with these changes; None leaves a key out."""
    mapping = yaml.safe_load(RUN) | changes
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in mapping.items() if value is not None}))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partition": {"scheme": "labels5", "clients": 4, "size": "small"}, "dataset": "mnist"},
        {"partition": {"scheme": "whole", "clients": 2}, "dataset": ["digits", "digits"]},
    ],
    ids=["dirichlet", "labels5", "whole"],
)
def test_it_is_what_the_whole_file_says(changes: dict[str, object], tmp_path: Path) -> None:
    path = written(tmp_path, **changes)
    run = run_file.load(path)
    assert dealt.load(path) == (run.datasets, run.partition, run.budget.seed)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dataset": None}, "dataset is missing"),
        ({"method": None}, "method is missing"),
        ({"partition": {"clients": 4}}, "partition.alpha is missing"),
        ({"partition": {"alpha": 1, "clients": 4000}}, "partition.clients: 4000 clients are more than the"),
        ({"dataset": "digit"}, "did you mean 'digits'"),
        ({"seed": -1}, "seed: -1"),
        ({"seed": None}, "seed is missing"),
        ({"papers": ["hbfl"]}, "this is a sweep config"),
        ({"plugins": "nowhere"}, "there is no folder 'nowhere'"),
    ],
)
def test_what_is_wrong_is_told_as_by_the_whole(changes: dict[str, object], told: str, tmp_path: Path) -> None:
    path = written(tmp_path, **changes)
    for load in (dealt.load, run_file.load):
        with pytest.raises(InputError) as refused:
            load(path)
        assert told in str(refused.value)


def test_the_command_loads_no_torch(data_dir: Path, tmp_path: Path) -> None:
    code = "import sys; from bayesfed.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    path = written(tmp_path)
    subprocess.run([sys.executable, "-c", code, "partition", str(path), "--data", str(data_dir)], check=True)
