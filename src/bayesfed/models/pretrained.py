"""Pretrained weights from a file of the user's: verified by the checksum in its name, and put into a network.

A file is called `<anything>-<first digits of its SHA-256>.pth`, as torchvision's own are (`resnet18-f37072fd.pth`), or
`.safetensors`. So its name, which a run file and with it the key of the run holds, says what is in it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bayesfed.core import files
from bayesfed.core.errors import InputError, out_of_memory, words

NAME = re.compile(r"[\w.-]*-([0-9a-f]{8,64})\.(pth|safetensors)")
SCRATCH = "from scratch"  # what is said of a network without a file
COUNTS = ".num_batches_tracked"  # of batch normalisation, which older files lack

Build = Callable[..., nn.Module]


def check(name: object, key: str) -> str:
    """Return `name` if a file of weights can be called so; raise InputError that names the run file's `key` otherwise."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"{key}: expected a file's name that ends in 8 or more digits of its SHA-256, like resnet18-f37072fd.pth or "
            f"mine-0123abcd.safetensors, found {name!r}"
        )
    return name


def find(folder: Path, name: str) -> Path:
    """Find the file of that name in a folder and verify its checksum; raise InputError where it is missing, or
    another.
    """
    path, wanted = folder / name, NAME.fullmatch(name)
    assert wanted is not None
    if not path.is_file():
        raise InputError(
            f"weights: there is no file {path}; put it there (torchvision's: https://download.pytorch.org/models/{name}), or "
            "name its folder by --weights, or `weights` in a config"
        )
    if not (found := files.sha256(path)).startswith(wanted[1]):
        raise InputError(
            f"weights: {path} is damaged or another file: its SHA-256 begins with {found[:8]}, not {wanted[1]}"
        )
    return path


def read(path: Path) -> Mapping[str, Tensor]:
    """Read the tensors of a file by name, on the host; raise InputError where it holds anything else."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load and a pickle raise what comes
        if out_of_memory(error):
            raise
        raise InputError(f"weights: {path} is no file of tensors ({words(error)})") from None
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise InputError(f"weights: {path} is no file of tensors by name")
    return tensors


def pretrained(build: Build, path: Path) -> Build:
    """Return a function that builds the same network with the weights of a file.

    The head, the layer that gives the logits, stays as it is initialised where the file's has another number of classes.
    What is built raises InputError where the file is not one of this network.
    """
    tensors = read(path)

    @functools.wraps(build, updated=())  # its arguments say what it is called with
    def built(classes: int, *shape: Any) -> nn.Module:
        module = build(classes, *shape)
        own = module.state_dict()
        both = own.keys() & tensors.keys()
        fitting = {name for name in both if own[name].shape == tensors[name].shape}
        head = {
            name
            for name in both - fitting
            if own[name].shape[:1] == (classes,) and own[name].shape[1:] == tensors[name].shape[1:]
        }
        odd = (own.keys() ^ tensors.keys()) | (both - fitting - head)
        odd = {name for name in odd if not name.endswith(COUNTS)}
        if odd or not fitting:
            raise InputError(f"weights of {path.name} are another network's: '{min(odd or own)}' does not fit")
        module.load_state_dict({name: tensors[name] for name in fitting}, strict=False)
        return module

    return built
