"""The plainest PyTorch loops for the same work: a module, torch.optim, one client, nothing else.

They get what a careful person would give them: images as one tensor, whole-batch crop and flip, channels_last, and
bf16 autocast where the engine uses bf16.
"""

import torch
import torch.nn.functional as F
from torch import nn


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


MODULES = {"cnn2": cnn2, "mlp": mlp}


def augment(pixels: torch.Tensor, indices: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Random crop by 4 and flip of uint8 images (N, 3, 40, 40), normalised, channels_last."""
    x = pixels[indices]
    top, left = torch.randint(0, 9, (2, len(indices), 1))
    rows, columns = top + torch.arange(32), left + torch.arange(32)
    columns = torch.where(torch.rand(len(indices), 1) < 0.5, columns, columns.flip(1))
    batch = torch.arange(len(indices))[:, None, None]
    x = x.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return (x.float() / 255 - mean) / std


class FedAvgLoop:
    """One optimiser step of a client of FedAvg."""

    def __init__(self, model: str, classes: int) -> None:
        self.net = MODULES[model](classes)
        self.sgd = torch.optim.SGD(self.net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Forward, backward, SGD."""
        self.sgd.zero_grad()
        F.cross_entropy(self.net(x), y).backward()
        self.sgd.step()


class FMLLoop:
    """One step of both models of a client of FML."""

    def __init__(self, model: str, classes: int) -> None:
        self.meme, self.local = MODULES[model](classes), MODULES[model](classes)
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

    def __init__(self, model: str, classes: int) -> None:
        self.mean, self.local = MODULES[model](classes), MODULES[model](classes)
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
