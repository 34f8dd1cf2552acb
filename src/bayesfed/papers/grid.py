"""The grid of an experiment: its points, what a paper says holds at each, and points in words."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayesfed.core.errors import InputError
from bayesfed.core.options import check_keys, check_mapping

Tree = Mapping[str, Any]  # what a YAML file holds


def grid(experiment: Tree, change: Tree, where: str) -> Iterator[dict[str, Any]]:
    """Return the points of an experiment: its cases crossed with its axes, as a config changes them.

    Raises InputError for an axis that the experiment does not have, and for a case that names one that it has.
    """
    axes = dict(experiment.get("axes", {}))
    check_keys(change.get("axes", {}), axes, f"{where}.axes")
    axes |= change.get("axes", {})
    cases: list[Tree] = change.get("cases") or experiment.get("cases") or [{}]
    for case in cases:
        if both := [axis for axis in case if axis in axes]:
            raise InputError(
                f"{where}.cases: '{both[0]}' is an axis of this experiment, too; give its values in one of them"
            )
        for values in itertools.product(*axes.values()):
            yield {**case, **dict(zip(axes, values, strict=True))}


CELL_KEYS = ("alpha", "model", "stragglers", "rounds", "local_epochs", "batch_size", "seed")  # of every cell


def short(axis: str, experiment: Tree) -> str:
    """Return the name of an axis in tables, figures and claims: `alpha` for `partition.alpha`, `model` for
    `models.global`.

    The full name for keys of other blocks, for a method's option that is called as a key of every cell (`method.alpha`),
    and for those that the experiment lists under `full_names`.
    """
    if axis == "models.global":
        return "model"
    block, _, key = axis.partition(".")
    taken = axis in experiment.get("full_names", []) or (block == "method" and key in CELL_KEYS)
    return key if key and block in ("partition", "method") and not taken else axis


def shortened(point: Tree, experiment: Tree) -> dict[str, Any]:
    """Return a point of an experiment by the short names of its axes."""
    return {short(axis, experiment): value for axis, value in point.items()}


def given(spec: Tree, point: Tree) -> tuple[Tree, Tree]:
    """Return a paper's run at a point, and the hyperparameters of the point's method.

    They are what `given` says of such points, rule after rule, over what holds for all.
    """
    run: Tree = spec["run"]
    options: dict[str, Any] = {}
    for rule in spec.get("given", []):
        if all(point.get(axis) in listed(values) for axis, values in rule["where"].items()):
            run = merged(run, rule.get("run", {}))
            options |= rule.get("methods", {}).get(point.get("method"), {})
    return run, options


def merged(run: Tree, change: Tree) -> dict[str, Any]:
    """Keys of a run file, changed; its blocks key by key, except a partition that names its scheme: it is another
    partition, whole."""
    found = dict(run)
    for key, value in change.items():
        old = found.get(key, {})
        by_key = isinstance(old, Mapping) and isinstance(value, Mapping)
        found[key] = {**old, **value} if by_key and not (key == "partition" and "scheme" in value) else value
    return found


def paper_point(point: Tree, points: Mapping[str, Tree]) -> Tree | None:
    """Return the one of a paper's points (by `frozen`) that a config's is; None if there is none.

    It may be the only one that the config's is a part of, such as a case without the local epochs that the paper gives it.
    """
    if frozen(point) in points:
        return points[frozen(point)]
    wider = [one for one in points.values() if frozen({axis: one.get(axis) for axis in point}) == frozen(point)]
    return wider[0] if len(wider) == 1 else None


def not_in_paper(point: Tree, experiment: Tree, where: str) -> Tree:
    """Return the part of a point with values that no point of the paper's has; all of it where each value is in one."""
    points = list(grid(experiment, {}, where))
    new = {
        axis: value
        for axis, value in point.items()
        if all(frozen({axis: one.get(axis)}) != frozen({axis: value}) for one in points)
    }
    return new or point


def put(mapping: dict[str, Any], place: Sequence[str], value: Any) -> None:
    """Set a key of a mapping, or of a mapping in it, which is copied first."""
    if len(place) == 1:
        mapping[place[0]] = value
    else:
        mapping[place[0]] = {**check_mapping(mapping.get(place[0], {}), place[0]), ".".join(place[1:]): value}


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


def at(point: Tree) -> str:
    """Return a point of a grid in words, by short names."""
    return ", ".join(f"{axis} {value}" for axis, value in point.items())


def frozen(point: Tree) -> str:
    """Return a point of a grid as one text, whatever the order of its keys and the way its numbers are written."""
    plain = {key: float(value) if isinstance(value, int | float) else value for key, value in point.items()}
    return json.dumps(plain, sort_keys=True)
