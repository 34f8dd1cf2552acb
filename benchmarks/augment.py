"""FOLA's augmentation beside the training steps that it feeds: does it cost less than a quarter of them?

    python -m benchmarks.augment [--precision ...]

FOLA's CNN on CIFAR-10's shape, FedAvg, batch size 32, one thread of a CPU. An epoch of 2500 images is prepared as the
engine does it: with FOLA's augmentation, with crop and flip, and without any; and trained on images that were prepared
beforehand. All take turns. Writes benchmarks/augment-cpu.csv.
"""

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import torch

from bayesfed.data.prepare import Seen
from bayesfed.engine import device as devices
from bayesfed.engine.batches import Mixer
from bayesfed.engine.federation import Federation
from bayesfed.methods.node import Batch
from benchmarks import common

MODEL, SIZE, IMAGES = "fola_cnn", 32, 2500
AUGMENTATIONS = ("none", "crop_flip", "fola")
TURNS = 9


def one_client(augment: str, precision: str, count: int) -> Federation:
    """Return a federation of one client that holds so many images, seen with that augmentation."""
    data = common.random_images(count, 100)
    images = {"normalise": "half", "augment": augment}
    data = dataclasses.replace(data, source=Seen(**images).of(data.source))
    compute = devices.configure("cpu", precision)
    return common.federation("fedavg", {"global": MODEL}, data, compute, clients=1, batch_size=SIZE, images=images)


def preparing(of: Federation) -> Callable[[], None]:
    """Return a function that prepares an epoch of images."""
    node = of.node(0, 1)

    def block() -> None:
        for _ in Mixer(of, node).epoch(of.shards[0]):
            pass

    return block


def training(of: Federation) -> Callable[[], None]:
    """Return a function that trains for an epoch on images that are ready."""
    job = common.starter(of)(0)
    learner, (phase,) = job.node.learner(), job.phases
    batches = [
        Batch(x, y)
        for chunk in Mixer(of, job.node).epoch(of.shards[0])
        for x, y in zip(chunk.x.split(SIZE), chunk.y.split(SIZE), strict=True)
    ]

    def block() -> None:
        for batch in batches:
            phase.step(learner, batch)

    return block


def measure(precision: str, count: int = IMAGES) -> dict[str, Any]:
    """Return the row: microseconds an image, and FOLA's augmentation as a part of a training step."""
    clients = {augment: one_client(augment, precision, count) for augment in AUGMENTATIONS}
    contenders = {augment: preparing(of) for augment, of in clients.items()} | {"step": training(clients["fola"])}
    seconds = common.alternate(contenders, TURNS)
    return {
        "model": MODEL, "batch_size": SIZE, "precision": precision,
        **{f"{name}_microseconds": f"{statistics.median(values) / count * 1e6:.1f}" for name, values in seconds.items()},
        "fola_over_step": f"{common.median_ratio(seconds['fola'], seconds['step']):.3f}",
    } | common.machine("cpu")  # fmt: skip


def main() -> None:
    """Measure and write the table."""
    args = common.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = [measure(devices.choose_precision(args.precision, "cpu"))]
    common.show(rows[0])
    common.write(common.HERE / "augment-cpu.csv", rows)


if __name__ == "__main__":
    main()
