"""Ways to train ten clients of FedAvg: why the engine runs clients side by side, and does not stack them.

    python -m benchmarks.ways [--device auto|cpu|cuda] [--precision ...]

On a CPU: one client after another with all threads inside its operators (eager); a thread for each client (threads);
all clients stacked, so that a layer is one batched product or grouped convolution (stacked), with all threads. On a
GPU: eager, graphs with 1 to 16 lanes, and stacked. Writes benchmarks/ways-<device>.csv.
"""

import statistics
from typing import Any

from bayesfed.engine import device as devices
from bayesfed.engine.executors import EXECUTORS, GraphExecutor, StackedExecutor
from benchmarks import common

CASES = [("cnn2", 128), ("mlp", 32), ("mlp", 128)]
IMAGES, TURNS = 5120, 5


def main() -> None:
    """Time every way."""
    device, precision = common.chosen(common.parser(__doc__).parse_args())
    compute = devices.configure(device, precision)
    rows: list[dict[str, Any]] = []
    for model, size in CASES:
        data = common.random_images(IMAGES, 1000)
        of = common.federation("fedavg", {"global": model}, data, compute, batch_size=size)
        if device == "cuda":
            ways = {
                f"graphs, {lanes} lanes": common.local_training(of, GraphExecutor(of, lanes))
                for lanes in (1, 2, 4, 8, 16)
            } | {"eager": common.local_training(of, EXECUTORS["eager"](of))}
        else:
            ways = {name: common.local_training(of, EXECUTORS[name](of)) for name in ("eager", "threads")}
        ways["stacked"] = common.local_training(of, StackedExecutor(of))
        seconds = common.alternate(ways, TURNS)
        for way, values in seconds.items():
            row = {
                "model": model, "batch_size": size, "clients": of.clients, "device": device, "way": way,
                "samples_per_second": round(IMAGES / statistics.median(values)),
            }  # fmt: skip
            common.show(row)
            rows.append(row | common.machine(device))
    common.write(common.HERE / f"ways-{device}.csv", rows)


if __name__ == "__main__":
    main()
