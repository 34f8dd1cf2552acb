"""The number of kernels that a GPU launches for a step of each of HBFL's methods, counted from the operators that run.

    python -m benchmarks.kernels [--version NAME]

A step is one mini-batch of 128 images in CIFAR-10's shape, whole, after the first. Counted are the operators that
reach PyTorch's backend, on a CPU, so that no GPU is needed, without those that only make views or allocate memory. Where
an operator is known to launch several kernels on a GPU, each counts: the bias of a convolution, its gradients one by one,
the copy of its weights into the layout of its images, the zeros that a gradient is scattered into. What cuDNN and cuBLAS
launch inside of one operator does not count, nor does what the executor adds (a batch's images out of its chunk).
`random` says how many of the kernels are draws of noise.

Rows of other versions stay in benchmarks/kernels.csv, so that a change can be compared with what was before it: with the
sources of an older version first on PYTHONPATH, `--version` names them.
"""

import argparse
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bayesfed import methods
from bayesfed.engine import device as devices
from bayesfed.engine.batches import Mixer
from bayesfed.engine.federation import SERVER
from bayesfed.engine.rounds import begin, copy
from bayesfed.methods.node import Batch
from bayesfed.models import convolution, network
from benchmarks import common

PATH = common.HERE / "kernels.csv"
CASES = [
    ("fedavg", "cnn2"), ("fedprox", "cnn2"), ("abavg", "cnn2"), ("independent", "cnn2"), ("fml", "cnn2"), ("hbfl", "cnn2"),
    ("fedavg", "mlp"), ("fml", "mlp"), ("hbfl", "mlp"),
]  # fmt: skip
PRECISIONS = ("fp32", "bf16")
IMAGES, SIZE = 5120, 128
aten = torch.ops.aten
ONE_CALL = torch.ops.mkldnn._convolution_pointwise  # a CPU's convolution with bias and ReLU, in place of cuDNN's
FREE = (aten._unsafe_view, aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided)


def kernels(operator: Any, args: tuple[Any, ...]) -> int:
    """Return the kernels of an operator on a GPU."""
    returns = operator._schema.returns
    views = [r.alias_info is not None and not r.alias_info.is_write for r in returns]
    if (views and all(views)) or operator.overloadpacket in FREE:
        return 0
    if operator.overloadpacket == aten.convolution:
        x, weight, bias = args[:3]
        return 1 + (bias is not None) + relayout(x, weight)
    if operator.overloadpacket == ONE_CALL:
        return 1 + relayout(*args[:2])
    if operator.overloadpacket == aten.convolution_backward:
        x, weight, wanted = args[1], args[2], args[10]
        return sum(wanted) + relayout(x, weight)
    if operator.overloadpacket in (aten.max_pool2d_with_indices_backward, aten.nll_loss_backward):
        return 2
    return 1


def relayout(x: Tensor, weight: Tensor) -> bool:
    """Return whether a convolution copies its weights to the layout of its images."""
    layout = torch.channels_last
    return x.is_contiguous(memory_format=layout) and not weight.is_contiguous(memory_format=layout)


def one_call(x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int], *rest: Any) -> Tensor:
    """ReLU(x * weight + bias) in one operator of a CPU."""
    return ONE_CALL(x, weight, bias, padding, stride, *rest, "relu", [], "")  # type: ignore[no-any-return]


class Counter(TorchDispatchMode):
    """Counts the kernels of what runs inside, and the random ones among them."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.random = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count = kernels(operator, args)
        self.kernels += count
        self.random += count * (torch.Tag.nondeterministic_seeded in operator.tags)
        return operator(*args, **(kwargs or {}))


def step_of(method: str, model: str, precision: str) -> Counter:
    """Return the kernels of one step, the second of a client's round."""
    compute = devices.configure("cpu", precision)
    models = {"global": model} | ({"local": [model] * 10} if methods.get(method).local_models else {})
    of = common.federation(method, models, common.random_images(IMAGES, 100), compute, batch_size=SIZE)
    server = of.node(SERVER, 1)
    server.state = begin(of).server
    c = of.node(0, 1, 1)
    c.state = copy(of.method.init_client(of.node(0, 0)), compute.device)
    c.state |= of.method.start(c, of.method.message(server, 0))
    network.layout_for = lambda device, dtype: network.gpu_layout(dtype)  # as on a GPU
    convolution.OWN_WAYS = set()
    convolution.in_one_call = lambda x: True
    torch.cudnn_convolution_relu = one_call
    (phase,) = of.method.phases(c)
    chunk, learner, counter = next(Mixer(of, c).epoch(of.shards[0])), c.learner(), Counter()
    images = chunk.x.contiguous(memory_format=network.gpu_layout(compute.cast))  # as a CUDA worker gives them
    first, second = (Batch(images[i : i + SIZE], chunk.y[i : i + SIZE]) for i in (0, SIZE))
    phase.step(learner, first)
    with counter:
        phase.step(learner, second)
    return counter


def main() -> None:
    """Count every case and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="now", help="what the rows are called")
    version = parser.parse_args().version
    rows: list[dict[str, Any]] = []
    for method, model in CASES:
        for precision in PRECISIONS:
            found = step_of(method, model, precision)
            row = {
                "version": version, "method": method, "model": model, "precision": precision, "kernels": found.kernels,
                "random": found.random, "counted": "operators of a step, without views", "torch": torch.__version__,
            }  # fmt: skip
            common.show(row)
            rows.append(row)
    common.write(PATH, rows, "version")


if __name__ == "__main__":
    main()
