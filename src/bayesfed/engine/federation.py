"""A run's federation as it is before any training: networks, images on the device, shards, and its nodes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.data import partition as partitions
from bayesfed.data import store
from bayesfed.data.augment import Features, Images, on_device
from bayesfed.data.schemes import Partition
from bayesfed.engine.device import Compute
from bayesfed.engine.node_model import NodeModel
from bayesfed.engine.shards import held_out, images_for_server, mislabelled, placed, relabelled, round_half_up
from bayesfed.methods.node import GLOBAL, LOCAL, RATE, Node, State
from bayesfed.methods.predictors import Predictor
from bayesfed.metrics.classification import accuracy
from bayesfed.metrics.detection import RESAMPLINGS
from bayesfed.models import AnyNetwork
from bayesfed.runs.compatibility import server_images
from bayesfed.runs.spec import Run

SERVER = -1
# How the names of a network's statistics begin in a node's state, where it is not by the network's name.
PREFIXES = {GLOBAL: "model:", LOCAL: "local_model:"}
# Images at once in evaluation: activations that stay in a CPU's cache (twice as fast for CNN2 as 1000), but enough
# work for each launch on a GPU.
EVALUATION_BATCH = {"cpu": 250, "cuda": 1000}


@dataclass
class Shard:
    """A node's images: the split they are in, and the indices of its training and test images, on the device.

    validation: indices among the training images that are set aside, and never trained on.
    """

    train_images: Images | Features
    train: Tensor
    test_images: Images | Features
    test: Tensor
    validation: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


class Passes(threading.local):
    """The passes through networks in one thread, as multiply-adds (see `cost`)."""

    multiply_adds = 0


class Federation:
    """All nodes of a run, and what each of them holds. Clients are numbered from 0; SERVER is the server."""

    def __init__(self, run: Run, datasets: list[store.Dataset], partition: Partition | None, compute: Compute,
                 foreign: Sequence[np.ndarray] = (), pretrained: Mapping[str, Path] = MappingProxyType({})) -> None:  # fmt: skip
        """datasets as `run.datasets`; partition None where client k holds datasets[k] whole. Without datasets nobody has
        images: enough to ask nodes what they predict with. foreign: the OOD images of `run.tasks.foreign`. pretrained:
        the files of `run.weights`, which only a run that begins needs.

        Raises InputError when the server's images cannot be set aside.
        """
        self.run, self.compute, self.pretrained = run, compute, pretrained
        # Called before each batch, and before each pass of a test; may raise, which ends the round.
        self.check: Callable[[], None] = lambda: None
        # Called where something does not repeat itself; raises, if it can, an error that says what has been kept elsewhere.
        self.look: Callable[[], object] = lambda: None
        self.passes = Passes()
        # What networks start from instead of these initial parameters (P,); `verify` moves them by a rounding.
        self.start: Callable[[np.ndarray], np.ndarray] = lambda theta: theta
        self.method = run.build_method()
        self.clients = run.partition.clients
        self.rounds = run.budget.rounds  # fewer where `patience` ends the run early
        self.rounds_asked = False  # whether the method has asked a node how many there are
        if partition is not None:
            (whole,) = datasets
            whole, partition = partitions.as_dealt(whole, partition, run.partition, run.budget.seed)
            datasets = [whole]
        self.splits = [placed(one, compute) for one in datasets]
        place = functools.partial(on_device, device=compute.device, dtype=compute.cast)
        self.foreign = {
            name: place(datasets[0].source, images, np.zeros(len(images)), augment="none")
            for name, images in zip(run.tasks.foreign if datasets else (), foreign, strict=True)
        }
        self.orders: dict[int, list[Tensor]] = {}  # see `resamplings`
        self.scalings: dict[AnyNetwork, Tensor | None] = {}
        self.shards = self.deal(datasets, partition) if datasets else {}
        self.whole = dict(self.shards)  # with the images that are not labelled yet (engine/active_learning.py)
        self.networks = [self.network(client) for client in range(self.clients)]
        self.n = self.count()

    def count(self) -> Tensor:
        """Return the number of training images of every client, and of the server behind them, (clients + 1,)."""
        n = [float(len(self.shards[k].train)) if self.shards else 0.0 for k in (*range(self.clients), SERVER)]
        return self.compute.place(np.array(n)).to(self.compute.dtype)

    def label(self, labelled: Mapping[int, Tensor]) -> None:
        """Let these clients train on these of their images alone, indices (n,) on the host."""
        for client, images in labelled.items():
            place = self.compute.place(np.sort(images.numpy()))
            self.shards[client] = replace(self.whole[client], train=place)
        if labelled:
            self.n = self.count()

    def deal(self, datasets: list[store.Dataset], partition: Partition | None) -> dict[int, Shard]:
        """Deal every node its shard.

        The server's images are those that the partition sets aside; where it does not, as many as the method or the
        run asks for leave the clients' shards. Nobody trains on an image that any client holds out. Label noise changes
        neither shards nor validation images, and not the server's labels.
        """
        count, asked = server_images(self.run)
        compute, budget = self.compute, self.run.budget
        if partition is not None and self.run.partition.aside is not None:
            server = partition.server_indices
        else:
            server = images_for_server(datasets[0].train_labels, count, budget.seed, asked)
        for task, one in enumerate(datasets if budget.label_noise else ()):
            labels = mislabelled(one, server, budget.label_noise, budget.label_noise_kind, budget.seed, task)
            self.splits[task] = (relabelled(self.splits[task][0], labels), self.splits[task][1])
        hands = {}
        for client in range(self.clients):
            if partition is None:
                train, test = (np.arange(len(images)) for images in self.splits[client])
            else:
                train, test = partition.train(client), partition.test(client)
                train = train[~np.isin(train, server)]
            task = client if partition is None else 0
            held = held_out(datasets[task].train_labels[train], budget.validation, budget.seed, client)
            hands[client] = (train[~held], test, train[held])
        every_validation = np.concatenate([hand[2] for hand in hands.values()])
        if budget.validation and not len(every_validation):
            raise InputError(f"validation: {budget.validation:g} of its images is none for every client; raise it")
        # The server's model is validated on all that clients have set aside, where these are images of one dataset.
        held_by_any = np.unique(every_validation) if partition is not None else server[:0]
        hands[SERVER] = (server, np.arange(len(self.splits[0][1])), held_by_any)
        shards = {}
        for node, (train, test, validation) in hands.items():
            train_images, test_images = self.splits[max(node, 0) if partition is None else 0]
            places = [compute.place(indices) for indices in (train[~np.isin(train, held_by_any)], test, validation)]
            shards[node] = Shard(train_images, places[0], test_images, *places[1:])
        return shards

    def network(self, client: int) -> dict[str, AnyNetwork]:
        """Build a client's networks by name: `global` travels, `local` is its own, others are those of the method's
        `networks`.
        """
        run = self.run
        source = run.sources[client if run.multi_task else 0]

        def build(name: str, key: str) -> AnyNetwork:
            return run.build_model(name, source, self.pretrained.get(key))

        own = {LOCAL: build(run.local_models[client], LOCAL)} if run.local_models else {}
        shared = own[LOCAL] if run.shares_convolutions else build(run.global_model, GLOBAL)
        return {GLOBAL: shared} | own | {name: build(network, name) for name, network in run.other_models.items()}

    def node(self, client: int, round_number: int, epochs: int = 0) -> Node:
        """Make the node of a client, or the server, in a round (0: before the first), with an empty state."""
        seed, compute = self.run.budget.seed, self.compute
        networks = self.networks[max(client, 0)]
        travelling, others = networks[GLOBAL], list(self.run.other_models)
        task = max(client, 0) if self.run.multi_task else 0

        def initial(name: str, member: int) -> Tensor:
            if name == GLOBAL:
                # All clients start from the server's model, except layers that only they have.
                own_layers = self.run.shares_convolutions and client != SERVER
                stream = rng.generator(
                    seed, "init-layers" if own_layers else "init", member, client if own_layers else SERVER
                )
            elif name == LOCAL:
                stream = rng.generator(seed, "init", round_number, client)
            else:
                stream = rng.generator(seed, "init-network", 0, others.index(name))
            return compute.place(self.start(networks[name].initial(stream))).to(compute.dtype)

        here = [
            name
            for name in networks
            if not (client == SERVER and (name == LOCAL or (name == GLOBAL and self.run.shares_convolutions)))
        ]

        whose = "the server" if client == SERVER else f"client {client}"
        node = Node(
            client=client,
            clients=self.clients,
            round_number=round_number,
            rounds=self.tell_rounds,
            epochs=epochs,
            batches=self.run.budget.local_batches,
            n=self.n[client],
            total=self.n[:-1].sum(),
            models={name: NodeModel(self, networks[name], prefix(name), whose) for name in here},
            generator=torch.Generator(compute.device),
            initial=initial,
            shapes={name: network.shapes for name, network in networks.items()},
            classes=self.run.sources[task].classes,
            shared=travelling.convolution_parameters if self.run.shares_convolutions else travelling.parameters,
            seed=lambda generator, purpose: rng.seed_torch(generator, seed, purpose, round_number, client),
            accuracy=lambda predictor, on_test: self.own_accuracy(client, predictor, on_test),
            images=lambda: self.own_images(client),
            scaling=self.scaling(travelling),
            statistics={name: [prefix(name) + key for key in networks[name].statistics] for name in networks},
        )
        node.reseed("noise")
        return node

    def tell_rounds(self, ended: bool = False) -> int:
        """Tell a method the planned rounds, or those there are if `patience` has `ended` the run; note that it asked."""
        self.rounds_asked = True
        return self.rounds if ended else self.run.budget.rounds

    def scaling(self, network: AnyNetwork) -> Tensor | None:
        """Return which parameters of a network scale and shift what it normalises, (P,) bool; None where none does."""
        if network not in self.scalings:
            found = network.scaling
            self.scalings[network] = self.compute.place(found) if found.any() else None
        return self.scalings[network]

    def statistics(self, client: int, own: bool) -> State:
        """Return the first statistics of networks (see `ModuleNetwork`): of a client's own, or of those that travel."""
        dtype = {True: self.compute.dtype}
        return {
            prefix(name) + key: value.to(self.compute.device, dtype.get(value.is_floating_point()), copy=True)
            for name, network in self.networks[max(client, 0)].items()
            if own == (name == LOCAL)
            for key, value in network.statistics.items()
        }

    def batchwise(self, client: int) -> bool:
        """Return whether one of a node's networks looks at a mini-batch as a whole, so that it cannot be filled up,
        nor be of one image.
        """
        return any(network.batchwise for network in self.networks[max(client, 0)].values())

    def fillable(self, client: int) -> bool:
        """Return whether a node's mini-batches may be filled up with images of weight 0: not where a network looks at
        them as a whole, or it or the method's steps draw for each image, since other draws would follow.
        """
        networks = self.networks[max(client, 0)].values()
        return not (self.method.draws_by_image or any(network.batchwise or network.random for network in networks))

    @torch.no_grad()
    def predict(self, predictor: Predictor, images: Images | Features, indices: Tensor) -> Tensor:
        """Predict log class probabilities (n, classes) of the images at `indices` (n,)."""
        size = EVALUATION_BATCH[self.compute.device.type]
        found = []
        for part in indices.split(size):
            self.check()
            given: object = predictor.log_probabilities(images.plain(part))
            if not isinstance(given, Tensor):
                raise InputError(
                    f"method '{self.method.name}': predictor '{predictor.name}' gave a {type(given).__name__}; expected a tensor of "
                    "log probabilities (images, classes)"
                )
            found.append(given)
        return torch.cat(found)

    def resamplings(self, n: int) -> list[Tensor]:
        """Return the random orders (n,) of a test's images by which tasks resample them: one for each resampling, the
        same for every predictor, round and method.
        """
        if n not in self.orders:
            generator = rng.generator(self.run.budget.seed, "resampling")
            self.orders[n] = [self.compute.place(generator.permutation(n)) for _ in range(RESAMPLINGS)]
            self.compute.synchronise()  # a client asks for them on its own stream; others must not read them before they are there
        return self.orders[n]

    def own_images(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a node's training images (n, C, side, side), without augmentation, and their labels (n,)."""
        shard = self.shards[client]
        return shard.train_images.plain(shard.train), shard.train_images.labels[shard.train]

    def own_accuracy(self, client: int, predictor: Predictor, on_test: bool) -> Tensor:
        """Measure accuracy () on the node's own training images, without augmentation, or on its test images.

        Raises InputError for test images without `Method.leak`.
        """
        if on_test and not self.method.leak():
            raise InputError(f"method '{self.method.name}' looks at test images and does not say so; define `leak`")
        shard = self.shards[client]
        images, own = (shard.test_images, shard.test) if on_test else (shard.train_images, shard.train)
        return accuracy(self.predict(predictor, images, own), images.labels[own])

    def participants(self, round_number: int) -> list[int]:
        """Draw the clients of a round, in order; those without training images never take part, nor those with a
        single one where a network looks at a mini-batch as a whole.
        """
        images = {k: len(self.shards[k].train) for k in range(self.clients)}
        able = [k for k, n in images.items() if n > 1 or (n and not self.batchwise(k))]
        if not able:
            raise InputError("partition.min_train: no client has images for a mini-batch; raise it or lower validation")
        count = max(1, round_half_up(self.run.budget.participation * len(able)))
        chosen = rng.generator(self.run.budget.seed, "participation", round_number).permutation(len(able))[:count]
        return sorted(able[i] for i in chosen)

    def local_epochs(self, round_number: int, participants: list[int]) -> dict[int, int]:
        """Draw the epochs of each client: E (0 where mini-batches are counted), except for a straggler x ~ U{1, ...,
        E} (HBFL, Figures 8 and 9).
        """
        budget = self.run.budget
        generator = rng.generator(budget.seed, "stragglers", round_number)
        slow = generator.permutation(participants)[: round_half_up(budget.stragglers * len(participants))]
        drawn = dict(
            zip(slow.tolist(), generator.integers(1, budget.local_epochs + 1, len(slow)).tolist(), strict=True)
        )
        return {k: drawn.get(k, budget.local_epochs) for k in participants}

    def rate(self, round_number: int) -> State:
        """Return what a client's learning rates are multiplied by when a round begins: a tensor () where the run has a
        schedule.
        """
        schedule, budget = self.run.schedule, self.run.budget
        if not schedule.varies:
            return {}
        value = np.array(schedule.at(round_number, budget.rounds))
        return {RATE: self.compute.place(value).to(self.compute.dtype)}


def prefix(network: str) -> str:
    """Return how the names of a network's statistics begin in a node's state."""
    return PREFIXES.get(network, f"{network}:")
