"""The networks of the papers by name, and those of a user's own (`core/plugins.py`), any `torch.nn.Module` among them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.models import bayesadmm, fedppd
from bayesfed.models import pretrained as pretraining
from bayesfed.models.module import Build as ModuleBuilder
from bayesfed.models.module import ModuleNetwork, call, naming
from bayesfed.models.network import Chain, Conv, Linear, Network

__all__ = ["CONVOLUTIONS", "NETWORKS", "AnyNetwork", "build", "build_for", "check"]

AnyNetwork = Network | ModuleNetwork
# A function of (classes, channels, side of an image in pixels), or of (classes, shape), the shape of an example: a chain of
# layers, with PyTorch's initialisation where they come alone, or any module.
Builder = Callable[..., Chain | tuple[Conv | Linear, ...] | nn.Module]

# As `models.global`, this word means that the server holds the convolutions alone (multi-task learning).
CONVOLUTIONS = "convolutions"


def vgg(classes: int, channels: int, batch_norm: bool) -> nn.Module:
    """Build 3x3 convolutions of 16, 32, 64, 128 and 128 channels, each with ReLU and a max-pooling behind it, then one
    linear layer.

    For images of 32 x 32, of which one pixel is left.
    """
    layers: list[nn.Module] = []
    for width in (16, 32, 64, 128, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1)]
        layers += [nn.BatchNorm2d(width)] if batch_norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, classes))


def vgg_plain(classes: int, channels: int, size: int) -> nn.Module:
    """Build a small VGG: five 3x3 convolutions of 16 to 128 maps, one linear layer."""
    return vgg(classes, channels, batch_norm=False)


def vgg_bn(classes: int, channels: int, size: int) -> nn.Module:
    """Build a small VGG with batch normalisation: five 3x3 convolutions of 16 to 128 maps, one linear layer."""
    return vgg(classes, channels, batch_norm=True)


# MLP, LeNet5 and CNN2 as in the public code of FML; the widths of CNN1's two
# fully connected layers are published nowhere, 400-120-C is our assumption.
NETWORKS: dict[str, Builder] = {
    "mlp": lambda classes, channels, size: (Linear(200), Linear(200), Linear(classes)),
    "lenet5": lambda classes, channels, size: (Conv(6, 5, 2), Conv(16, 5, 2), Linear(120), Linear(84), Linear(classes)),
    "cnn1": lambda classes, channels, size: (Conv(6, 5, 2), Conv(16, 5, 2), Linear(120), Linear(classes)),
    "cnn2": lambda classes, channels, size: (Conv(32, 3, 2), Conv(64, 3, 2), Conv(64, 3), Linear(64), Linear(classes)),
    # FOLA: the CNN of its public code, and the two networks of its text, started as PyTorch does.
    "fola_cnn": lambda classes, channels, size: Chain(
        (Conv(32, 5, 2), Conv(64, 5, 2), Linear(512), Linear(classes)), initial="xavier"
    ),
    "mlp200": lambda classes, channels, size: (Linear(200), Linear(classes)),
    "fola_mlp": lambda classes, channels, size: (Linear(500), Linear(300), Linear(classes)),
    # pFedBayes: one hidden layer, and a small VGG, with batch normalisation or without, whose classifier is our assumption.
    "pfedbayes_mlp": lambda classes, channels, size: (Linear(100), Linear(classes)),
    "pfedbayes_vgg": vgg_plain,
    "pfedbayes_vgg_bn": vgg_bn,
    "softmax": lambda classes, channels, size: (Linear(classes),),
    # FedPPD: of each pair the teacher is the baselines' network, too.
    "fedppd_mnist": fedppd.mnist_teacher,
    "fedppd_mnist_student": fedppd.mnist_student,
    "fedppd_femnist": fedppd.femnist_teacher,
    "fedppd_femnist_student": fedppd.femnist_student,
    "fedppd_cifar10": lambda classes, channels, size: Chain(
        (Conv(6, 5, 2), Conv(16, 5, 2), Linear(120), Linear(84), Linear(classes)), initial="xavier"
    ),
    "fedppd_cifar10_student": lambda classes, channels, size: Chain(
        (Conv(16, 5, 2), Conv(16, 5, 2), Linear(256), Linear(128), Linear(classes)), initial="xavier"
    ),
    "resnet18": fedppd.resnet18,
    "resnet34": fedppd.resnet34,
    # BayesADMM and FedLap, FedGVI, and pFedVEM, whose last layer is the head.
    "sigmoid_mlp": bayesadmm.sigmoid_mlp,
    "zenke_cnn": bayesadmm.zenke,
    "acar_cnn": lambda classes, channels, size: (
        Conv(64, 5, 2),
        Conv(64, 5, 2),
        Linear(384),
        Linear(192),
        Linear(classes),
    ),
    "resnet20_gn": bayesadmm.resnet20,
    "fedgvi_mlp": lambda classes, channels, size: (Linear(200), Linear(classes)),
    "fedgvi_mlp2": lambda classes, channels, size: (Linear(100), Linear(100), Linear(classes)),
    "pfedvem_cnn": lambda classes, channels, size: (
        Conv(16, 5, 2),
        Conv(32, 5, 2),
        Linear(120),
        Linear(84),
        Linear(classes),
    ),
}


def fault(name: str, builder: Any) -> str:
    """Name what keeps this from being a network; "" if nothing does."""
    if name == CONVOLUTIONS:
        return "this word means that only convolutions are shared; take another name"
    if isinstance(builder, nn.Module):
        return "expected a function that builds the network, found one that is built; put `lambda classes, channels, size:` before it"
    return "" if callable(builder) else "expected a function that builds the network"


def about(builder: Builder) -> str:
    """Describe a network in a line: the start of its docstring, or the layers of a chain; "" for neither."""
    if text := inspect.getdoc(builder):
        line = text.splitlines()[0].removeprefix("Build ")
        return line[:1].upper() + line[1:]
    if builder not in NETWORKS.values():
        return ""
    layers = layers_of(builder)
    convolutions = [one for one in layers if isinstance(one, Conv)]
    told = []
    if convolutions:
        sizes = listed(dict.fromkeys(f"{one.kernel}x{one.kernel}" for one in convolutions))
        told += [f"{sizes} convolutions with {listed(one.out for one in convolutions)} maps"]
    if hidden := [one.out for one in layers[:-1] if isinstance(one, Linear)]:
        told += [f"{listed(hidden)} hidden units"]
    return f"{', '.join(told)}." if told else "One linear layer."


def layers_of(builder: Builder) -> tuple[Conv | Linear, ...]:
    """Return the layers of a chain of ours."""
    made = builder(10, 3, 32)
    return made.layers if isinstance(made, Chain) else cast(tuple[Conv | Linear, ...], made)


def fully_connected(name: str) -> bool:
    """Return whether a network of ours has fully connected layers alone; false for any other."""
    builder = NETWORKS.get(name)
    if builder is None or inspect.getdoc(builder):  # those with words of their own are modules
        return False
    return all(isinstance(layer, Linear) for layer in layers_of(builder))


def listed(values: Iterable[object]) -> str:
    """Write values in a row: `32, 64 and 64`."""
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


registry = plugins.Modules("networks", "model", lambda: NETWORKS, "NETWORKS", fault)


def check(name: object, key: str) -> str:
    """Return `name` if a network has it; raise InputError that names the run file's `key` otherwise."""
    registry.plugin(name, key)
    return str(name)


def build(name: str, classes: int, channels: int, size: int, weights: Path | None = None) -> AnyNetwork:
    """Return `build_for` images of channels x size x size."""
    return build_for(name, classes, (channels, size, size), weights)


def build_for(name: str, classes: int, shape: tuple[int, ...], weights: Path | None = None) -> AnyNetwork:
    """Return the network `name` for examples of a shape and that many classes; one object for each request.

    `weights`: a file that it starts from. Raises InputError for an unknown name, for examples that the network cannot take,
    and for weights that are not its own.
    """
    return built(name, registry.plugin(name, "model").value(), classes, shape, weights)


@cache
def built(name: str, builder: Builder, classes: int, shape: tuple[int, ...], weights: Path | None) -> AnyNetwork:
    """Build the network that a builder gives."""
    with naming(name, shape), torch.random.fork_rng(devices=[]):
        if weights is not None:
            builder = pretraining.pretrained(cast(ModuleBuilder, builder), weights)
        made = call(builder, classes, shape)
    if isinstance(made, nn.Module):
        return ModuleNetwork(name, cast(ModuleBuilder, builder), classes, shape)
    chain = Chain(made) if isinstance(made, tuple) else made
    if not (isinstance(chain, Chain) and chain.layers and all(isinstance(one, Conv | Linear) for one in chain.layers)):
        raise InputError(
            f"model '{name}': expected a torch.nn.Module, or a tuple of layers of bayesfed.models.network (Conv, Linear), found "
            f"{' '.join(repr(made).split()):.80}"
        )
    return Network(name, chain, shape)
