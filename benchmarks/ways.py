"""Ways to train ten clients of FedAvg: why the engine runs clients side by side, and does not stack them.

    python -m benchmarks.ways [--device auto|cpu|cuda] [--precision ...]

On a CPU: one client after another with all threads inside its operators (eager); a thread for each client (threads);
all clients stacked, so that a layer is one batched product or grouped convolution (stacked), with all threads. On a
GPU: eager, graphs with 1 to 16 lanes, and stacked as one recorded graph. Writes benchmarks/ways-<device>.csv.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.engine import device as devices
from bayesfed.engine.batches import Mixer
from bayesfed.engine.executors import EXECUTORS, GraphExecutor
from bayesfed.engine.federation import Federation
from bayesfed.methods.steps import SGD, grad, leaves
from bayesfed.models import Network
from bayesfed.models.network import Conv
from benchmarks import common

CASES = [("cnn2", 128), ("mlp", 32), ("mlp", 128)]
IMAGES, TURNS = 5120, 5


def stacked_logits(network: Network, theta: Tensor, x: Tensor) -> Tensor:
    """Logits (K, B, classes) of K parameter vectors (K, P), each on images of its own, x (K, B, C, H, W)."""
    clients, count = x.shape[:2]
    views = iter(theta.split(network.sizes, -1))
    convolving = isinstance(network.layers[0], Conv)
    if convolving:  # channels of all clients side by side
        x = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    for depth, (layer, shape) in enumerate(zip(network.layers, network.shapes[::2], strict=True)):
        weight, bias = next(views).view(clients, *shape), next(views)
        if isinstance(layer, Conv):
            x = F.conv2d(x, weight.flatten(0, 1), bias.flatten(), groups=clients)
            x = F.max_pool2d(x, layer.pool) if layer.pool > 1 else x
        else:
            if convolving:
                x, convolving = x.reshape(count, clients, -1).transpose(0, 1), False
            x = torch.baddbmm(bias[:, None], x.flatten(2), weight.transpose(1, 2))
        if depth < len(network.layers) - 1:
            x = F.relu(x)
    return x


class Row:
    """A learner of all clients at once, as `SGD` wants it."""

    def __init__(self, **state: Tensor) -> None:
        self.state = state

    def __getitem__(self, name: str) -> Tensor:
        return self.state[name]


def stacked(of: Federation) -> tuple[Callable[[], None], int]:
    """Return one local epoch of all clients, as many whole mini-batches each as the smallest has, and the images of
    it.
    """
    network, compute, size = of.networks[0]["global"], of.compute, of.run.budget.batch_size
    theta = torch.stack([of.node(k, 0).initial() for k in range(of.clients)])
    row, sgd = Row(theta=theta, **{"theta.momentum": torch.zeros_like(theta)}), SGD(0.01, 0.9, 5e-4)
    x = torch.zeros((of.clients, size, 3, 32, 32), dtype=compute.cast, device=compute.device)
    y = torch.zeros((of.clients, size), dtype=torch.int64, device=compute.device)

    def step() -> None:
        (theta,) = leaves(row["theta"])
        logits = stacked_logits(network, theta.to(compute.cast), x).to(compute.dtype)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(-1)
        sgd.step(row, theta=grad(losses, theta)[0])  # type: ignore[arg-type]

    step = recorded(step) if compute.device.type == "cuda" else step

    def block() -> None:
        feeds = [Mixer(of, of.node(k, 1)).epoch(of.shards[k]) for k in range(of.clients)]
        for chunks in zip(*feeds, strict=False):
            for i in range(min(len(chunk.y) for chunk in chunks) // size):
                for k, chunk in enumerate(chunks):
                    x[k].copy_(chunk.x[i * size : (i + 1) * size])
                    y[k].copy_(chunk.y[i * size : (i + 1) * size])
                step()
        compute.synchronise()

    return block, min(len(of.shards[k].train) for k in range(of.clients)) // size * size * of.clients


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Record the step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


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
        ways["stacked"], whole = stacked(of)
        seconds = common.alternate(ways, TURNS)
        for way, values in seconds.items():
            images = whole if way == "stacked" else IMAGES
            row = {
                "model": model, "batch_size": size, "clients": of.clients, "device": device, "way": way,
                "samples_per_second": round(images / statistics.median(values)),
            }  # fmt: skip
            common.show(row)
            rows.append(row | common.machine(device))
    common.write(common.HERE / f"ways-{device}.csv", rows)


if __name__ == "__main__":
    main()
