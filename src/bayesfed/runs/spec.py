"""One run: the keys that a run file may hold, with their defaults, and what follows from them: key, folder and cost."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bayesfed import methods, models
from bayesfed.core import options, plugins
from bayesfed.core.options import option
from bayesfed.core.plugins import Plugin
from bayesfed.data import catalogue, prepare, schemes
from bayesfed.data.catalogue import source
from bayesfed.data.partition import filename
from bayesfed.data.schemes import Scheme, Whole
from bayesfed.data.source import Source
from bayesfed.methods.method import Method
from bayesfed.runs.dealt import LARGEST_SEED
from bayesfed.runs.revision import ENGINE_REVISION
from bayesfed.runs.schedule import CONSTANT, Schedule


@dataclass(frozen=True)
class Budget:
    """The plain numbers of a run file. `stragglers` and `participation` are fractions of the clients of a round.

    A client's round is `local_epochs` long, or `local_batches` mini-batches. `batch_order`: `fixed` draws the order of a
    client's images once, and its mini-batches go round in it from round to round, those that the client sits out counted.
    `validation`: this share of each client's training images is set aside, never trained on, and tested on every round.
    `label_noise`: with this probability a client's training image has the label of another class, each alike or
    (`label_noise_kind: class_dependent`) one for all images of its class.
    `patience`: a run ends with the round after this many without a better validation accuracy; 0: it never ends early.
    `clients_on_test`: when the accuracy of clients on the full test set is taken, with all that is not taken every round, or
    every round.
    """

    rounds: int = option(low=1)
    local_epochs: int = option(low=0)
    batch_size: int = option(low=1)
    seed: int = option(low=0, high=LARGEST_SEED)
    stragglers: float = option(0.0, low=0, high=1)
    participation: float = option(1.0, above=0, high=1)
    server_images: int = option(0, low=0)  # set aside for the server, whatever the method needs at least
    local_batches: int = option(0, low=0)
    clients_on_test: Literal["detailed", "round"] = "detailed"
    batch_order: Literal["random", "fixed"] = "random"
    validation: float = option(0.0, low=0, high=0.5)
    patience: int = option(0, low=0)
    label_noise: float = option(0.0, low=0, below=1)
    label_noise_kind: Literal["symmetric", "class_dependent"] = "symmetric"


@dataclass(frozen=True)
class Tasks:
    """Tasks for predictive entropy in detailed rounds: the block `tasks`.

    Of every predictor that is tested on the full test set (metrics/detection.py); of a client's average over weight samples
    in the last round.

    foreign: OOD datasets whose test images it is to tell from the run's own. mistakes: whether it is to tell wrong
    predictions from right ones.
    """

    foreign: tuple[str, ...] = ()
    mistakes: bool = False


@dataclass(frozen=True)
class Active:
    """Active learning, the block `active`: clients train on labelled images alone, and have more of theirs labelled.

    start: a client's labelled images at first, random ones; all others of its shard are its pool. add: how many more are
    labelled after every so many rounds, until the pool is empty. by: those of the largest predictive entropy of the
    server's model, or random ones.
    """

    start: int = option(low=1)
    add: int = option(low=1)
    every: int = option(low=1)
    by: Literal["entropy", "random"] = "entropy"


@dataclass(frozen=True)
class Run:
    """A checked and completed run file. `global_model` is a network's name or `convolutions`; `local_models` has
    one network's name a client and is empty for methods whose clients have no model of their own. `plugins` is the folder
    of the user's own plugins, from where the command runs; the key knows their sources, not their place."""

    datasets: tuple[str, ...]
    partition: Scheme
    method: str
    options: Any
    global_model: str
    local_models: tuple[str, ...]
    budget: Budget
    plugins: str | None = None
    images: prepare.Seen = prepare.AS_IT_IS
    schedule: Schedule = CONSTANT
    others: tuple[tuple[str, str], ...] = ()  # for each of the method's `networks` its name there, and the network's
    tasks: Tasks = Tasks()
    active: Active | None = None
    weights: tuple[
        tuple[str, str], ...
    ] = ()  # by `global` or a name of the method's `networks`: the file it starts from
    on_round: str | None = None  # the name of a callback

    @functools.cached_property
    def sources(self) -> tuple[Source, ...]:
        """The datasets as the run sees them; client k holds images of sources[k] in a multi-task run, else all share
        sources[0]."""
        return tuple(self.images.of(source(name)) for name in self.datasets)

    @property
    def all_datasets(self) -> list[str]:
        """All that must be fetched, each once: those that clients hold and those of tasks."""
        return sorted({*self.datasets, *self.tasks.foreign})

    @property
    def other_models(self) -> dict[str, str]:
        """The networks that travel beside the global one, by their names in the method's `networks`."""
        return dict(self.others)

    @property
    def networks(self) -> list[str]:
        """The names of all networks, each once."""
        return list(dict.fromkeys([self.global_model, *self.local_models, *self.other_models.values()]))

    @property
    def multi_task(self) -> bool:
        """True if every client has a dataset of its own."""
        return isinstance(self.partition, Whole)

    @property
    def shares_convolutions(self) -> bool:
        """True if no whole network travels, only the convolutions of the clients' own."""
        return self.global_model == models.CONVOLUTIONS

    def build_method(self) -> Method:
        """Build the method with this run's hyperparameters; raise InputError for what a user's own raises."""
        part = methods.registry.plugin(self.method, "method.name")
        with plugins.one_line(part.origin) if part.path else contextlib.nullcontext():
            method: Method = part.value()(self.options)
        return method

    def build_model(self, name: str, source: Source, weights: Path | None = None) -> models.AnyNetwork:
        """Build the network of that name as the run has it for a dataset's images: with as many outputs as its method
        wants, and from a file of `weights` where there is one.
        """
        outputs = self.build_method().outputs(source.classes)
        return models.build_for(name, outputs, source.seen_shape, weights)

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Write the run file as a mapping, complete, or what decides the result without the values that equal their
        defaults.
        """

        def fields(instance: Any) -> dict[str, Any]:
            return dict(vars(instance)) if defaults else options.not_default(instance)

        local = list(self.local_models)
        show_local = local and (defaults or local != [self.global_model] * len(local))
        return (
            {
                "dataset": self.datasets[0] if not self.multi_task else list(self.datasets),
                "partition": self.partition.to_dict(defaults=defaults),
                "method": {"name": self.method} | fields(self.options),
                "models": {"global": self.global_model} | self.other_models | ({"local": local} if show_local else {}),
            }
            | fields(self.budget)
            | ({"images": seen} if (seen := fields(self.images)) else {})
            | ({"schedule": rates} if (rates := fields(self.schedule)) else {})
            | ({"tasks": vars(self.tasks) | {"foreign": list(self.tasks.foreign)}} if self.tasks != Tasks() else {})
            | ({"active": fields(self.active)} if self.active else {})
            | ({"weights": dict(self.weights)} if self.weights else {})
            | ({"on_round": self.on_round} if self.on_round and defaults else {})
            | ({"plugins": self.plugins} if self.plugins and defaults else {})
        )

    @property
    def plugins_used(self) -> dict[str, Plugin]:
        """The plugins of the run by name: `methods/fedavg`."""
        named: list[tuple[plugins.Registry, str]] = [(methods.registry, self.method)]
        networks = {self.global_model, *self.local_models, *self.other_models.values()} - {models.CONVOLUTIONS}
        named += [(models.registry, name) for name in networks]
        named += [(schemes.registry, self.partition.name)]
        named += [(catalogue.registry, name) for name in self.all_datasets]
        shown = (*self.sources, *map(source, self.tasks.foreign))
        named += [(prepare.registry, one.prepare) for one in shown]
        return {f"{registry.kind}/{name}": registry.plugin(name, "run") for registry, name in named}

    @property
    def own_plugins(self) -> dict[str, str]:
        """The plugins of the run that are not ours, and the digest of each one's source: `methods/mine` -> sha256."""
        found = {name: one.digest() for name, one in self.plugins_used.items()}
        return {name: digest for name, digest in sorted(found.items()) if digest}

    def changed_plugins(self, then: Mapping[str, str]) -> list[str]:
        """List in words the run's own plugins whose digests differ from those that a record has."""
        now = self.own_plugins
        return [f"the source of {name}" for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)]

    @property
    def plugin_files(self) -> set[Path]:
        """The files and package folders of the run's plugins that are modules in a user's folder."""
        return {one.path for one in self.plugins_used.values() if one.path}

    @functools.cached_property
    def key(self) -> str:
        """12 hex digits over what decides the result: the run file without defaults, the data, the revisions, and the
        sources of plugins that are not ours."""
        identity = {
            "run": self.to_dict(defaults=False),
            "data": [source(name).fingerprint for name in (*self.datasets, *self.tasks.foreign)],
            "revisions": [methods.get(self.method).revision, ENGINE_REVISION],
        }
        if own := self.own_plugins:
            identity["parts"] = own  # the name that the keys of stored runs were made with
        text = json.dumps(identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @functools.cached_property
    def folder(self) -> str:
        """The run's folder below `runs/`: dataset/partition/method/seed~S-key."""
        return f"{'+'.join(self.datasets)}/{self.partition.label}/{self.method}/seed~{self.budget.seed}-{self.key}"

    @functools.cached_property
    def cost(self) -> int:
        """An estimate of the run's work: images trained on, times multiply-adds of the networks that each goes through.

        As if every client had as many images; it says which of two runs is the cheaper one, not how long either takes.
        """
        budget, total, sources = self.budget, 0, self.sources

        @functools.cache
        def operations(name: str, task: int) -> int:
            return self.build_model(name, sources[task]).operations

        for k in range(self.partition.clients):
            task = k if self.multi_task else 0
            own = list(self.local_models[k : k + 1])
            travelling = own if self.shares_convolutions else [self.global_model]
            shard = sources[task].count("train") // (1 if self.multi_task else self.partition.clients)
            images = budget.rounds * (budget.local_epochs * shard or budget.local_batches * budget.batch_size)
            every = [*travelling, *own, *self.other_models.values()]
            total += images * sum(operations(name, task) for name in every)
        return round(total * budget.participation)

    @property
    def partition_file(self) -> str | None:
        """The cached partition, relative to the data folder; None where every client holds a whole dataset."""
        return None if self.multi_task else filename(self.datasets[0], self.partition, self.budget.seed)
