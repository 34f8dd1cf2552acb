"""The definition of a method: the contract between an algorithm and the engine that runs it.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.errors import InputError
from bayesfed.core.options import not_default, plain, read
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor


@dataclass
class Update:
    """The update that a client sent: its named tensors, its number n of training images, its weight q = n_k / sum_j
    n_j, and the statistics of normalisation of the models that travel, which the engine averages once the method has
    aggregated.

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
    """Facts about a run that are known before training, from which `Method.unfit` decides.

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
        """True if each image has a gradient of its own in training, by the network that travels."""
        return bool(self.sizes) and not (self.batchwise or self.random)


class ByOptions(type):
    """Lets the class of a method be called with options as keywords, `HBFL(temperature=1e-4)`, checked as in a run file."""

    def __call__(cls, *given: Any, **values: Any) -> Any:
        """Return the method with an instance of its `Options`, as the engine gives, or with these values of them."""
        if not all(map(is_dataclass, given)):
            raise InputError(f"method: options go by name, as FedAvg(lr=0.1), found {', '.join(map(repr, given))}")
        options = given or [read(cls.Options, plain(values), "method")]  # type: ignore[attr-defined]
        made = super().__call__(*options)
        if not hasattr(made, "options"):
            raise InputError(
                f"method '{made.name}': its `__init__` keeps no options; begin it with super().__init__(options)"
            )
        return made


class Message(State):
    """The server's state as it is sent; a name that it does not have is told with those that it has."""

    def __init__(self, method: str, state: State) -> None:
        super().__init__(state)
        self.method = method

    def __missing__(self, name: str) -> Tensor:
        raise InputError(
            f"method '{self.method}': start asks for '{name}', and the message has {', '.join(self) or 'nothing'}; by default it "
            "is the server's state, which `init_server` begins"
        )


class Method(metaclass=ByOptions):
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
    # True for a personalised method: one model per client.
    personal: ClassVar[bool] = False
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
    # Names in messages that need not travel, such as what a client could compute itself, or what only a study looks at: not
    # counted as communication.
    free: ClassVar[tuple[str, ...]] = ()
    # The server's predictor that a method is for, where that is not the average over weight samples beside it.
    predictive: ClassVar[str] = ""
    # True where steps draw random numbers for each image of a mini-batch, which is then never filled up.
    draws_by_image: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Options:
        """Hyperparameters, with the defaults of the paper or our interpretation."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in not_default(self.options).items())
        return f"{type(self).__name__}({given})"

    @classmethod
    def describe(cls) -> None:
        """Print what the method is, by its equations and their source, and its options with defaults and bounds."""
        from bayesfed.methods import description

        print(description.of(cls))

    def outputs(self, classes: int) -> int:
        """Return the number of the networks' outputs for so many classes: another number if they are no logits."""
        return classes

    def unfit(self, ground: Ground) -> str:
        """Return what keeps the method from such a run, after the key of the run file to change; "" if nothing does."""
        return ""

    def server_images(self) -> int:
        """Return the number of training images that the server needs for itself; they leave the clients' shards."""
        return 0

    def leak(self) -> str:
        """Return what the method learns from labels of test images; "" for nothing, which it should be.

        Only a method that returns something is given any. The run's log and provenance repeat it: its accuracy is not
        that on unseen images.
        """
        return ""

    def evaluate_each_epoch(self) -> bool:
        """Return whether clients are tested after every local epoch, not only at the end of a round."""
        return False

    def init_server(self, server: Node) -> State:
        """Return the server's state before the first round."""
        return {}

    def init_client(self, c: Node) -> State:
        """Return what a client keeps between rounds, before its first round; called when it first takes part."""
        return {}

    def message(self, server: Node, client: int) -> State:
        """Return what the server sends to a client; by default all it has.

        Any named tensors, other ones for each client if need be. The client must not change them in place: they may be
        the server's own, so `start` clones what will be trained. Nothing is drawn here, since clients come in any order.
        """
        return Message(self.name, server.state)

    def start(self, c: Node, message: State) -> State:
        """Begin a client's round: return the tensors it works on. A name that it keeps is overwritten."""
        return {}

    def step(self, c: Learner, batch: Batch) -> None:
        """Do one mini-batch, in place."""
        raise AssertionError(f"{type(self).__name__} defines neither step nor phases")

    def phases(self, c: Node) -> Sequence[Phase]:
        """Return the phases of a client's round; by default its local epochs, or mini-batches, of `step`."""
        return [c.local(self.step)]

    def finish(self, c: Node) -> State:
        """Return what a client sends back: any named tensors, of shapes of its own; the engine copies them.

        Changes of what it keeps belong here, too, in place.
        """
        return {}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        """Do the server's step on its state; return diagnostics to log, name to value ().

        `updates`: those of this round's participants, at least one, in the order of the clients; `server.clients` is
        the number of all clients.
        """
        return {}

    def server_phases(self, server: Node) -> Sequence[Phase]:
        """Return phases of the server's own training after aggregation, on the images of `server_images`."""
        return []

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        """Return what a client predicts with after local training, before aggregation."""
        return []

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        """Return what the server predicts with at a round's end; the model that stands for the method is called
        `global`.
        """
        return []


def shares(updates: Sequence[Update], *, equal: bool = False) -> Tensor:
    """Return the weights q of the updates, or ones if all are to weigh the same: (K,), float64."""
    q = torch.stack([update.q for update in updates])
    return torch.ones_like(q) if equal else q


def stacked(updates: Sequence[Update], name: str) -> Tensor:
    """Return what each client sent under a name: (K, ...)."""
    return torch.stack([update[name] for update in updates])


def average(updates: Sequence[Update], name: str, weights: Tensor | None = None) -> Tensor:
    """Return sum_k w_k v_k / sum_k w_k of what clients sent under a name, w (K,) being q by default.

    Computed in float64; of the shape and type of what was sent.
    """
    values = [update[name] for update in updates]
    return weighted_mean(shares(updates) if weights is None else weights, values).to(values[0].dtype)


def move_towards_average(server: Node, updates: Sequence[Update], name: str, beta: float, weights: Tensor) -> None:
    """Set the server's v to (1 - beta) v + beta sum_k w_k v_k / sum_k w_k, computed in float64; w (K,)."""
    mean = weighted_mean(weights, stacked(updates, name))
    server[name] = ((1 - beta) * server[name].double() + beta * mean).to(server[name].dtype)


def some(server: Node, updates: Sequence[Update], count: int) -> list[Update]:
    """Draw `count` of the updates, in order; all of them for 0 and if there are no more."""
    if not 0 < count < len(updates):
        return list(updates)
    draws = server.noise(updates[0].q.new_empty(len(updates)))
    return [updates[place] for place in sorted(draws.argsort()[:count].tolist())]
