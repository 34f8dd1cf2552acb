"""The benchmarks' own arithmetic, and README's numbers, which must be theirs. No times are asserted."""

from pathlib import Path

import torch

from bayesfed.models import build
from benchmarks import readme
from benchmarks.gpu import speed


def test_readme_shows_the_stored_tables() -> None:
    """After a benchmark: `python -m benchmarks.readme`."""
    stored = readme.README.read_text()
    assert readme.BEGIN in stored
    assert readme.with_tables(stored) == stored


def test_operations_of_a_network_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    for name in ("cnn2", "lenet5", "cnn1", "mlp"):
        network = build(name, 10, 3, 32)
        counter = FlopCounterMode(display=False)
        with counter:
            network(torch.zeros(network.parameters), torch.zeros(1, 3, 32, 32))
        assert speed.operations(network) == counter.get_total_flops()


def test_every_benchmark_is_one_of_make_bench_or_says_why_not() -> None:
    run = (Path(readme.__file__).parent / "__main__.py").read_text()
    others = {"common", "__init__", "__main__", "precision"}  # the last takes an hour; gpu/ takes a GPU
    for file in Path(readme.__file__).parent.glob("*.py"):
        assert file.stem in others or f'"{file.stem}"' in run
