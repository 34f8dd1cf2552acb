"""A paper's experiments as a config asks for them: every cell, with the run that fills it and how it differs from the
paper's."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bayesfed.core.errors import InputError, nearest
from bayesfed.core.options import check_keys, check_mapping, flat
from bayesfed.papers.grid import (
    Tree,
    at,
    frozen,
    given,
    grid,
    listed,
    merged,
    not_in_paper,
    paper_point,
    put,
    shortened,
)
from bayesfed.plan.unused_keys import plain, taken

if TYPE_CHECKING:
    from bayesfed.methods.method import Method
    from bayesfed.runs.spec import Run

OF_PLAN = ("axes", "cases", "seeds", "deviation", "full_names")  # what an experiment has beside keys of a run file
CHANGES = ("skip", "seeds", "datasets", "run", "cases", "axes")  # what a config may change in a paper's experiment
ELSEWHERE = {  # no keys of a config's `run`
    "method": "a method's options are given under `methods`, by its label, like `methods: {FedAvg: {lr: 0.1}}`",
    "seed": "seeds are given under `seeds`",
    "plugins": "a folder of plugins is given under the config's `plugins`",
}
PLAIN = ("dataset", "alpha", "method", "model", "stragglers")  # axes, by short names, that every cell has a place for


def cells(paper: str, spec: Tree, config: Tree, counted: bool = True) -> Iterator[tuple[dict[str, Any], Run]]:
    """Every cell of a paper's experiments under a config, once a seed, with the run that fills it.

    `counted`: runs must be possible with as many images as their datasets have. Where the config's values are entries of an
    account, those that come into a run are taken.
    """
    from bayesfed.runs import compatibility

    for name, experiment in spec["experiments"].items():
        change: Tree = config.get("experiments", {}).get(name, {})
        where = f"config.experiments.{name}"
        check_keys(change, CHANGES, where)
        if change.get("skip"):
            if beside := [key for key in change if key != "skip"]:
                raise InputError(f"{where}.{beside[0]}: the experiment is skipped; leave this out, or `skip`")
            continue
        every = {frozen(point): point for point in grid(experiment, {}, where)}
        added = name in spec["added"]["experiments"]  # by a config
        for point in grid(experiment, change, where):
            named = shortened(point, experiment)
            with naming(paper, name, named):
                mapping, asked = run_mapping(spec, config, experiment, point, change.get("run", {}))
                of_paper = paper_point(point, every)
                theirs = plain(run_mapping(spec, {}, experiment, of_paper or point)[0]) | {"dataset": asked}
                if not added and not config.get("weights") and plain(mapping.get("weights")) == theirs.get("weights"):
                    mapping.pop("weights", None)  # nobody has the paper's: from scratch, which is told as a difference
            mapping = taken(mapping)
            stand_ins = {**config.get("datasets", {}), **change.get("datasets", {})}
            used = [taken(stand_ins.get(dataset, dataset)) for dataset in listed(asked)]
            mapping["dataset"] = used if isinstance(asked, list) else used[0]
            foreign = foreign_of(mapping)
            if foreign:
                mapping["tasks"] = {**mapping["tasks"], "foreign": [taken(stand_ins.get(one, one)) for one in foreign]}
            changes = [f"experiment {name} is not the paper's"] if added else []
            changes += [experiment["deviation"]] if "deviation" in experiment else []
            if of_paper is None:
                changes.append(
                    f"{at(shortened(not_in_paper(point, experiment, where), experiment))} (not in the paper)"
                )
            for seed in seeds_of(experiment, change, config):
                run = resolved(paper, name, named, mapping | {"seed": seed}, plain(config.get("run", {})))
                if counted:
                    with naming(paper, name, named):
                        compatibility.check_counts(run)
                papers_run = run if mapping == theirs else resolved(paper, name, named, theirs | {"seed": seed})
                told = changes + ([] if papers_run is run else differences(run, papers_run))
                cell = cell_of(paper, name, spec, named, asked, run, told)
                told_foreign = {"foreign": dict(zip(foreign, run.tasks.foreign, strict=True))} if foreign else {}
                yield cell | told_foreign, run


def foreign_of(mapping: Tree) -> list[str]:
    """Return the OOD datasets that a run file names in its tasks."""
    tasks = mapping.get("tasks")
    found = tasks.get("foreign") if isinstance(tasks, Mapping) else None
    return found if isinstance(found, list) else []


def seeds_of(experiment: Tree, change: Tree, config: Tree) -> Sequence[int]:
    """Return the seeds of an experiment: as the config says for it, as many as the paper repeated it, or the config's."""
    found = taken(change.get("seeds", experiment.get("seeds", config.get("seeds"))))
    if found is None:
        raise InputError("config.seeds is missing; give a list of whole numbers, e.g. [0, 1, 2]")
    return range(found) if isinstance(found, int) else found


def resolved(paper: str, experiment: str, point: Tree, mapping: Tree, budget: Tree = types.MappingProxyType({})) -> Run:
    """Return the run of a mapping; raise InputError as `naming` says, or for a key that a config's `run` gives so."""
    with naming(paper, experiment, point):
        try:
            return run_of(json.dumps(mapping))
        except InputError as error:
            key, found = str(error).partition(":")[0], flat(mapping)
            given_so = [name for name, value in flat(budget).items() if found.get(name) == value]
            if any(f"{name}.".startswith(f"{key}.") for name in given_so):
                raise InputError(f"config.run.{error}") from None
            raise


@functools.cache
def run_of(text: str) -> Run:
    """Return the run of a mapping as JSON: a plan asks for the same one when it checks a paper."""
    from bayesfed.runs import run_file

    return run_file.resolve(json.loads(text))


@contextlib.contextmanager
def naming(paper: str, experiment: str, point: Tree) -> Iterator[None]:
    """Put before an InputError inside which point of which experiment it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{paper}, experiment {experiment} ({at(point)}): {error}") from None


def differences(run: Run, of_paper: Run) -> list[str]:
    """List how a run differs from the one that the paper's file asks for, except in its data: `lr 0.001 (paper 0.01)`."""
    from bayesfed.models.pretrained import SCRATCH

    ours, theirs = flat(run.to_dict()), flat(of_paper.to_dict())
    for one in (ours, theirs):  # a preparation is one value, with its side or without
        for key in [key for key in one if key.startswith("images.prepare.")]:
            one["images.prepare"] = f"{key.removeprefix('images.prepare.')} {one.pop(key)}"
    found = []
    for key in dict.fromkeys([*ours, *theirs]):
        if key not in ("dataset", "on_round") and ours.get(key) != theirs.get(key):
            none = SCRATCH if key.startswith("weights.") else "none"
            words = [none if one.get(key) is None else shown(one[key]) for one in (ours, theirs)]
            name = key.removeprefix("partition.").removeprefix("method.").replace("_", " ").replace(".", " ")
            found.append(f"{name} {words[0]} (paper {words[1]})")
    return found


def shown(value: Any) -> str:
    """Return a value as people write it."""
    return f"{value:g}" if isinstance(value, float) else " ".join(map(str, listed(value)))


def run_mapping(
    spec: Tree, config: Tree, experiment: Tree, point: Tree, change: Tree = types.MappingProxyType({})
) -> tuple[dict[str, Any], Any]:
    """Return the run file of a point without seed and stand-in datasets, and the dataset or datasets that it names.

    What holds for all experiments of the paper, as the config changes it; over that what the experiment says, and over that
    `change`, what the config says of the experiment.
    """
    from bayesfed import methods

    budget = config.get("run", {})
    own = {key: value for key, value in experiment.items() if key not in OF_PLAN}
    run, options = given(spec, {**flat(own), **point})
    mapping = merged(merged(merged(run, budget), own), change)
    if "plugins" in spec:
        mapping["plugins"] = spec["plugins"]
    if "method" not in point:
        raise InputError(
            f"method: no case and no axis names one; the experiment has the keys {', '.join(experiment) or 'none'}"
        )
    label = point["method"]
    if label not in spec["methods"]:
        raise InputError(f"method: the paper has none labelled '{label}'; {nearest(label, spec['methods'])}")
    mapping["method"] = {**spec["methods"][label], **options, **config.get("methods", {}).get(label, {})}
    method = methods.get(plain(mapping["method"]["name"]))
    check_change(budget, (), "config.run")
    check_change(change, point, "run")
    for axis, value in point.items():
        check_axis(axis, method)
        if axis != "method":
            put(mapping, axis.split("."), value)
    for axis, known in (("dataset", "dataset" in mapping), ("models.global", "models" in mapping)):
        if not known:
            raise InputError(f"{axis}: no case and no axis names one")
    had = {"global", *method.networks, *(["local"] if method.local_models else [])}
    for block in ("models", "weights"):
        if block in mapping:
            mapping[block] = {key: value for key, value in check_mapping(mapping[block], block).items() if key in had}
    return mapping, plain(mapping["dataset"])


def check_change(run: Tree, axes: Iterable[str], where: str) -> None:
    """Refuse keys under a config's `run` that have another place, or that one of these axes decides."""
    for key, stand in ELSEWHERE.items():
        if key in run:
            raise InputError(f"{where}.{key}: {stand}")
    for axis in axes:
        *blocks, key = axis.split(".")
        block = run
        for name in blocks:
            block = block.get(name) or {}
        if key in block:
            raise InputError(
                f"{where}.{axis}: the experiment has an axis '{axis}'; give other values under its `axes` or `cases`"
            )


def check_axis(axis: str, method: type[Method]) -> None:
    """Refuse an axis that is not the full name of a key in run files of this method; the error has the nearest one."""
    if axis in ELSEWHERE and axis != "method":
        raise InputError(f"axis '{axis}': {ELSEWHERE[axis]}")
    if axis not in (valid := axes_of(method)):
        options = [name for name in valid if name.startswith("method.")] if axis.startswith("method.") else valid
        raise InputError(f"{axis}: unknown key; {nearest(axis, options)}")


@functools.cache
def axes_of(method: type[Method]) -> tuple[str, ...]:
    """Return the full names of all keys that may be an axis: `rounds`, `partition.alpha`, `method.lr`."""
    from bayesfed.data import schemes
    from bayesfed.data.prepare import Seen
    from bayesfed.runs.schedule import Schedule
    from bayesfed.runs.spec import Active, Budget, Tasks

    blocks = {
        "method": method.Options, "images": Seen, "schedule": Schedule, "tasks": Tasks, "active": Active,
    }  # fmt: skip
    budget = [field.name for field in dataclasses.fields(Budget) if field.name != "seed"]
    networks = [f"models.{name}" for name in ("global", *method.networks)]
    keys = {block: [field.name for field in dataclasses.fields(cls)] for block, cls in blocks.items()}
    keys["partition"] = schemes.partition_keys()
    of_blocks = [f"{block}.{key}" for block, names in keys.items() for key in names]
    return ("dataset", "method", *networks, *budget, *of_blocks)


def cell_of(
    paper: str, experiment: str, spec: Tree, point: Tree, asked: Any, run: Run, changes: list[str]
) -> dict[str, Any]:
    """One cell: its place in the paper (`point` by short names), its budget, how it differs from the paper's, and the folder
    of its run."""
    from bayesfed import methods
    from bayesfed.runs import compatibility

    its = spec["experiments"][experiment]
    asks = {"mistakes": run.tasks.mistakes, "active": run.active, "validation": run.budget.validation}
    used = list(run.datasets) if isinstance(asked, list) else run.datasets[0]
    block = run.partition.to_dict()
    alpha = None if block["alpha"] is None else f"{block['alpha']:g}"
    settings, place = spec.get("settings", {}), block["scheme"] if alpha is None else alpha
    budget = {key: getattr(run.budget, key) for key in ("rounds", "local_epochs", "batch_size", "clients_on_test")}
    return {
        "paper": paper,
        "experiment": experiment,
        "dataset": asked,
        "used": used,
        "alpha": alpha,
        "setting": settings.get(f"{place} label_noise {run.budget.label_noise:g}", settings.get(place)),
        "method": point["method"],
        "model": point.get("model"),
        # By the run: a config may have other networks than the paper's experiment.
        "models": {"global": run.global_model, "local": list(run.local_models)} if "models" in its else {},
        "clients": run.partition.clients,
        "stragglers": f"{run.budget.stragglers:g}",
        "axes": {axis: value for axis, value in point.items() if axis not in PLAIN},
        "seed": run.budget.seed,
        **budget,
        "asks": [name for name, asked in asks.items() if asked],
        "personal": methods.get(run.method).personal,
        "changes": changes,
        "folder": run.folder,
        **({"server_images": count} if (count := compatibility.server_images(run)[0]) else {}),
    }
