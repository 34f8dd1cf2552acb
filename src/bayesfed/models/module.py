"""Any `torch.nn.Module` as a network: a pure function of one flat parameter vector, like the papers' own.

What a module is beyond its parameters is found out once, by running it: which of its buffers training changes (the
statistics of batch normalisation; they become tensors of a node's state, all others are constants), whether it draws
random numbers in training (they come from the node's stream, others are refused), and whether an image's output depends
on its batch. A pass that is to be differentiated is a training pass; one under `torch.no_grad` evaluates, changes nothing,
and draws for MC dropout alone.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import random
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesfed.core import reachable
from bayesfed.core.errors import InputError, UnfitImages, out_of_memory, words
from bayesfed.models.counting import CountedProducts
from bayesfed.models.drawing import Culprit, Drawing
from bayesfed.models.last_layer import linear_layers, uncast
from bayesfed.models.network import channels_first, layout_for

Build = Callable[..., nn.Module]  # of (classes, channels, size), or of (classes, shape)

# What has a scale and a shift for that which it normalises.
NORMALISING = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
PACKAGES = Path(torch.__file__).parents[1]
LIBRARIES = {PACKAGES / "torch", PACKAGES / "torchvision", Path(__file__).parents[1]}  # where no line is a user's

BUILDING = threading.Lock()  # held while torch's global generator has a seed of ours
MODES = ((False, "evaluation"), (True, "training"))
LARGEST = 128  # images of a batch that is tried: what larger ones do differently, nothing tells
MOVED = 0.05  # standard deviation of what parameters are moved by, so that no chance makes outputs probabilities


class ModuleNetwork:
    """A module, seen as a function of `theta`; its attributes are those of `Network`.

    `theta` holds every trainable parameter in the order of `named_parameters()`, shared ones once. Parameters that need no
    gradient, and buffers that training leaves alone, are constants: those of a module built under seed 0. `constants`: their
    names, in a state dict. `statistics` are the buffers that training changes, as they are before it. `scaling`: which
    entries of theta are scales and shifts of normalisation, (parameters,) bool. `batchwise`: whether an image's logits
    depend on the other images of its mini-batch in training. `probabilities`: `evaluation` or `training`, where its outputs
    are class probabilities in one of these, whatever theta is.
    """

    convolution_parameters = 0  # which layers could be shared in multi-task learning, a module does not say

    def __init__(self, name: str, build: Build, classes: int, shape: tuple[int, ...]) -> None:
        """Build the module for examples of a shape and that many classes, and look at what it does.

        Raises InputError where it cannot be built, does not take such examples, does not give that many logits, or does
        what cannot be repeated.
        """
        self.name, self.shape, self.classes = name, shape, classes
        self.build = build
        self._build: Callable[[], nn.Module] = lambda: call(build, classes, shape)
        self._mine = threading.local()
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(4, *self.shape, generator=generator)
        with naming(name, self.shape), BUILDING, torch.random.fork_rng(devices=[]):
            module = self._built(0)
            parameters = trainable(module)
            self.named_shapes = {key: tuple(value.shape) for key, value in parameters.items()}
            self.shapes = list(self.named_shapes.values())
            self.sizes = [value.numel() for value in parameters.values()]
            self.parameters = sum(self.sizes)
            scales = {
                f"{name}.{key}".lstrip(".")
                for name, part in module.named_modules()
                if isinstance(part, NORMALISING)
                for key, _ in part.named_parameters()
            }
            self.scaling = np.repeat([key in scales for key in self.named_shapes], self.sizes)
            if not self.parameters:
                raise InputError("it has no parameters to train")
            again = trainable(self._built(0))
            other_weights = [key for key, value in parameters.items() if not torch.equal(value, again[key])]
            if other_weights:
                raise InputError(
                    f"built again under the same seed of torch, '{other_weights[0]}' has other weights; initialise by "
                    "torch.nn.init, or torch.randn and its like"
                )
            with CountedProducts() as counted, linear_layers(module) as called, torch.no_grad():
                logits = module(images)
            self._check(logits, len(images))
            self.operations = counted.multiply_adds // len(images)
            self.statistics = changing(module, images)
            self.constants = module.state_dict().keys() - self.named_shapes.keys() - self.statistics.keys()
            self._last_linear = called[-1] if called else None
            self._skeleton = module
            theta = vector(parameters.values())
            for value in parameters.values():  # only their places are needed from here on
                value.data = value.data.new_empty(0)
            self._examine(theta, images, generator)
            self._mine = threading.local()
        self._tried: set[int] = set()
        for count in (1, 2):
            self.try_batch(count, theta)
        self._mine = threading.local()

    @functools.cached_property
    def training_operations(self) -> int:
        """The multiply-adds for one image, with the way back to the parameters."""
        images = torch.zeros(2, *self.shape)
        with BUILDING, torch.random.fork_rng(devices=[]):
            module = self._built(0)
            with CountedProducts() as counted, torch.enable_grad():
                module(images).sum().backward()
        return int(counted.multiply_adds) // len(images)

    def _check(self, logits: Tensor, count: int) -> None:
        """Raise InputError for what are no logits (count, classes) in fp32 of so many images."""
        if logits.shape != (count, self.classes):
            raise InputError(
                f"expected logits of shape (images, {self.classes}), found {tuple(logits.shape)} for {count} "
                f"image{'s' if count > 1 else ''}"
            )
        refuse_dtype(logits.dtype, "its logits are")

    def try_batch(self, count: int, theta: Tensor | None = None) -> None:
        """Raise InputError where the module does not give logits for a batch of so many images, or as many as are tried at
        most, in evaluation or in training; of one image in training only where that can be."""
        count = min(count, LARGEST)
        if count in self._tried:
            return
        if theta is None:
            theta = torch.from_numpy(self.initial(np.random.default_rng(0)))
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(count, *self.shape, generator=generator)
        for training, when in MODES:
            if not (training and count == 1 and self.batchwise):
                state = {key: value.clone() for key, value in self.statistics.items()}
                with naming(self.name, self.shape, f"for a batch of {count} in {when}, "), torch.no_grad():
                    self._check(self._pass(theta, images, state, generator, training), count)
        self._tried.add(count)

    def _built(self, seed: int) -> nn.Module:
        """Build a module in evaluation mode, initialised under a seed; layers that are lazy see first images."""
        torch.default_generator.manual_seed(seed)  # and not a GPU's too, which nothing here gives back
        module = self._build().eval()
        for key, value in trainable(module).items():
            refuse_dtype(value.dtype, f"its parameter '{key}' is")
        with torch.no_grad():
            module(torch.zeros(2, *self.shape))
        return module

    def _examine(self, theta: Tensor, images: Tensor, generator: torch.Generator) -> None:
        """Find out whether the module is random in training, gives probabilities, and lets images depend on each other."""

        def run(images: Tensor, training: bool, theta: Tensor = theta) -> tuple[Tensor, dict[str, Tensor]]:
            state = {key: value.clone() for key, value in self.statistics.items()}
            with torch.set_grad_enabled(training):
                logits = self.logits(theta.clone().requires_grad_(training), images, state, generator.manual_seed(1))
            if training and not logits.requires_grad:
                raise InputError(
                    "in training its logits have no gradient; take torch.no_grad, detach and .data out of it"
                )
            return logits.detach(), state

        self.random, self.probabilities = True, ""
        for training, when in MODES:
            before = elsewhere()
            (logits, state), (again, _) = run(images, training), run(images, training)
            drew = elsewhere() != before
            if drew or not alike(logits, again):
                with Culprit() as culprit:
                    run(images, training)
                none = ", which takes no other" if training else ""
                by = f" (by {culprit.name}{none})" if culprit.name else ""
                what = f"draws random numbers from a generator that is not its node's{by}"
                what = what if drew else "gives other logits when it sees the same images again"
                raise InputError(
                    f"in {when} it {what}; draw in training only, by dropout of torch.nn, or torch.rand and its like"
                )
            if are_probabilities(logits):
                moved = theta + MOVED * torch.randn(len(theta), generator=torch.Generator().manual_seed(2))
                if are_probabilities(run(images, training, moved)[0]):
                    self.probabilities = self.probabilities or when
        self.random = not torch.equal(generator.get_state(), torch.Generator().manual_seed(1).get_state())
        for key, value in self.statistics.items():
            if torch.equal(value, state[key]):
                raise InputError(f"training replaces its buffer '{key}'; change it in place, by copy_")
        changed = torch.cat([images[:-1], images[-1:] + 1])
        self.batchwise = not alike(logits[:-1], run(changed, True)[0][:-1])

    def _copy(self, like: Tensor, training: bool, dropout: bool) -> nn.Module:
        """Return this thread's own module for tensors like that one: a call changes it for a while."""
        copies = self._mine.__dict__
        key = f"{like.device} {like.dtype} {training} {dropout}"
        if key not in copies:
            make = functools.partial(self._made, like.device, like.dtype, training, dropout)
            copies[key] = make(), make
        return copies[key][0]  # type: ignore[no-any-return]

    def _made(self, device: torch.device, dtype: torch.dtype, training: bool, dropout: bool) -> nn.Module:
        """Make a module that nothing has passed through yet; `dropout`: in training, and its normalisation in evaluation."""
        made = copy.deepcopy(self._skeleton).to(device, dtype).train(training or dropout)
        for part in made.modules() if dropout else ():
            if isinstance(part, NORMALISING):
                part.eval()
        if self._last_linear is not None:
            layer = made.get_submodule(self._last_linear)
            layer.forward = functools.partial(uncast, device.type, layer.forward)
        return made

    def kept(self) -> str | None:
        """Return the attribute of this thread's modules that passes have changed, if there is one: all that may change
        is in the statistics.
        """
        for module, make in list(self._mine.__dict__.values()):
            if path := reachable.held({"self": module}).changed(reachable.held({"self": make()})):
                return path
        return None

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """Draw the module's own initialisation, under a seed that is drawn: float32 (parameters,), on the host."""
        with BUILDING, torch.random.fork_rng(devices=[]):
            module = self._built(int(generator.integers(2**63)))
        return vector(trainable(module).values()).float().numpy()

    def logits(self, theta: Tensor, images: Tensor, statistics: Mapping[str, Tensor],
               generator: torch.Generator, dropout: bool = False) -> Tensor:  # fmt: skip
        """Return logits (batch, classes) of images (batch, channels, size, size) under `theta` (parameters,).

        Products run in the images' dtype, by torch.autocast, except those of the linear layer that is called last: see
        `at_least_fp32`. `statistics` are changed in place where gradients are enabled, which
        makes it a training pass; its random numbers come from the generator. `dropout`: it evaluates, and drops and draws
        as in training.
        """
        return self._pass(theta, images, statistics, generator, torch.is_grad_enabled(), dropout)

    def _pass(self, theta: Tensor, images: Tensor, statistics: Mapping[str, Tensor], generator: torch.Generator,
              training: bool, dropout: bool = False) -> Tensor:  # fmt: skip
        """Do as `logits`, in training or in evaluation."""
        if layout_for(images.device, images.dtype) is torch.contiguous_format:
            images = channels_first(images)
        elif images.dim() == 4 and images.shape[1] == 1:
            # A sum of grey images is no longer channels-last, and so a CPU pools several times faster.
            images = images.reshape(len(images), *images.shape[2:], 1).permute(0, 3, 1, 2)
        if dropout:
            statistics = {key: value.clone() for key, value in statistics.items()}
        drawing = Drawing(generator) if (training or dropout) and self.random else contextlib.nullcontext()
        parts = zip(self.named_shapes.items(), theta.split(self.sizes), strict=True)
        tensors = {key: part.view(shape) for (key, shape), part in parts} | dict(statistics)
        with (
            drawing,
            torch.autocast(theta.device.type, images.dtype, enabled=images.dtype != theta.dtype, cache_enabled=False),
        ):
            return functional_call(self._copy(theta, training, dropout), tensors, (images,))  # type: ignore[no-any-return]

    def module(self, theta: Tensor, statistics: Mapping[str, Tensor]) -> nn.Module:
        """Return an ordinary module with these parameters and statistics, in evaluation mode, on the host in fp32."""
        with BUILDING, torch.random.fork_rng(devices=[]):
            module = self._built(0)
            for key, value in module.named_buffers():
                value.copy_(statistics.get(key, value))
        torch.nn.utils.vector_to_parameters(theta.detach().float().cpu(), trainable(module).values())
        return module


def call(build: Callable[..., Any], classes: int, shape: tuple[int, ...]) -> Any:
    """Call what builds a network with (classes, shape), or (classes, channels, size), of which a vector has size 1."""
    arguments = [one for one in inspect.signature(build).parameters.values() if one.kind in POSITIONAL]
    if len(arguments) == 2:
        return build(classes, shape)
    return build(classes, shape[0], shape[-1] if len(shape) > 1 else 1)


@contextlib.contextmanager
def naming(name: str, shape: tuple[int, ...], batch: str = "") -> Iterator[None]:
    """Turn what a user's code raises inside into an InputError that names the network and the user's line; memory that
    ran out stays. Shapes that do not fit become UnfitImages, unless the size of a `batch` may be the reason.
    """
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise
        ours = isinstance(error, InputError)
        kind = UnfitImages if isinstance(error, RuntimeError | ValueError) and not batch else InputError
        frames = traceback.extract_tb(error.__traceback__)
        at = [
            f" ({one.filename}, line {one.lineno})" for one in frames if not LIBRARIES & {*Path(one.filename).parents}
        ]
        built = f"model '{name}', built for images of {'x'.join(map(str, shape))}"
        raise kind(f"{built}: {batch}{error if ours else words(error)}{''.join(at[-1:])}") from None


def elsewhere() -> tuple[object, ...]:
    """Return the states of the generators that all threads share: torch's, Python's and numpy's."""
    return bytes(torch.get_rng_state().numpy()), random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def are_probabilities(outputs: Tensor) -> bool:
    """Return whether outputs (batch, classes) are none below 0, and of sum 1 for each image."""
    return bool((outputs >= 0).all() and ((outputs.sum(-1) - 1).abs() < 0.01).all())  # near: some keep them off 0


def refuse_dtype(dtype: torch.dtype, whose: str) -> None:
    """Raise InputError for another number than fp32, from which a run goes to its precision by itself."""
    if dtype != torch.float32:
        raise InputError(
            f"{whose} {str(dtype).removeprefix('torch.')}; keep to float32: leave double() and its like out"
        )


def alike(one: Tensor, other: Tensor) -> bool:
    """Return whether logits are the same up to rounding."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that want a gradient, by name."""
    return {key: value for key, value in module.named_parameters() if value.requires_grad}


def vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return all values as one vector."""
    return torch.cat([value.detach().flatten() for value in parameters])


def changing(module: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the buffers that a training pass changes, as they are before it."""
    before = {key: value.clone() for key, value in module.named_buffers()}
    trained = copy.deepcopy(module).train()
    trained(images)
    after = dict(trained.named_buffers())
    return {key: value for key, value in before.items() if not torch.equal(value, after[key])}
