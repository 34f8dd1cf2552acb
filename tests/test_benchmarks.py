"""The benchmarks' own arithmetic, and README's numbers, which must be theirs. No times are asserted."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bayesfed import methods
from bayesfed.engine.federation import Compute
from bayesfed.models import build
from benchmarks import common, cores, gpu, readme


def test_readme_shows_the_stored_tables() -> None:
    """After a benchmark: `python -m benchmarks.readme`."""
    stored = readme.README.read_text()
    assert readme.BEGIN in stored
    assert readme.with_tables(stored) == stored


def test_a_table_keeps_the_rows_of_other_hardware(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    common.write(table, [{"speed": 1, "hardware": "a"}, {"speed": 2, "hardware": "a"}])
    common.write(table, [{"speed": 3, "threads": 2, "hardware": "b"}])
    common.write(table, [{"speed": 4, "threads": 2, "hardware": "a"}])
    assert table.read_text() == "speed,threads,hardware\n3,2,b\n4,2,a\n"


@pytest.mark.parametrize("make", [cores.engine, cores.bare])
def test_a_process_of_the_benchmark_of_cores_does_a_round_when_asked(make: Callable[..., Callable[[], None]]) -> None:
    block, end = cores.processes(make, ("784-8", 500, "fp32"), 1, 1)
    for _ in range(2):
        block()  # EOFError where the process has failed
    end()


def test_operations_of_a_network_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    for name in ("cnn2", "lenet5", "cnn1", "mlp"):
        network = build(name, 10, 3, 32)
        counter = FlopCounterMode(display=False)
        with counter:
            network(torch.zeros(network.parameters), torch.zeros(1, 3, 32, 32))
        assert gpu.operations(network) == counter.get_total_flops()


def test_the_gpu_checks_hold_as_far_as_a_cpu_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script cannot be tried without a GPU; what it does there is tried here, with steps that are not recorded."""
    monkeypatch.setattr(methods, "names", lambda: ["fedavg"])
    monkeypatch.setattr(gpu, "SMALL", (200, 40))
    monkeypatch.setattr(gpu, "BOUNDS", {"fp64": 1e-9})
    monkeypatch.setattr(gpu, "compute", lambda precision: Compute(torch.device("cpu"), torch.float64, torch.float64))
    assert gpu.equivalence()["failed"] == []
    assert gpu.resume()["failed"] == []


def test_every_benchmark_is_one_of_make_bench_or_says_why_not() -> None:
    run = (Path(gpu.__file__).parent / "__main__.py").read_text()
    others = {"common", "__init__", "__main__", "gpu", "precision"}  # the last two take a GPU, or an hour
    for file in Path(gpu.__file__).parent.glob("*.py"):
        assert file.stem in others or f'"{file.stem}"' in run
