"""The workloads of the peers, and how a contender takes its turns. NumPy alone: every peer's environment has that.

Images are random, of the shapes of CIFAR-10 and EMNIST's digits: how long training takes does not depend on what they show.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Workload:
    """FedAvg by plain SGD: `per_round` of the clients train, and the server is tested on `test` images after each round.

    network: `lenet5` (two convolutions, three layers; BlazeFL's tutorial CNN), `two_convs` (those of EMNIST's CNN, with
    dropout; pfl-research and fedjax) or `mlp` (784-200-200).
    """

    network: str
    side: int
    channels: int
    classes: int
    clients: int
    per_round: int
    images_each: int
    epochs: int
    batch: int
    lr: float
    test: int

    @property
    def images(self) -> int:
        """The images trained on in a round, each as often as there are epochs."""
        return self.per_round * self.images_each * self.epochs

    def pixels(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw images uint8 (count, channels, side, side) and labels (count,)."""
        random = np.random.default_rng(seed)
        shape = (count, self.channels, self.side, self.side)
        return random.integers(0, 256, shape, np.uint8), random.integers(0, self.classes, count)


EMNIST = {
    "side": 28,
    "channels": 1,
    "classes": 10,
    "clients": 100,
    "per_round": 10,
    "batch": 20,
    "epochs": 1,
    "test": 0,
}
WORKLOADS = {
    # BlazeFL's benchmark, with a tenth of its clients in a round, where it has all.
    "cifar10-100-clients": Workload("lenet5", 32, 3, 10, 100, 10, 500, 5, 50, 0.1, 10_000),
    # pfl-research's: cohorts of 50 of 1000 users with 50 images each.
    "cifar10-cohorts": Workload("two_convs", 32, 3, 10, 1000, 50, 50, 1, 10, 0.1, 0),
    # fedjax's examples, by networks; a client has about as many images as EMNIST's writers.
    "emnist-cnn": Workload("two_convs", images_each=200, lr=0.03, **EMNIST),
    "emnist-mlp": Workload("mlp", images_each=200, lr=0.03, **EMNIST),
}


def chosen() -> Workload:
    """Return the workload that the command line names."""
    return WORKLOADS[sys.argv[1]]


def serve(build: Callable[[Workload], Callable[[], None]]) -> None:
    """Build what trains a round; then do one for each line of input, and answer its seconds and the most memory so far, in
    MiB.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # where a peer's own words belong
    play = build(chosen())
    for _ in sys.stdin:
        started = time.perf_counter()
        play()
        seconds = time.perf_counter() - started
        memory = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
        print(json.dumps([seconds, memory]), file=answers, flush=True)
