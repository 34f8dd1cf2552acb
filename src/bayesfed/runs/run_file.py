"""Run files: read, checked and completed. `spec.py` says which keys there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesfed import methods, models
from bayesfed.core import files, options, plugins
from bayesfed.core.errors import InputError
from bayesfed.data import catalogue, prepare, schemes, store
from bayesfed.data.catalogue import source
from bayesfed.methods.method import Method
from bayesfed.methods.node import GLOBAL
from bayesfed.models import pretrained as pretraining
from bayesfed.runs import callbacks, dealt, run_folder
from bayesfed.runs.compatibility import check_counts, check_fit
from bayesfed.runs.schedule import Schedule
from bayesfed.runs.spec import Active, Budget, Run, Tasks


def load(path: Path, data: Path = plugins.DATA) -> Run:
    """Read the run file at `path`; raise InputError for anything in it that is wrong, datasets with too few images
    included.
    """
    run = resolve(dealt.mapping_of(path), data)
    check_counts(run)
    return run


def of_record(folder: Path, data: Path, own: str | None = None) -> Run:
    """Read the run of a stored record, for whom its callbacks are over. `own`: where its plugins are now, if not where they
    were; they are not asked for where it used none. Raises InputError as `resolve` does.
    """
    mapping = files.read_yaml(folder / "run.yaml")
    mapping.pop("on_round", None)
    used = run_folder.provenance(folder).get("plugins", {})
    if not used:
        mapping.pop("plugins", None)
    mapping |= {"plugins": own} if own else {}
    name = mapping["method"]["name"]
    if f"methods/{name}" in used:
        plugins.use(mapping.get("plugins"), data)
        if name not in methods.registry.own():
            raise InputError(
                f"method.name: '{name}' is the run's own; if a notebook registered it, run the cell with its class first, else "
                "install its package or give its folder by `plugins`"
            )
    return resolve(mapping, data)


def resolve(mapping: object, data: Path = plugins.DATA) -> Run:
    """Make a run from the mapping of a run file, with every default filled in; `data` is where datasets are fetched
    to.

    The run's own plugins are in use from now on (`plugins.use`). Raises InputError, naming the key, its value and the
    remedy, for anything unknown, of the wrong type, out of range, or impossible together.
    """
    mapping = options.check_mapping(mapping, "")
    valid = [
        *dealt.BLOCKS,
        *Budget.__dataclass_fields__,
        "images",
        "schedule",
        "tasks",
        "active",
        "weights",
        "on_round",
        "plugins",
    ]
    dealt.check_kind(mapping)
    options.check_keys(mapping, valid, "")
    dealt.check_blocks(mapping)
    folder = mapping.get("plugins")
    plugins.use(folder, data)
    folder = None if folder is None else str(folder)
    length = {"local_epochs": 0} if mapping.get("local_batches") else {}  # a round's length has no default
    given = {key: value for key, value in mapping.items() if key in Budget.__dataclass_fields__}
    budget = options.read(Budget, length | given)
    partition = schemes.read(mapping["partition"])
    images = options.read(prepare.Seen, mapping.get("images", {}), "images")
    schedule = options.read(Schedule, mapping.get("schedule", {}), "schedule")
    datasets = dealt.read_datasets(mapping["dataset"], partition)
    active = options.read(Active, mapping["active"], "active") if "active" in mapping else None
    tasks = read_tasks(mapping.get("tasks", {}), datasets, images)
    method, chosen = read_method(mapping["method"])
    global_model, local, others = read_models(mapping["models"], method, partition.clients)
    if budget.local_epochs and budget.local_batches:
        raise InputError("local_batches: set local_epochs or local_batches, not both")
    if not budget.local_epochs and not budget.local_batches:
        raise InputError(
            "local_epochs: 0 is no round; give 1 or more, or local_batches, the length of a client's round"
        )
    if budget.local_batches and budget.stragglers:
        raise InputError("stragglers: stragglers do fewer local_epochs; with local_batches leave it out")
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
        read_weights(mapping.get("weights", {}), method), read_callback(mapping.get("on_round")),
    )  # fmt: skip
    check_fit(run, method)
    return run


def read_tasks(value: object, datasets: tuple[str, ...], images: prepare.Seen) -> Tasks:
    """Read the `tasks` block; raise InputError for OOD datasets that do not exist, or cannot be shown to the run's
    networks.
    """
    tasks = options.read(Tasks, value, "tasks")
    for name in tasks.foreign:
        catalogue.registry.plugin(name, "tasks.foreign")
        if name in datasets:
            raise InputError(f"tasks.foreign: '{name}' is the run's own dataset; name another")
        if len(datasets) > 1:
            raise InputError(
                f"tasks.foreign: '{name}' is OOD to one dataset, and clients have one each here; leave it out"
            )
        store.check_channels(source(name), images.of(source(datasets[0])))
    if len(set(tasks.foreign)) < len(tasks.foreign):
        raise InputError(f"tasks.foreign: {', '.join(tasks.foreign)}: name each dataset once")
    return tasks


def read_method(value: object) -> tuple[type[Method], Any]:
    """Read the method and its hyperparameters from the `method` block."""
    if not isinstance(value, Mapping) or "name" not in value:
        example = f"{dealt.BLOCKS['method']}, or bf.methods.FedAvg() in Python"
        raise InputError(f"method: expected keys with a `name`, found {value!r}; e.g. {example}")
    method = methods.get(value["name"])
    return method, options.read(method.Options, {k: v for k, v in value.items() if k != "name"}, "method")


def read_models(
    value: object, method: type[Method], clients: int
) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Read the global model's name, one local name a client, by default the global one for all, and those of the
    method's further networks.
    """
    if not isinstance(value, Mapping) or "global" not in value:
        raise InputError(f"models: expected keys with a `global`, found {value!r}; e.g. {dealt.BLOCKS['models']}")
    options.check_keys(value, ("global", "local", *method.networks), "models")
    for key in method.networks:
        if key not in value:
            example = next((one for one in models.registry.ours() if key in one), value["global"])
            raise InputError(
                f"models.{key}: {method.label} also trains a {key} network; add models.{key}, e.g. {example}"
            )
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
    """Read the `weights` block: for networks that travel, by their names, the files that they start from."""
    known = (GLOBAL, *method.networks)
    given = options.check_keys(value, known, "weights")
    return tuple((key, pretraining.check(given[key], f"weights.{key}")) for key in known if key in given)


def read_callback(name: object) -> str | None:
    """Read the name of a callback; raise InputError for one that there is not."""
    if name is None:
        return None
    callbacks.registry.plugin(name, "on_round").value()
    return str(name)


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe what tells two run files with different keys apart, all defaults written: the first value that differs.

    If none does: data, plugins or a revision of the code.
    """
    then, now = options.flat(then), options.flat(now)
    for key in {**then, **now}:
        if then.get(key) != now.get(key) and key not in ("plugins", "on_round"):  # no part of a key
            return f"{key}: {then.get(key)} there, {now.get(key)} here"
    return "the same run file, but its data, its plugins or a revision of the code are others"
