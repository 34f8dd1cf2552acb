"""The plainest PyTorch loops for the same work: a module, torch.optim, one client, nothing else.

They get what a careful person would give them: images as one tensor, whole-batch crop and flip, channels_last, and
bf16 autocast where the engine uses bf16.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from bayesfed.data.store import Dataset


def cnn2(classes: int) -> nn.Module:
    """CNN2 of the HBFL paper from torch's own layers."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def mlp(classes: int) -> nn.Module:
    """The MLP of the HBFL paper from torch's own layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, classes)
    )


def lenet5(classes: int) -> nn.Module:
    """LeNet5 of the HBFL paper from torch's own layers."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def cnn1(classes: int) -> nn.Module:
    """CNN1 of the HBFL paper from torch's own layers."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip


MODULES = {"cnn2": cnn2, "mlp": mlp, "lenet5": lenet5, "cnn1": cnn1}


def augment(pixels: torch.Tensor, indices: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Random crop by 4 and flip of uint8 images (N, 3, 40, 40), normalised, channels_last."""
    device = pixels.device
    x = pixels[indices]
    top, left = torch.randint(0, 9, (2, len(indices), 1), device=device)
    steps = torch.arange(32, device=device)
    rows, columns = top + steps, left + steps
    columns = torch.where(torch.rand(len(indices), 1, device=device) < 0.5, columns, columns.flip(1))
    batch = torch.arange(len(indices), device=device)[:, None, None]
    x = x.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return (x.float() / 255 - mean) / std


class FedAvgLoop:
    """One optimiser step of a client of FedAvg."""

    def __init__(self, model: str, local: str, classes: int, device: str) -> None:
        self.net = MODULES[model](classes).to(device)
        self.sgd = torch.optim.SGD(self.net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Forward, backward, SGD."""
        self.sgd.zero_grad()
        F.cross_entropy(self.net(x), y).backward()
        self.sgd.step()


class FMLLoop:
    """One step of both models of a client of FML."""

    def __init__(self, model: str, local: str, classes: int, device: str) -> None:
        self.meme, self.local = MODULES[model](classes).to(device), MODULES[local](classes).to(device)
        self.optimisers = [
            torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4) for net in (self.meme, self.local)
        ]

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Two forward passes, two losses, two backward passes, two SGD steps."""
        meme, local = self.meme(x), self.local(x)
        for net, student, teacher in ((0, meme, local), (1, local, meme)):
            kl = F.kl_div(student.log_softmax(-1), teacher.detach().softmax(-1), reduction="batchmean")
            self.optimisers[net].zero_grad()
            (0.5 * F.cross_entropy(student, y) + 0.5 * kl).backward()
            self.optimisers[net].step()


class HBFLLoop:
    """One step of a client of HBFL: noisy meme, Adam on mean and rho, then the local model against the mean."""

    def __init__(self, model: str, local: str, classes: int, device: str) -> None:
        self.mean, self.local = MODULES[model](classes).to(device), MODULES[local](classes).to(device)
        self.rho = {name: torch.full_like(p, -5.0, requires_grad=True) for name, p in self.mean.named_parameters()}
        self.adam = torch.optim.Adam(
            [
                {"params": list(self.mean.parameters()), "weight_decay": 5e-4},
                {"params": list(self.rho.values()), "weight_decay": 0.0},
            ],
            0.001,
        )
        self.sgd = torch.optim.SGD(self.local.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Three forward and two backward passes."""
        sigma = {name: F.softplus(rho) for name, rho in self.rho.items()}
        noisy = {name: p + sigma[name] * torch.randn_like(p) for name, p in self.mean.named_parameters()}
        loss = F.cross_entropy(torch.func.functional_call(self.mean, noisy, (x,)), y)
        loss = loss - 1e-4 / 5000 * sum(s.log().sum() for s in sigma.values())
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        with torch.no_grad():
            teacher = self.mean(x).softmax(-1)
        local = self.local(x)
        kl = F.kl_div(local.log_softmax(-1), teacher, reduction="batchmean")
        self.sgd.zero_grad()
        (0.5 * F.cross_entropy(local, y) + 0.5 * kl).backward()
        self.sgd.step()


LOOPS = {"fedavg": FedAvgLoop, "fml": FMLLoop, "hbfl": HBFLLoop}


def training(method: str, model: str, local: list[str], data: Dataset, size: int, precision: str, device: str,
             clients: list[int]) -> Callable[[], None]:  # fmt: skip
    """A function that trains clients with so many images each, one after another, for an epoch."""
    loops = [LOOPS[method](model, own, 10, device) for own in local]
    pixels = F.pad(torch.from_numpy(data.train_images), (4, 4, 4, 4)).to(device)
    labels = torch.from_numpy(data.train_labels).to(device)
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (data.source.mean, data.source.std))

    def block() -> None:
        for loop, count in zip(loops, clients, strict=True):
            order = torch.randperm(len(labels), device=device)[:count]
            for indices in order.split(size):
                with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                    loop.step(augment(pixels, indices, mean, std), labels[indices])
        if device == "cuda":
            torch.cuda.synchronize()

    return block
