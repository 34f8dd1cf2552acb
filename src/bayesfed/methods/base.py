"""What a method is: the contract between an algorithm and the engine that runs it.

A method is written for one client at a time, with the paper's symbols as named tensors. The engine decides where
and how its steps run: one after another, side by side, or recorded once and replayed. For that a step

* changes the tensors of its `Learner` in place and keeps no tensor of its own between steps,
* is ordinary PyTorch without Python branches on tensor values or transfers to the host, and reads no number or flag of
  Python's that changes: it would be recorded as it was (the engine finds out, and refuses it),
* takes means over a mini-batch by `batch.mean`, counts its images by `batch.size`, and knows of its client only what
  a `Learner` shows: a number that changes from round to round goes into the state, in `start`,
* moves by the optimisers of `bayesfed.methods.steps`, or takes its learning rate from `c.rate(lr)`: schedules need it.

Registered methods are the modules of `bayesfed.methods` that define a class `METHOD`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.errors import InputError

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
        """The mean over the images of the batch of values (B,)."""
        return per_image.mean() if self.weight is None else (per_image * self.weight).sum()

    @property
    def size(self) -> Tensor:
        """How many images the batch has, a tensor () of type float."""
        if self.weight is None:
            return torch.full((), float(len(self.y)), device=self.y.device)
        return 1 / self.weight.amax()


class Learner:
    """What a mini-batch step sees of a node: its named tensors, its models, its noise.

    `learner["mu"]` is a tensor of the state, to be changed in place. `n` is the number of the node's training images
    (a float tensor, as losses need it).
    """

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
        """Logits (B, classes), in the states' dtype, of the model that travels between server and clients.

        Where its gradient is wanted this is a training pass: dropout draws from the node's noise, batch normalisation
        takes the batch's statistics. Under `torch.no_grad`, as for a teacher or a predictor, it evaluates.
        """
        return self.models[GLOBAL](self, theta, x)

    def local_model(self, theta: Tensor, x: Tensor) -> Tensor:
        """Logits (B, classes) of the client's own model; see `model`."""
        return self.models[LOCAL](self, theta, x)

    def network(self, name: str) -> Logits:
        """The model of that name among the method's `networks`, as a function of its parameter vector and images; see
        `model`."""
        return Bound(self, name)

    def having(self, statistics: State) -> Learner:
        """The learner with these statistics of normalisation in the place of its own: to predict under `torch.no_grad` as
        another node would, with the `statistics` of its `Update`."""
        state = {**self.state, **statistics}
        return Learner(state=state, n=self.n, models=self.models, generator=self.generator, scaling=self.scaling)

    def rate(self, lr: float) -> float | Tensor:
        """A learning rate as the run's schedule has it now: a number, or a tensor ()."""
        return lr * self.state[RATE] if RATE in self.state else lr

    def noise(self, like: Tensor) -> Tensor:
        """Standard normal draws in the shape of `like` from the stream of this node and round."""
        return torch.randn(like.shape, generator=self.generator, dtype=like.dtype, device=like.device)

    def weights(self, values: Tensor, normalisation: Tensor | float) -> Tensor:
        """`values` (P,) where the model that travels has weights and biases, and `normalisation` where it has the scales and
        shifts of batch normalisation and its like: what a Bayesian network has no distribution of."""
        return values if self.scaling is None else torch.where(self.scaling, normalisation, values)

    def learner(self) -> Learner:
        """No more than a step may see, sharing the state."""
        return Learner(state=self.state, n=self.n, models=self.models, generator=self.generator, scaling=self.scaling)


Model = Callable[[Learner, Tensor, Tensor], Tensor]


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
    counts from 1. `classes` are those of the node's task.
    """

    def __init__(self, *, client: int, clients: int, round: int, rounds: int, epochs: int,
                 batches: int, n: Tensor,
                 models: Mapping[str, Model], generator: torch.Generator,
                 initial: Callable[[str], Tensor], shared: int, sizes: Mapping[str, Sequence[int]],
                 classes: int, seed: Callable[[torch.Generator, str], object],
                 accuracy: Callable[[Predictor, bool], Tensor],
                 images: Callable[[], tuple[Tensor, Tensor]], scaling: Tensor | None,
                 statistics: Mapping[str, Sequence[str]]) -> None:  # fmt: skip
        super().__init__(state={}, n=n, models=models, generator=generator, scaling=scaling)
        self.client = client
        self.clients = clients
        self.round = round
        self.rounds = rounds
        self.epochs, self.batches = epochs, batches
        self.classes = classes
        self.statistics = statistics  # of each network, by their names in the state
        self.shared_parameters = shared  # how many leading entries of the travelling model are aggregated
        self._accuracy = accuracy
        self._images = images
        self.arrived: State = {}  # the engine's: the statistics of the models that travel, as the client received them
        self._initial = initial
        self._sizes = sizes  # of the weights and biases of each network
        self._seed = seed

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.state[name] = value

    def accuracy(self, predictor: Predictor, on_test: bool = False) -> Tensor:
        """Accuracy () on the node's own training images, without augmentation; or, for a method that admits to it by
        `leak`, on its test images."""
        return self._accuracy(predictor, on_test)

    def images(self) -> tuple[Tensor, Tensor]:
        """The node's own training images (n, C, side, side), normalised, without augmentation, and their labels (n,).

        For `start` and for predictors, which must ask for them only when they are used: a run that is loaded has none.
        """
        return self._images()

    def received(self, theta: Tensor, x: Tensor) -> Tensor:
        """What `model` gives in evaluation with the statistics that came with the server's message, whatever training has
        made of them: for predictions by the model as it was sent."""
        with torch.no_grad():
            return self.having(self.arrived).model(theta, x)

    def initial(self, network: str = GLOBAL) -> Tensor:
        """The initial parameters (P,) of a model that travels, the same for all."""
        return self._initial(network)

    def local_initial(self) -> Tensor:
        """Those of the client's own model; drawn anew for each round."""
        return self._initial(LOCAL)

    def reseed(self, purpose: str) -> None:
        """The engine's: set `noise` to the start of this round's stream for a purpose."""
        self._seed(self.generator, purpose)

    def local(self, step: Callable[[Learner, Batch], None]) -> Phase:
        """The phase that is a client's round of that step: its local epochs, or so many mini-batches."""
        return Phase(step, epochs=self.epochs, batches=self.batches)

    @property
    def predicts(self) -> bool:
        """Whether the model that travels is a whole network here; not so for a server that shares convolutions."""
        return GLOBAL in self.models

    def shared(self, theta: Tensor) -> Tensor:
        """The entries of theta that are aggregated: all, or the convolutions in multi-task learning."""
        return theta[: self.shared_parameters]

    def own(self, theta: Tensor) -> Tensor:
        """The entries of theta that never leave the client: none, or the layers behind the convolutions."""
        return theta[self.shared_parameters :]

    def split(self, theta: Tensor, network: str = GLOBAL) -> Sequence[Tensor]:
        """A network's vector as views of its weights and biases, each flat, one after another."""
        return theta.split(list(self._sizes[network]))

    def splice(self, received: Tensor, own: Tensor) -> Tensor:
        """The whole vector from the server's entries and the client's own."""
        return torch.cat([received, own])


@dataclass(frozen=True)
class Phase:
    """A stretch of a node's round with one kind of step: so many epochs, or so many mini-batches.

    `data`: the node's own training images, or those of the server; or, for a method that admits to it by `leak`, the
    node's own test images. `augment`: False takes them as they are. `indexed`:
    steps are told which images they get. `batch_size`: for the server's own phases; 0 is that of the run. `counted`: whether
    its epochs are local epochs, by which schedules count, and after which clients may be tested; where several phases make
    one up, the last is. `evaluates`: nothing is trained, so that no image is left out for what networks need in training.
    The hooks run at the end of each epoch and of the phase; they work in place, too.
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

    def train(self, c: Learner, batch: Batch) -> None:
        """One mini-batch. Raises InputError for a step that returns something, which nothing would take."""
        if (given := self.step(c, batch)) is not None:  # type: ignore[func-returns-value]
            name = getattr(self.step, "__qualname__", "a step")
            raise InputError(
                f"{name} returned a {type(given).__name__}; a step works in place, as c['theta'].copy_(...), and returns nothing"
            )


@dataclass(frozen=True)
class Predictor:
    """A named map from images (n, C, H, W) to log class probabilities (n, classes), and where it is evaluated.

    `sets`: "test" is the full test set, "shard" a client's own test images; for the server's `global`, those of every
    client. Accuracy of clients on their shards, of the server on the full set, and of `global` on the shards of those
    who took part, is taken every round, all else every tenth round and in the last. A predictor whose name ends in
    `_sampled` averages over many networks and is evaluated in those rounds alone; it is a second reading of a model and
    never counts as a client's best.

    `model` and `theta`, where they are given, say that it is softmax(model(theta, x)) of one network, as the node has
    it: then a finished run gives that network back as an ordinary module (`bayesfed.load_run`).
    """

    name: str
    log_probabilities: Callable[[Tensor], Tensor]
    sets: tuple[str, ...] = ("test", "shard")
    model: Logits | None = None
    theta: Tensor | None = None

    @property
    def sampled(self) -> bool:
        """Whether it is a second reading of a model, by samples of weights."""
        return self.name.endswith(SAMPLED)


@dataclass
class Update:
    """What a client sent: its named tensors, its number n of training images, its weight q = n_k / sum_j n_j, and the
    statistics of normalisation of the models that travel, which the engine averages once the method has aggregated.

    The sum is over the updates of this round: over those who took part, not over all clients, so that the q of a round
    add up to 1. q is a tensor () in float64 beside the values.
    """

    client: int
    n: int
    q: Tensor
    values: State = field(default_factory=dict)
    statistics: State = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.values:
            raise KeyError(
                f"no '{name}' from client {self.client}, whose `finish` gives {', '.join(self.values) or 'nothing'}"
            )
        return self.values[name]


@dataclass(frozen=True)
class Ground:
    """What is known of a run's ground before it is trained, for `Method.unfit`.

    sizes: numbers of parameters of the weights and biases of the network that travels, in order; none where convolutions
    alone do. pixels: values of an image. batches: local mini-batches, 0 where local epochs are counted. participation: the
    share of the clients that take part in a round. min_test: how many test images every client has at least. batchwise,
    random: whether the network that travels normalises over its mini-batch, or draws random numbers, in training.
    """

    sizes: Sequence[int]
    pixels: int
    classes: int
    clients: int
    rounds: int
    batches: int
    participation: float
    min_test: int
    batchwise: bool
    random: bool

    @property
    def by_image(self) -> bool:
        """Whether each image has a gradient of its own in training, by the network that travels."""
        return bool(self.sizes) and not (self.batchwise or self.random)


class Method:
    """A federated method. Subclasses give `name`, `label`, `revision`, `Options` and the parts of a round.

    What lives how long: the server's state, all of it, from round to round, with whatever `aggregate` and
    `server_phases` put in, take out or change in shape. Of a client's state the names that `init_client` gave, with the
    values that they have after `finish`; what `start` adds under other names is gone when the round is over. Clients
    that do not take part keep what they had. Nothing is kept elsewhere, on the method, its class or its module: a checkpoint
    holds these states alone, and the engine refuses a round that has changed anything else.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    # Raise it by hand when results change on purpose, a changed default included: runs get new keys.
    revision: ClassVar[int]
    # True where every client trains a model of its own beside the one that travels.
    local_models: ClassVar[bool] = False
    # Further networks that travel, beside `global`: a run file names one for each, under `models`.
    networks: ClassVar[tuple[str, ...]] = ()
    # True where the equations hold for one learning rate a round, so that no schedule may change it within.
    steady_rate: ClassVar[bool] = False
    # True where a client's round is made of epochs, so that a run cannot count its mini-batches instead.
    by_epochs: ClassVar[bool] = False
    # True where the equations hold for images as they are, so that no run may augment them.
    unaugmented: ClassVar[bool] = False
    # What `aggregate` gives to log, name to meaning, for the report; of a name of several words the first may stand for all.
    logs: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # True where steps draw random numbers for each image of a mini-batch, which is then never filled up.
    draws_by_image: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Options:
        """Hyperparameters, with the defaults of the paper or our reading of it."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def outputs(self, classes: int) -> int:
        """How many outputs the networks have for images of so many classes: another number where they are no logits."""
        return classes

    def unfit(self, ground: Ground) -> str:
        """What keeps the method from such a run, after the key of the run file to change; "" where nothing does."""
        return ""

    def server_images(self) -> int:
        """How many training images the server needs for itself; they leave the clients' shards."""
        return 0

    def leak(self) -> str:
        """What the method learns from labels of test images, in words; "" for nothing, which it should be.

        Only who says so is given any. The run's log and provenance repeat it: its accuracy is not that on unseen images.
        """
        return ""

    def evaluate_each_epoch(self) -> bool:
        """Whether clients are tested after every local epoch, not only at the end of a round."""
        return False

    def init_server(self, server: Node) -> State:
        """What the server starts with."""
        return {}

    def init_client(self, c: Node) -> State:
        """What a client keeps between rounds, as it stands before the first; called when it first takes part."""
        return {}

    def message(self, server: Node, client: int) -> State:
        """What the server sends to a client; by default all it has.

        Any named tensors, other ones for each client if need be. The client must not change them in place: they may be
        the server's own, so `start` clones what will be trained. Nothing is drawn here, since clients come in any order.
        """
        return server.state

    def start(self, c: Node, message: State) -> State:
        """A client begins a round: the tensors it works on. A name that it keeps is overwritten."""
        return {}

    def step(self, c: Learner, batch: Batch) -> None:
        """One mini-batch, in place."""
        raise AssertionError(f"{type(self).__name__} defines neither step nor phases")

    def phases(self, c: Node) -> Sequence[Phase]:
        """The phases of a client's round; by default its local epochs, or mini-batches, of `step`."""
        return [c.local(self.step)]

    def finish(self, c: Node) -> State:
        """What a client sends back: any named tensors, of shapes of its own; the engine copies them.

        Changes of what it keeps belong here, too, in place.
        """
        return {}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        """The server's step on its state; gives diagnostics to log, name to value ().

        `updates`: those of this round's participants, at least one, in the order of the clients; `server.clients` is
        the number of all clients.
        """
        return {}

    def server_phases(self, server: Node) -> Sequence[Phase]:
        """Training of the server's own after aggregation, on the images of `server_images`."""
        return []

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        """What a client predicts with after local training, before aggregation."""
        return []

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        """What the server predicts with at the end of a round; the model that stands for the method is called `global`."""
        return []


def shares(updates: Sequence[Update]) -> Tensor:
    """The weights q of the updates: (K,), float64."""
    return torch.stack([update.q for update in updates])


def stacked(updates: Sequence[Update], name: str) -> Tensor:
    """What each client sent under a name: (K, ...)."""
    return torch.stack([update[name] for update in updates])


def some(server: Node, updates: Sequence[Update], count: int) -> list[Update]:
    """`count` of the updates, drawn at random and in order; all of them for 0 and where there are no more."""
    if not 0 < count < len(updates):
        return list(updates)
    draws = server.noise(updates[0].q.new_empty(len(updates)))
    return [updates[place] for place in sorted(draws.argsort()[:count].tolist())]


def softmax_of(name: str, model: Logits, theta: Tensor) -> Predictor:
    """The predictor softmax(f(x; theta)), evaluated on every set."""
    return Predictor(name, lambda x: F.log_softmax(model(theta, x), -1), model=model, theta=theta)


def softmax_average(
    name: str, model: Logits, draw: Callable[[], Tensor], samples: int, sets: tuple[str, ...]
) -> Predictor:
    """The predictor 1/S sum_s softmax(f(x; theta_s)) over S weight samples, drawn once, when it is first used.

    It is called `<name>_sampled`.
    """
    thetas: list[Tensor] = []

    def log_probabilities(x: Tensor) -> Tensor:
        if not thetas:
            thetas.extend(draw() for _ in range(samples))
        each = torch.stack([F.log_softmax(model(theta, x), -1) for theta in thetas])
        return each.logsumexp(0) - math.log(samples)

    return Predictor(name + SAMPLED, log_probabilities, sets)
