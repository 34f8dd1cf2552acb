"""The run file: what one run is. Reads, checks and completes it, and names its key and its folder."""

from __future__ import annotations

import functools
import hashlib
import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bayesfed import methods, models
from bayesfed.core import files, options, plugins
from bayesfed.core.errors import InputError
from bayesfed.core.options import option
from bayesfed.core.plugins import Part
from bayesfed.data import catalogue, prepare, store
from bayesfed.data.catalogue import source
from bayesfed.data.partition import filename
from bayesfed.data.schemes import WHOLE, PartitionSpec
from bayesfed.data.sources import Source
from bayesfed.methods.method import Method
from bayesfed.methods.node import GLOBAL
from bayesfed.models import pretrained as pretraining
from bayesfed.runs.compatibility import check_counts, check_fit
from bayesfed.runs.revision import ENGINE_REVISION
from bayesfed.runs.schedule import CONSTANT, Schedule


@dataclass(frozen=True)
class Budget:
    """The plain numbers of a run file. `stragglers` and `participation` are fractions of the clients of a round.

    A client's round is `local_epochs` long, or `local_batches` mini-batches. `batch_order`: `fixed` draws the order of a
    client's images once, and its mini-batches go round in it from round to round, those that the client sits out counted.
    `clients_on_test`: when the accuracy of clients on the full test set is taken, with all that is not taken every round, or
    every round.
    """

    rounds: int = option(low=1)
    local_epochs: int = option(low=0)
    batch_size: int = option(low=1)
    seed: int = option(low=0, high=2**63 - 1)
    stragglers: float = option(0.0, low=0, high=1)
    participation: float = option(1.0, above=0, high=1)
    server_images: int = option(0, low=0)  # set aside for the server, whatever the method needs at least
    local_batches: int = option(0, low=0)
    clients_on_test: Literal["detailed", "round"] = "detailed"
    batch_order: Literal["random", "fixed"] = "random"


@dataclass(frozen=True)
class Tasks:
    """What is asked of predictive entropy in detailed rounds: the block `tasks`. Of every predictor that is tested on the
    full test set (metrics/detection.py).

    foreign: datasets whose test images it is to tell from the run's own. mistakes: whether it is to tell wrong
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
    one network's name a client and is empty for methods whose clients have no model of their own. `parts` is the folder
    of the user's own parts, from where the command runs; the key knows their sources, not their place."""

    datasets: tuple[str, ...]
    partition: PartitionSpec
    method: str
    options: Any
    global_model: str
    local_models: tuple[str, ...]
    budget: Budget
    parts: str | None = None
    images: prepare.Seen = prepare.AS_IT_IS
    schedule: Schedule = CONSTANT
    others: tuple[tuple[str, str], ...] = ()  # for each of the method's `networks` its name there, and the network's
    tasks: Tasks = Tasks()
    active: Active | None = None
    weights: tuple[
        tuple[str, str], ...
    ] = ()  # by `global` or a name of the method's `networks`: the file it starts from

    @property
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
    def multi_task(self) -> bool:
        """Whether every client has a dataset of its own."""
        return self.partition.scheme == WHOLE

    @property
    def shares_convolutions(self) -> bool:
        """Whether no whole network travels, only the convolutions of the clients' own."""
        return self.global_model == models.CONVOLUTIONS

    def build_method(self) -> Method:
        """The method with this run's hyperparameters."""
        return methods.get(self.method)(self.options)

    def build_model(self, name: str, source: Source, weights: Path | None = None) -> models.AnyNetwork:
        """The network of that name as the run has it for a dataset's images: with as many outputs as its method wants, and
        from a file of `weights` where there is one."""
        outputs = self.build_method().outputs(source.classes)
        return models.build(name, outputs, source.seen_channels, source.side, weights)

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """The run file as a mapping, complete, or what decides the result without the values that equal their defaults."""

        def fields(instance: Any) -> dict[str, Any]:
            return dict(vars(instance)) if defaults else options.not_default(instance)

        local = list(self.local_models)
        show_local = local and (defaults or local != [self.global_model] * len(local))
        return (
            {
                "dataset": self.datasets[0] if not self.multi_task else list(self.datasets),
                "partition": self.partition.to_dict() if defaults else fields(self.partition),
                "method": {"name": self.method} | fields(self.options),
                "models": {"global": self.global_model} | self.other_models | ({"local": local} if show_local else {}),
            }
            | fields(self.budget)
            | ({"images": seen} if (seen := fields(self.images)) else {})
            | ({"schedule": rates} if (rates := fields(self.schedule)) else {})
            | ({"tasks": vars(self.tasks) | {"foreign": list(self.tasks.foreign)}} if self.tasks != Tasks() else {})
            | ({"active": fields(self.active)} if self.active else {})
            | ({"weights": dict(self.weights)} if self.weights else {})
            | ({"parts": self.parts} if self.parts and defaults else {})
        )

    @property
    def parts_used(self) -> dict[str, Part]:
        """The parts of the run by name: `methods/fedavg`."""
        named: list[tuple[plugins.Registry, str]] = [(methods.registry, self.method)]
        networks = {self.global_model, *self.local_models, *self.other_models.values()} - {models.CONVOLUTIONS}
        named += [(models.registry, name) for name in networks]
        named += [(catalogue.registry, name) for name in self.all_datasets]
        named += [(prepare.registry, one.prepare) for one in self.sources]
        return {f"{registry.kind}/{name}": registry.part(name, "run") for registry, name in named}

    @property
    def own_parts(self) -> dict[str, str]:
        """The parts of the run that are not ours, and the digest of each one's source: `methods/mine` -> sha256."""
        found = {name: part.digest() for name, part in self.parts_used.items()}
        return {name: digest for name, digest in sorted(found.items()) if digest}

    @property
    def part_files(self) -> set[Path]:
        """The files and package folders of the run's parts that are modules in a user's folder."""
        return {part.path for part in self.parts_used.values() if part.path}

    @functools.cached_property
    def key(self) -> str:
        """12 hex digits over what decides the result: the run file without defaults, the data, the revisions, and the
        sources of parts that are not ours."""
        identity = {
            "run": self.to_dict(defaults=False),
            "data": [source(name).fingerprint for name in (*self.datasets, *self.tasks.foreign)],
            "revisions": [methods.get(self.method).revision, ENGINE_REVISION],
        }
        if own := self.own_parts:
            identity["parts"] = own
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
        for k in range(self.partition.clients):
            one = sources[k if self.multi_task else 0]
            own = list(self.local_models[k : k + 1])
            travelling = own if self.shares_convolutions else [self.global_model]
            shard = one.count("train") // (1 if self.multi_task else self.partition.clients)
            images = budget.rounds * (budget.local_epochs * shard or budget.local_batches * budget.batch_size)
            every = [*travelling, *own, *self.other_models.values()]
            networks = [self.build_model(name, one) for name in every]
            total += images * sum(network.operations for network in networks)
        return total

    @property
    def partition_file(self) -> str | None:
        """The cached partition, relative to the data folder; None where every client holds a whole dataset."""
        return None if self.multi_task else filename(self.datasets[0], self.partition, self.budget.seed)


def load(path: Path, data: Path = plugins.DATA) -> Run:
    """The run file at `path`; raises InputError for anything in it that is wrong, datasets with too few images included."""
    mapping = files.read_yaml(path)
    if not isinstance(mapping, Mapping):
        found = "an empty file" if mapping is None else reprlib.repr(mapping)
        raise InputError(
            f"{path}: expected keys and values, found {found}; docs/reference/run-file.md shows a run file"
        )
    run = resolve(mapping, data)
    check_counts(run)
    return run


def resolve(mapping: object, data: Path = plugins.DATA) -> Run:
    """A run from the mapping of a run file, with every default filled in; `data` is where datasets are fetched to.

    The run's own parts are in use from now on (`parts.use`). Raises InputError, naming the key, its value and what would be
    right, for anything unknown, of the wrong type, out of range, or impossible together.
    """
    mapping = options.check_mapping(mapping, "")
    blocks = ("dataset", "partition", "method", "models")
    valid = [*blocks, *Budget.__dataclass_fields__, "images", "schedule", "tasks", "active", "weights", "parts"]
    if "papers" in mapping:
        raise InputError("run file: this is a config, which has papers; `bayesfed plan` makes its run files")
    if {"paper", "reference"} <= mapping.keys():
        raise InputError(
            "run file: this is a paper's file; a config names it, `papers: [NAME]`, and `bayesfed plan` makes run files"
        )
    options.check_keys(mapping, valid, "")
    for key in blocks:
        if key not in mapping:
            raise InputError(f"{key}: this key is missing")
    folder = mapping.get("parts")
    plugins.use(folder, data)
    folder = None if folder is None else str(folder)
    budget = options.read(Budget, {key: value for key, value in mapping.items() if key in Budget.__dataclass_fields__})
    partition = options.read(PartitionSpec, mapping["partition"], "partition")
    images = options.read(prepare.Seen, mapping.get("images", {}), "images")
    schedule = options.read(Schedule, mapping.get("schedule", {}), "schedule")
    datasets = read_datasets(mapping["dataset"], partition)
    active = options.read(Active, mapping["active"], "active") if "active" in mapping else None
    tasks = read_tasks(mapping.get("tasks", {}), datasets, images)
    method, chosen = read_method(mapping["method"])
    global_model, local, others = read_models(mapping["models"], method, partition.clients)
    if bool(budget.local_epochs) == bool(budget.local_batches):
        found = f"local_epochs: {budget.local_epochs}, local_batches: {budget.local_batches}"
        raise InputError(f"{found}: one of the two says how long a client's round is; the other must be 0")
    if budget.local_batches and budget.stragglers:
        raise InputError("stragglers: a straggler does fewer local_epochs; with local_batches it means nothing")
    if budget.local_batches and method.by_epochs:
        raise InputError(f"local_batches: a round of {method.label} is made of epochs; give local_epochs")
    if schedule.epoch_decay != 1 and (budget.local_batches or method.steady_rate):
        why = (
            "local_batches has no epochs" if budget.local_batches else f"{method.label} needs one learning rate a round"
        )
        raise InputError(f"schedule.epoch_decay: {why}; leave it out")
    networks = (global_model, local)
    run = Run(
        datasets, partition, method.name, chosen, *networks, budget, folder, images, schedule, others, tasks, active,
        read_weights(mapping.get("weights", {}), method),
    )  # fmt: skip
    check_fit(run, method)
    return run


def read_datasets(value: object, partition: PartitionSpec) -> tuple[str, ...]:
    """The datasets' names: one, or one a client where the partition says that each holds a whole one."""
    names = value if isinstance(value, list) else [value]
    for name in names:
        source(str(name))
    if partition.scheme == WHOLE and len(names) != partition.clients:
        raise InputError(
            f"dataset: partition '{WHOLE}' needs one for each of {partition.clients} clients, found {len(names)}"
        )
    if partition.scheme != WHOLE and len(names) != 1:
        raise InputError(f"dataset: {len(names)} datasets need the partition scheme '{WHOLE}'; give one dataset")
    if partition.scheme != WHOLE:
        one = source(str(names[0]))
        # Before anything is made for each client; of a dataset that is still to be fetched the size is not known.
        if one.train and partition.clients > one.train + one.test:
            raise InputError(
                f"partition.clients: {partition.clients} clients are more than the {one.train + one.test} images of "
                f"dataset '{one.name}'"
            )
    return tuple(str(name) for name in names)


def read_tasks(value: object, datasets: tuple[str, ...], images: prepare.Seen) -> Tasks:
    """The `tasks` block; raises InputError for foreign data that are none, or cannot be shown to the run's networks."""
    tasks = options.read(Tasks, value, "tasks")
    for name in tasks.foreign:
        catalogue.registry.part(name, "tasks.foreign")
        if name in datasets:
            raise InputError(f"tasks.foreign: '{name}' is the run's own dataset; name another")
        if len(datasets) > 1:
            raise InputError(f"tasks.foreign: '{name}' is foreign to one dataset; clients have one each here")
        store.check_channels(source(name), images.of(source(datasets[0])))
    if len(set(tasks.foreign)) < len(tasks.foreign):
        raise InputError(f"tasks.foreign: {', '.join(tasks.foreign)}: name each dataset once")
    return tasks


def read_method(value: object) -> tuple[type[Method], Any]:
    """The method and its hyperparameters from the `method` block."""
    if not isinstance(value, Mapping) or "name" not in value:
        raise InputError(f"method: expected keys with a `name`, found {value!r}")
    method = methods.get(value["name"])
    return method, options.read(method.Options, {k: v for k, v in value.items() if k != "name"}, "method")


def read_models(
    value: object, method: type[Method], clients: int
) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The global model's name, one local name a client, by default the global one for all, and those of the method's
    further networks."""
    if not isinstance(value, Mapping) or "global" not in value:
        raise InputError(f"models: expected keys with a `global`, found {value!r}")
    options.check_keys(value, ("global", "local", *method.networks), "models")
    for key in method.networks:
        if key not in value:
            raise InputError(f"models.{key}: this key is missing; {method.label} has a network of that name")
    others = tuple((key, models.check(value[key], f"models.{key}")) for key in method.networks)
    name = value["global"]
    shared = name == models.CONVOLUTIONS
    if not shared:
        models.check(name, "models.global")
    if not method.local_models:
        if "local" in value or shared:
            what = "models.local" if "local" in value else f"models.global: {name}"
            raise InputError(f"{what}: clients of {method.label} have no models of their own; give models.global alone")
        return name, (), others
    if shared and others:
        raise InputError(f"models.global: {name}: {method.label} has further networks, and shares them whole; name one")
    if shared and "local" not in value:
        raise InputError(f"models.global: {name}: models.local must name each client's model")
    local = value.get("local", name)
    local = [local] * clients if isinstance(local, str) else local
    if not isinstance(local, list) or len(local) != clients:
        found = f"{len(local)}" if isinstance(local, list) else repr(local)
        raise InputError(f"models.local: expected one model for each of {clients} clients, found {found}")
    return str(name), tuple(models.check(one, "models.local") for one in local), others


def read_weights(value: object, method: type[Method]) -> tuple[tuple[str, str], ...]:
    """The `weights` block: for networks that travel, by their names, the files that they start from."""
    known = (GLOBAL, *method.networks)
    given = options.check_keys(value, known, "weights")
    return tuple((key, pretraining.check(given[key], f"weights.{key}")) for key in known if key in given)


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What tells two run files with different keys apart, all defaults written: the first value, or what stands in none."""
    then, now = options.flat(then), options.flat(now)
    for key in {**then, **now}:
        if then.get(key) != now.get(key):
            return f"{key}: {then.get(key)} there, {now.get(key)} here"
    return "the same run file, but its data, its parts or a revision of the code are others"
