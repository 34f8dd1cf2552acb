"""Any `torch.nn.Module` as a network: a pure function of one flat parameter vector, like the papers' own.

What a module is beyond its parameters is found out once, by running it: which of its buffers training changes (the
statistics of batch normalisation; they become tensors of a node's state, all others are constants), whether it draws
random numbers in training (they come from the node's stream, others are refused), and whether an image's output depends
on its batch. A pass that is to be differentiated is a training pass; one under `torch.no_grad` evaluates, draws nothing and
changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import random
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from bayesfed import reach
from bayesfed.errors import InputError, UnfitImages, out_of_memory, words
from bayesfed.models.network import at_least_fp32, channels_first, layout_for

Build = Callable[[int, int, int], nn.Module]

# What has a scale and a shift for that which it normalises.
NORMALISING = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

PACKAGES = Path(torch.__file__).parents[1]
LIBRARIES = {PACKAGES / "torch", PACKAGES / "torchvision", Path(__file__).parents[1]}  # where no line is a user's

BUILDING = threading.Lock()  # held while torch's global generator has a seed of ours

# Functions that draw, and take a generator; the second kind, in the shape of a tensor, does not take one everywhere.
DRAW = {
    torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial,
    torch.poisson, Tensor.bernoulli, Tensor.multinomial, Tensor.bernoulli_, Tensor.cauchy_, Tensor.exponential_,
    Tensor.geometric_, Tensor.log_normal_, Tensor.normal_, Tensor.random_, Tensor.uniform_,
}  # fmt: skip
LIKE: dict[Any, Callable[[Tensor, torch.Generator], Tensor]] = {
    torch.rand_like: lambda like, generator: torch.empty_like(like).uniform_(generator=generator),
    torch.randn_like: lambda like, generator: torch.empty_like(like).normal_(generator=generator),
}
# Dropout of entries, or of whole channels where so many dimensions are dropped together.
DROPOUTS = {F.dropout: 0, torch.dropout: 0, F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}


class Drawing(TorchFunctionMode):
    """Inside, random functions draw from a generator instead of torch's global one, which all threads would share."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return self.dropout(DROPOUTS[func], *args, **kwargs)
        if func in LIKE and len(args) == 1 and not kwargs:
            return LIKE[func](args[0], self.generator)
        if func in DRAW and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)

    def dropout(self, whole: int, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Entries, or channels of `whole` dimensions, are 0 with probability p, all else grows by 1/(1 - p)."""
        if not training or p == 0:
            return x
        shape = x.shape[: x.dim() - whole] + (1,) * whole
        keep = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=self.generator)
        keep = keep.div_(1 - p) if p < 1 else keep
        return x.mul_(keep) if inplace else x * keep


class ModuleNetwork:
    """A module, seen as a function of `theta`; its attributes are those of `Network`.

    `theta` holds every trainable parameter in the order of `named_parameters()`, shared ones once. Parameters that need no
    gradient, and buffers that training leaves alone, are constants: those of a module built under seed 0. `constants`: their
    names, in a state dict. `statistics` are the buffers that training changes, as they are before it. `scaling`: which
    entries of theta are scales and shifts of normalisation, (parameters,) bool. `batchwise`: whether an image's logits
    depend on the other images of its mini-batch in training.
    """

    convolution_parameters = 0  # which layers could be shared in multi-task learning, a module does not say

    def __init__(self, name: str, build: Build, classes: int, channels: int, size: int) -> None:
        """Build the module for `channels` x `size` x `size` images and that many classes, and look at what it does.

        Raises InputError where it cannot be built, does not take such images, does not give that many logits, or does
        what cannot be repeated.
        """
        self.name, self.shape = name, (channels, size, size)
        self.build = build
        self._build = lambda: build(classes, channels, size)
        self._mine = threading.local()
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(4, *self.shape, generator=generator)
        with naming(name, self.shape), BUILDING, torch.random.fork_rng(devices=[]):
            module = self._built(0)
            parameters = trainable(module)
            self.shapes = {key: tuple(value.shape) for key, value in parameters.items()}
            self.sizes = [value.numel() for value in parameters.values()]
            self.parameters = sum(self.sizes)
            scales = {
                f"{name}.{key}".lstrip(".")
                for name, part in module.named_modules()
                if isinstance(part, NORMALISING)
                for key, _ in part.named_parameters()
            }
            self.scaling = np.repeat([key in scales for key in self.shapes], self.sizes)
            if not self.parameters:
                raise InputError("it has no parameters to train")
            again = trainable(self._built(0))
            other_weights = [key for key, value in parameters.items() if not torch.equal(value, again[key])]
            if other_weights:
                raise InputError(
                    f"built again under the same seed of torch, '{other_weights[0]}' has other weights; initialise by "
                    "torch.nn.init, or torch.randn and its like"
                )
            with FlopCounterMode(display=False) as counter, linear_layers(module) as called, torch.no_grad():
                logits = module(images)
            if logits.shape != (len(images), classes):
                found = tuple(logits.shape)
                raise InputError(
                    f"expected logits of shape (images, {classes}), found {found} for {len(images)} images"
                )
            self.operations = counter.get_total_flops() // 2 // len(images)
            self.statistics = changing(module, images)
            self.constants = module.state_dict().keys() - self.shapes.keys() - self.statistics.keys()
            self._last_linear = called[-1] if called else None
            self._skeleton = module
            self._examine(vector(parameters.values()), images, generator)
            for value in parameters.values():  # only their places are needed from here on
                value.data = value.data.new_empty(0)
            self._mine = threading.local()

    def _built(self, seed: int) -> nn.Module:
        """A new module in evaluation mode, initialised under a seed; layers that are lazy see a first image."""
        torch.default_generator.manual_seed(seed)  # and not a GPU's too, which nothing here gives back
        module = self._build().eval()
        with torch.no_grad():
            module(torch.zeros(1, *self.shape))
        return module

    def _examine(self, theta: Tensor, images: Tensor, generator: torch.Generator) -> None:
        """Find out whether the module is random in training, and whether its images depend on each other."""

        def run(images: Tensor, training: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
            state = {key: value.clone() for key, value in self.statistics.items()}
            with torch.set_grad_enabled(training):
                logits = self.logits(theta.clone().requires_grad_(training), images, state, generator.manual_seed(1))
            if training and not logits.requires_grad:
                raise InputError(
                    "in training its logits have no gradient; take torch.no_grad, detach and .data out of it"
                )
            return logits.detach(), state

        self.random = True
        for training, when in ((False, "evaluation"), (True, "training")):
            before = elsewhere()
            (logits, state), (again, _) = run(images, training), run(images, training)
            drew = elsewhere() != before
            if drew or not alike(logits, again):
                what = "draws random numbers from a generator that is not its node's"
                what = what if drew else "gives other logits when it sees the same images again"
                raise InputError(
                    f"in {when} it {what}; draw in training only, by dropout of torch.nn, or torch.rand and its like"
                )
        self.random = not torch.equal(generator.get_state(), torch.Generator().manual_seed(1).get_state())
        for key, value in self.statistics.items():
            if torch.equal(value, state[key]):
                raise InputError(f"training replaces its buffer '{key}'; change it in place, by copy_")
        other = torch.cat([images[:-1], images[-1:] + 1])
        self.batchwise = not alike(logits[:-1], run(other)[0][:-1])

    def _copy(self, like: Tensor, training: bool) -> nn.Module:
        """This thread's own module for tensors like that one: a call changes it for a while."""
        copies = self._mine.__dict__
        key = f"{like.device} {like.dtype} {training}"
        if key not in copies:
            make = functools.partial(self._made, like.device, like.dtype, training)
            copies[key] = make(), make
        return copies[key][0]  # type: ignore[no-any-return]

    def _made(self, device: torch.device, dtype: torch.dtype, training: bool) -> nn.Module:
        """A module that nothing has passed through yet."""
        made = copy.deepcopy(self._skeleton).to(device, dtype).train(training)
        if self._last_linear is not None:
            layer = made.get_submodule(self._last_linear)
            layer.forward = functools.partial(uncast, device.type, layer.forward)
        return made

    def kept(self) -> str | None:
        """The attribute of this thread's modules that passes have changed, if there is one: all that may change is in the
        statistics."""
        for module, make in list(self._mine.__dict__.values()):
            if path := reach.held({"self": module}).changed(reach.held({"self": make()})):
                return path
        return None

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """The module's own initialisation, under a seed that is drawn: float32 (parameters,), on the host."""
        with BUILDING, torch.random.fork_rng(devices=[]):
            module = self._built(int(generator.integers(2**63)))
        return vector(trainable(module).values()).float().numpy()

    def logits(self, theta: Tensor, images: Tensor, statistics: Mapping[str, Tensor],
               generator: torch.Generator) -> Tensor:  # fmt: skip
        """Logits (batch, classes) of images (batch, channels, size, size) under `theta` (parameters,).

        Products run in the images' dtype, by torch.autocast, but for those of the linear layer that is called last: see
        `at_least_fp32`. `statistics` are changed in place where gradients are enabled, which
        makes it a training pass; its random numbers come from the generator.
        """
        training = torch.is_grad_enabled()
        if layout_for(images.device, images.dtype) is torch.contiguous_format:
            images = channels_first(images)
        elif images.shape[1] == 1:
            # A sum of grey images is no longer channels-last, and so a CPU pools several times faster.
            images = images.reshape(len(images), *images.shape[2:], 1).permute(0, 3, 1, 2)
        drawing = Drawing(generator) if training and self.random else contextlib.nullcontext()
        parts = zip(self.shapes.items(), theta.split(self.sizes), strict=True)
        tensors = {key: part.view(shape) for (key, shape), part in parts} | dict(statistics)
        with (
            drawing,
            torch.autocast(theta.device.type, images.dtype, enabled=images.dtype != theta.dtype, cache_enabled=False),
        ):
            return functional_call(self._copy(theta, training), tensors, (images,))  # type: ignore[no-any-return]

    def module(self, theta: Tensor, statistics: Mapping[str, Tensor]) -> nn.Module:
        """An ordinary module with these parameters and statistics, in evaluation mode, on the host in fp32."""
        with BUILDING, torch.random.fork_rng(devices=[]):
            module = self._built(0)
            for key, value in module.named_buffers():
                value.copy_(statistics.get(key, value))
        torch.nn.utils.vector_to_parameters(theta.detach().float().cpu(), trainable(module).values())
        return module


@contextlib.contextmanager
def naming(name: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Whatever a user's code raises inside becomes an InputError that names the network and the user's line, but for memory
    that ran out; what shapes raise that do not fit, UnfitImages."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise
        ours = isinstance(error, InputError)
        kind = UnfitImages if isinstance(error, RuntimeError | ValueError) else InputError
        frames = traceback.extract_tb(error.__traceback__)
        at = [
            f" ({one.filename}, line {one.lineno})" for one in frames if not LIBRARIES & {*Path(one.filename).parents}
        ]
        built = f"model '{name}', built for images of {'x'.join(map(str, shape))}"
        raise kind(f"{built}: {error if ours else words(error)}{''.join(at[-1:])}") from None


def elsewhere() -> tuple[object, ...]:
    """The states of the generators that all threads share: torch's, Python's and numpy's."""
    return bytes(torch.get_rng_state().numpy()), random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether logits are the same but for rounding."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that want a gradient, by name."""
    return {key: value for key, value in module.named_parameters() if value.requires_grad}


def vector(parameters: Iterable[Tensor]) -> Tensor:
    """All values as one vector."""
    return torch.cat([value.detach().flatten() for value in parameters])


@contextlib.contextmanager
def linear_layers(module: nn.Module) -> Iterator[list[str]]:
    """The names of the linear layers that a pass inside calls, as they are called."""
    called: list[str] = []
    hooks = [
        part.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
    ]
    yield called
    for hook in hooks:
        hook.remove()


def uncast(device: str, forward: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
    """A layer's forward pass on a device without autocast."""

    def wide(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(at_least_fp32(value.dtype)) if floats else value

    with torch.autocast(device, enabled=False):
        return forward(*map(wide, given), **{name: wide(value) for name, value in named.items()})


def changing(module: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """The buffers that a training pass changes, as they are before it."""
    before = {key: value.clone() for key, value in module.named_buffers()}
    trained = copy.deepcopy(module).train()
    trained(images)
    after = dict(trained.named_buffers())
    return {key: value for key, value in before.items() if not torch.equal(value, after[key])}
