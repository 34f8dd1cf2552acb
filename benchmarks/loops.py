"""What loops bring that a C compiler makes (`fused.py`, `normal.py` of the executors): local training with them and without.

    python -m benchmarks.loops [--precision ...]

Ten clients with 784-200-10 and batches of 50, as on the comparison's grounds, one thread, in turns. Both leave the same
parameters. Needs a C compiler. Writes benchmarks/loops-cpu.csv.
"""

import math
import statistics
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from bayesfed.engine import device as devices
from bayesfed.engine.executors import EXECUTORS, fused, native
from benchmarks import common

METHODS = ("fedavg", "fedprox", "fola", "gaussian", "fedivon", "bayesadmm", "fedgvi", "pfedbayes", "hbfl")
MODEL, BATCH, IMAGES, TURNS = "mlp200", 50, 5000, 7


def training(method: str, data: common.Dataset, precision: str, shortest: float) -> Callable[[], None]:
    """Return a round's local training, recorded with loops for vectors of so many entries and more."""
    compute, images = devices.configure("cpu", precision), {"prepare": "none"}
    of = common.federation(method, common.models(MODEL, method), data, compute, batch_size=BATCH, images=images)
    block = common.local_training(of, EXECUTORS["threads"](of))
    with mock.patch.object(fused, "SHORTEST", shortest):
        block()
    return block


def measure(method: str, data: common.Dataset, precision: str) -> dict[str, Any]:
    """Measure one row."""
    shortest = {"loops": fused.SHORTEST, "one_by_one": math.inf}
    seconds = common.alternate({name: training(method, data, precision, n) for name, n in shortest.items()}, TURNS)
    rates = {name: IMAGES / statistics.median(turns) for name, turns in seconds.items()}
    return {
        "method": method, "model": MODEL, "batch_size": BATCH, "precision": precision,
        "loops_images_per_second": f"{rates['loops']:.0f}", "one_by_one_images_per_second": f"{rates['one_by_one']:.0f}",
        "times_as_fast": f"{common.median_ratio(seconds['one_by_one'], seconds['loops']):.2f}",
    } | common.machine("cpu")  # fmt: skip


def main() -> None:
    """Measure every method and write the table."""
    args = common.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    if native.compiled("void loop(void **p, long n) {}\n") is None:
        raise SystemExit("benchmarks.loops: there is no C compiler; install one, or name it in CC")
    precision = devices.choose_precision(args.precision, "cpu", [MODEL])
    data, rows = common.random_images(IMAGES, 100, "mnist", 28), []
    for method in METHODS:
        rows.append(measure(method, data, precision))
        common.show(rows[-1])
    common.write(common.HERE / "loops-cpu.csv", rows)


if __name__ == "__main__":
    main()
