"""The client or server as a method sees it: its tensors, networks, noise and mini-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from bayesfed.core.errors import InputError

if TYPE_CHECKING:
    from bayesfed.methods.predictors import Predictor


State = dict[str, Tensor]  # named tensors on one device, of any shape and dtype
Logits = Callable[[Tensor, Tensor], Tensor]  # of a parameter vector and images
GLOBAL = "global"  # the predictor of the server's model; no predictor of a client is called so
LOCAL = "local"  # the network of a client's own, where GLOBAL is the one that travels
SAMPLED = "_sampled"  # ends the names of predictors that average over weight samples
RATE = "schedule:rate"  # in a client's state, where the run has a schedule: what learning rates are multiplied by now


@dataclass
class Batch:
    """A mini-batch: images x (B, C, H, W), normalised, and labels y (B,).

    `weight` (B,), where there is one, is 1/size for the batch's images and 0 for those that only fill it up. `index`
    (B,), where the phase asks for it, is the place of each image among those that the phase trains on.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    index: Tensor | None = None

    def mean(self, per_image: Tensor) -> Tensor:
        """Return the mean over the images of the batch of values (B,)."""
        return per_image.mean() if self.weight is None else (per_image * self.weight).sum()

    @property
    def size(self) -> Tensor:
        """The number of images in the batch, a tensor () of type float."""
        if self.weight is None:
            return torch.full((), float(len(self.y)), device=self.y.device)
        return 1 / self.weight.amax()


class Learner:
    """The part of a node that a mini-batch step sees: its named tensors, its models, its noise.

    `learner["mu"]` is a tensor of the state, to be changed in place. `n` is the number of the node's training images
    (a float tensor, as losses need it).
    """

    fused = True  # whether its optimisers' calls stay as they are; traced they become plain operators

    def __init__(self, *, state: State, n: Tensor, models: Mapping[str, Model], generator: torch.Generator,
                 scaling: Tensor | None = None) -> None:  # fmt: skip
        self.state = state
        self.n = n
        # By name: `global` is the model that travels (the paper's global or meme model), `local` the client's own, others
        # are those of the method's `networks`.
        self.models = models
        self.generator = generator  # of the weight noise
        self.scaling = scaling  # which entries of the model that travels scale and shift what it normalises, (P,) bool

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.state[name]
        except KeyError:
            raise LookupError(f"no '{name}' in the state, which has {', '.join(self.state) or 'nothing'}") from None

    def __setitem__(self, name: str, value: Tensor) -> None:
        raise InputError(f"a step changes its tensors in place: c['{name}'].copy_(...), not c['{name}'] = ...")

    def model(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return logits (B, classes), in the states' dtype, of the model that travels between server and clients.

        Where its gradient is wanted this is a training pass: dropout draws from the node's noise, batch normalisation
        takes the batch's statistics. Under `torch.no_grad`, as for a teacher or a predictor, it evaluates.
        """
        return self.models[GLOBAL](self, theta, x)

    def dropped(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return logits (B, classes) of `model` in evaluation, with dropout, which draws from the node's noise: a pass of
        MC dropout. Without dropout layers it is `model` under `torch.no_grad`.
        """
        with torch.no_grad():
            return self.models[GLOBAL](self, theta, x, dropout=True)

    def last_inputs(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """Return what the last layer of `model` is given in evaluation (B, width), in the states' dtype; None of a module,
        whose layers are not known.
        """
        with torch.no_grad():
            return self.models[GLOBAL].last_inputs(self, theta, x)

    def local_model(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return logits (B, classes) of the client's own model; see `model`."""
        return self.models[LOCAL](self, theta, x)

    def network(self, name: str) -> Logits:
        """Return the model of that name among the method's `networks`, as a function of its parameter vector and
        images; see `model`.
        """
        return Bound(self, name)

    def having(self, statistics: State) -> Learner:
        """Return the learner with these statistics of normalisation in the place of its own: to predict under
        `torch.no_grad` as another node would, with the `statistics` of its `Update`.
        """
        state = {**self.state, **statistics}
        return Learner(state=state, n=self.n, models=self.models, generator=self.generator, scaling=self.scaling)

    def rate(self, lr: float) -> float | Tensor:
        """Return a learning rate as the run's schedule has it now: a number, or a tensor ()."""
        return lr * self.state[RATE] if RATE in self.state else lr

    def noise(self, like: Tensor) -> Tensor:
        """Draw standard normal numbers in the shape of `like` from the stream of this node and round."""
        return torch.randn(like.shape, generator=self.generator, dtype=like.dtype, device=like.device)

    def weights(self, values: Tensor, normalisation: Tensor | float) -> Tensor:
        """Return `values` (..., P) where the model that travels has weights and biases, and `normalisation` where it has
        the scales and shifts of batch normalisation and its like: what a Bayesian network has no distribution of.
        """
        return values if self.scaling is None else torch.where(self.scaling, normalisation, values)

    def learner(self) -> Learner:
        """Return no more than a step may see, sharing the state."""
        return Learner(state=self.state, n=self.n, models=self.models, generator=self.generator, scaling=self.scaling)


class Model(Protocol):
    """A network of a learner's: logits (B, classes) under theta (P,) of images x; `dropout`: see `Learner.dropped`;
    `last_inputs`: as the learner's.
    """

    def __call__(self, c: Learner, theta: Tensor, x: Tensor, *, dropout: bool = False) -> Tensor: ...

    def last_inputs(self, c: Learner, theta: Tensor, x: Tensor) -> Tensor | None: ...


@dataclass(frozen=True)
class Bound:
    """A model of a learner by its name."""

    learner: Learner
    name: str

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.learner.models[self.name](self.learner, theta, x)


class Node(Learner):
    """A client in one round, or the server: a learner that knows its place in the federation.

    `clients` is the number of all clients of the federation, however many take part in a round. `epochs` are the local
    epochs of this round, fewer for a straggler; where it counts mini-batches, they are 0, and `batches` those. `round`
    counts from 1. `classes` are those of the node's task. `total` () is the number of all clients' training images.
    """

    def __init__(self, *, client: int, clients: int, round_number: int, rounds: Callable[..., int], epochs: int,
                 batches: int, n: Tensor, total: Tensor,
                 models: Mapping[str, Model], generator: torch.Generator,
                 initial: Callable[[str, int], Tensor], shared: int, shapes: Mapping[str, Sequence[tuple[int, ...]]],
                 classes: int, seed: Callable[[torch.Generator, str], object],
                 accuracy: Callable[[Predictor, bool], Tensor],
                 images: Callable[[], tuple[Tensor, Tensor]], scaling: Tensor | None,
                 statistics: Mapping[str, Sequence[str]]) -> None:  # fmt: skip
        super().__init__(state={}, n=n, models=models, generator=generator, scaling=scaling)
        self.client = client
        self.clients = clients
        self.round = round_number
        self.total = total
        self._rounds = rounds
        self.epochs, self.batches = epochs, batches
        self.classes = classes
        self.statistics = statistics  # of each network, by their names in the state
        self.shared_parameters = shared  # how many leading entries of the travelling model are aggregated
        self._accuracy = accuracy
        self._images = images
        self.arrived: State = {}  # the engine's: the statistics of the models that travel, as the client received them
        self._initial = initial
        self.shapes = shapes  # of the weights and biases of each network, in the order of its vector
        self._seed = seed

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.state[name] = value

    @property
    def rounds(self) -> int:
        """The planned number of rounds, also where `patience` ends the run earlier. A method that reads it cannot continue a
        shorter run.
        """
        return self._rounds()

    @property
    def last(self) -> bool:
        """True in the run's last round, also where `patience` ends the run. Reading it counts as reading `rounds`."""
        return self.round == self._rounds(ended=True)

    def accuracy(self, predictor: Predictor, on_test: bool = False) -> Tensor:
        """Measure accuracy () on the node's own training images, without augmentation; or, for a method that admits to
        it by `leak`, on its test images.
        """
        return self._accuracy(predictor, on_test)

    def images(self) -> tuple[Tensor, Tensor]:
        """Return the node's own training images (n, C, side, side), normalised, without augmentation, and their labels
        (n,).

        For `start` and for predictors, which must ask for them only when they are used: a run that is loaded has none.
        """
        return self._images()

    def received(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return what `model` gives in evaluation with the statistics that came with the server's message, whatever
        training has made of them: for predictions by the model as it was sent.
        """
        with torch.no_grad():
            return self.having(self.arrived).model(theta, x)

    def initial(self, network: str = GLOBAL, member: int = 0) -> Tensor:
        """Return the initial parameters (P,) of a model that travels, the same for all; `member`: of `global`, those of
        a further member of an ensemble.
        """
        return self._initial(network, member)

    def local_initial(self) -> Tensor:
        """Return the initial parameters of the client's own model; sampled again for each round."""
        return self._initial(LOCAL, 0)

    def reseed(self, purpose: str) -> None:
        """Set `noise` to the start of this round's stream for a purpose; for the engine."""
        self._seed(self.generator, purpose)

    def local(self, step: Callable[[Learner, Batch], None]) -> Phase:
        """Return the phase that is a client's round of that step: its local epochs, or so many mini-batches."""
        return Phase(step, epochs=self.epochs, batches=self.batches)

    @property
    def predicts(self) -> bool:
        """True if the model that travels is a whole network here; not so for a server that shares convolutions."""
        return GLOBAL in self.models

    def shared(self, theta: Tensor) -> Tensor:
        """Return the entries of theta that are aggregated: all, or the convolutions in multi-task learning."""
        return theta[: self.shared_parameters]

    def own(self, theta: Tensor) -> Tensor:
        """Return the entries of theta that never leave the client: none, or the layers behind the convolutions."""
        return theta[self.shared_parameters :]

    def split(self, theta: Tensor, network: str = GLOBAL) -> Sequence[Tensor]:
        """Return a network's vector as views of its weights and biases, each flat, one after another."""
        views: Sequence[Tensor] = theta.split([math.prod(shape) for shape in self.shapes[network]])
        return views

    def splice(self, received: Tensor, own: Tensor) -> Tensor:
        """Return the whole vector from the server's entries and the client's own."""
        return torch.cat([received, own])


@dataclass(frozen=True)
class Phase:
    """A stretch of a node's round with one kind of step: so many epochs, or so many mini-batches.

    `data`: the node's own training images, or those of the server; or, for a method that admits to it by `leak`, the
    node's own test images. `augment`: False takes them as they are. `indexed`: steps are told which images they get.
    `counted`: whether its epochs are local epochs, by which schedules count, and after which clients may be tested; where
    several phases make one up, the last is. `batch_size`: for the server's own phases, and for those of a client that are
    not counted and have whole epochs; 0 is that of the run. `evaluates`: nothing is trained, so that no image is left out
    for what networks need in training. The hooks run at the end of each epoch and of the phase; they work in place, too.
    """

    step: Callable[[Learner, Batch], None]
    epochs: int = 0
    batches: int = 0
    data: Literal["own", "server", "test"] = "own"
    augment: bool = True
    indexed: bool = False
    batch_size: int = 0
    counted: bool = True
    evaluates: bool = False
    epoch_end: Callable[[Node], None] | None = None
    end: Callable[[Node], None] | None = None

    @property
    def step_name(self) -> str:
        """The name of the step, for errors."""
        return getattr(self.step, "__qualname__", "a step")

    def train(self, c: Learner, batch: Batch) -> None:
        """Do one mini-batch. Raises InputError for a step that returns something, which nothing would take, and for one that
        asks for what only a `Node` knows.
        """
        try:
            given = self.step(c, batch)  # type: ignore[func-returns-value]
        except AttributeError as error:
            if error.obj is not c:
                raise
            raise InputError(
                f"{self.step_name}: a step does not see `{error.name}`, since it may be recorded once and replayed; put what changes into "
                "a tensor of the state, in start or in a hook"
            ) from error
        if given is not None:
            raise InputError(
                f"{self.step_name} returned a {type(given).__name__}; a step works in place, as c['theta'].copy_(...), and returns nothing"
            )
