"""The plan: the runs that a config asks for, each once, and the cells of experiments that these runs fill.

`results/<config>/plan/` holds it: `plan.json`, the config it was made from, and one run file a run. It is
a cache that `load` checks by content (config, papers, published numbers, own plugins, source of this package), so that
reading a plan imports no torch; only making one does, since methods and networks decide what a valid run is. The digest of
that content is in a file of its own: `plan.json` is an input of tables, and written only when it changes itself.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.core import files, helper_modules, plugins
from bayesfed.core.errors import InputError, nearest
from bayesfed.core.options import check_keys, check_mapping, read
from bayesfed.data.sources import SOURCES
from bayesfed.papers.grid import Tree, frozen, grid, listed
from bayesfed.papers.spec import Config, Figure, Paper, Table
from bayesfed.plan import config_check, experiments, jobs, unused_keys
from bayesfed.runs.planned import SAYS

if TYPE_CHECKING:
    from bayesfed.runs.spec import Run

PACKAGE, CONFIGS = Path(__file__).parents[1], Path("config")
PAPERS = CONFIGS / "papers"

# Where and how runs are made: no plan depends on them.
WORKFLOW_KEYS = ("data_mirror", "gpu_slots", "partitions", "precision", "runs")
OUTPUTS = {"tables": Table, "figures": Figure}  # of a paper, and of a config beside a paper's
COMPARED = "compare"  # the config that `bayesfed compare` makes
PLAN, MADE_FROM = "plan.json", "made_from"  # the plan, and a digest of what it and its run files were made from
OF_CHANGE = {  # what has no place in an experiment of a config's own
    "run": "keys of a run file, such as rounds, are keys of your own experiment itself",
    "datasets": "stand-ins for your own experiment are given under the config's `datasets`",
    "skip": "leave an experiment of your own out, or delete its lines",
    "seed": experiments.ELSEWHERE["seed"],
    "plugins": experiments.ELSEWHERE["plugins"],
}


def folder(name: str) -> Path:
    """Return the folder of the plan of the config of that name."""
    return Path("results", name, "plan")


def load(config: Tree) -> dict[str, Any]:
    """Return the plan of a config, from the cache where that is current, else made by a process of its own.

    Called by the Snakefile at every parse. Raises InputError with what that process said.
    """
    check_config(config)
    config = json.loads(json.dumps(config))  # plain types, whatever the workflow engine wraps them in
    into = folder(config["name"])
    plan, stored = current(config, into), into / "config.yaml"
    asked = {key: value for key, value in config.items() if key != "runs"}  # which each call gives
    files.write_changed(stored, files.yaml_text(asked))  # beside a current plan, too: a refused config left its own
    if plan:
        return plan
    command = [sys.executable, "-m", "bayesfed", "plan", str(stored), "--out", str(into)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip()
        said = said.splitlines()[-1] if said.startswith("Traceback") else said
        ended = (
            f"planning {config['name']} was ended from outside (exit code {done.returncode}); memory may have run out"
        )
        raise InputError(" ".join(said.split()) or ended)
    sys.stderr.writelines(f"{line}\n" for line in done.stderr.splitlines() if line.startswith(SAYS))
    return dict(json.loads((into / PLAN).read_text(encoding="utf-8")))


def current(config: Tree, into: Path) -> dict[str, Any] | None:
    """Return the plan of a config in a folder; None where it, or one of its run files, is missing or not as it was made."""
    try:
        plan: dict[str, Any] = json.loads((into / PLAN).read_text(encoding="utf-8"))
        made_from = (into / MADE_FROM).read_text(encoding="utf-8")
    except (FileNotFoundError, ValueError):
        return None
    return plan if made_from == state(content_hash(config), into, plan) else None


def state(content: str, into: Path, plan: Tree) -> str:
    """Return a digest over what a plan was made from, and the plan and its run files as they are in the folder."""
    return files.digest(content, [into / PLAN, *run_files(plan)])


def write(config_file: Path, out: Path | None = None) -> dict[str, Any]:
    """Make the plan of a config file and write it under `out` (default: where the workflow looks for it).

    Raises InputError, naming the key, its value and what would be right, before anything is written.
    """
    config = read_mapping(config_file)
    check_config(config)
    content = content_hash(config)
    plan, runs = make(config)
    into = out or folder(config["name"])
    for entry, run in zip(plan["runs"], runs, strict=True):
        run_file = into / "runs" / f"{run.key}.yaml"
        files.write_changed(run_file, files.yaml_text(run.to_dict()))
        entry["runfile"] = run_file.as_posix()
    # Those of a plan that was here before, whose runs may be waiting for them, and beside planners of the same config.
    for older in set((into / "runs").glob("[0-9a-f]" * 12 + ".yaml")) - set(run_files(plan)):
        older.unlink(missing_ok=True)
    files.write_changed(into / PLAN, files.json_text(plan))
    files.write_text(into / MADE_FROM, state(content, into, plan))
    if helping := helper_modules.found({path for run in runs for path in run.plugin_files}):
        print(helper_modules.told(helping), file=sys.stderr)
    return plan


def run_files(plan: Tree) -> list[Path]:
    """Return the run files of a plan."""
    return [Path(run["runfile"]) for run in plan["runs"]]


def make(config: Tree) -> tuple[dict[str, Any], list[Run]]:
    """Return the plan of a config, and its runs, each once. Raises InputError for mistakes in config or papers."""
    from bayesfed import methods

    check_config(config)
    plugins.use(config.get("plugins"))
    experiments.run_of.cache_clear()
    experiments.axes_of.cache_clear()
    read = {name: read_paper(name, config) for name in config["papers"]}
    papers, changes = with_additions(read, config)
    cells: list[dict[str, Any]] = []
    runs: dict[str, Run] = {}
    entered, entries = unused_keys.entered(config)
    papers_entered, changes_entered = with_additions(read, entered)
    for paper, spec in papers.items():
        check_paper(paper, spec, changes)
        for cell, run in experiments.cells(paper, papers_entered[paper], changes_entered):
            runs.setdefault(run.folder, run)
            cells.append(cell)
    config_check.check_papers(papers, cells)
    config_check.check_methods(papers, cells)
    check_means(papers, cells)
    config_check.check_stand_ins(
        changes, {name for cell in cells for name in [*listed(cell["dataset"]), *cell.get("foreign", {})]}
    )
    config_check.check_weights(runs.values(), config)
    unused_keys.check(entries)
    config_check.check_settings(config, papers, runs.values(), PAPERS)
    planned = [
        {
            "key": run.key,
            "folder": run.folder,
            "datasets": run.all_datasets,
            "partition": run.partition_file,
            "method": run.method,
            "cost": run.cost,
            "priority": priority,
        }
        for run, priority in zip(runs.values(), jobs.priorities(runs, cells, papers), strict=True)
    ]
    plan = {
        "config": config["name"],
        "title": config.get("title", config["name"]),
        "notice": config.get("notice") or "",
        "benchmarks": config.get("benchmarks", False),
        "runs": planned,
        "jobs": jobs.group(planned, config.get("short_runs", {})),
        "cells": cells,
        "papers": papers,
        "logs": {name: dict(methods.get(name).logs) for name in sorted({run.method for run in runs.values()})},
    }
    return plan, list(runs.values())


def check_file(path: Path) -> None:
    """Refuse a key given twice, and the name of another config, as a copy has it, whose results would be replaced."""
    name = read_mapping(path).get("name", path.stem)
    if path.parent == CONFIGS and name != path.stem:
        raise InputError(f"{path}: expected name: {path.stem}, as the file's, found {name}; it names the results")
    if name == COMPARED and Path("results", COMPARED) not in path.parents:
        raise InputError(
            f"{path}: name: {name} is that of `bayesfed compare`, whose results would be replaced; take another"
        )
    if path.parent not in (CONFIGS, folder(name)) and (other := CONFIGS / f"{name}.yaml").exists():
        raise InputError(f"{path}: name: {name} is that of {other}, whose results would be replaced; take another")


def check_config(config: Tree) -> None:
    """Raise InputError where a config is another kind of file, or is not as `Config` has it."""
    if {"dataset", "method"} <= config.keys():
        raise InputError("config: this is a run file; train it with `bayesfed train FILE --out DIR`")
    if {"paper", "reference"} <= config.keys():
        raise InputError("config: this is a paper's file; name it in a config, `papers: [NAME]`")
    read(Config, config, "config")


def paper_folder(name: str, config: Tree) -> Path:
    """Return the folder of a paper's file: config/papers, or that of own plugins."""
    own = Path(config["plugins"], plugins.PAPERS) if config.get("plugins") else None
    return own if own and (own / f"{name}.yaml").exists() else PAPERS


def read_paper(name: str, config: Tree) -> dict[str, Any]:
    """Return a paper's file, where its published numbers would be and whether they are, and the folders of own plugins
    and of weights.

    Raises InputError where there are two of that name.
    """
    folder = paper_folder(name, config)
    folders = [PAPERS, *([Path(config["plugins"], plugins.PAPERS)] if config.get("plugins") else [])]
    known = [path.stem for where in folders for path in where.glob("*.yaml")]
    if name not in known:
        right = nearest(name, known) if known else "run this in the project's folder"
        right += (
            "" if config.get("plugins") else f" (one of your own is in {plugins.PAPERS}/ of the config's `plugins`)"
        )
        places = " or ".join(str(where / name) for where in folders)
        raise InputError(f"{places}.yaml: there is no such file; {right}")
    paper = read_mapping(folder / f"{name}.yaml")
    read(Paper, paper, f"{name}.yaml")
    if paper["paper"] != name:
        raise InputError(f"{name}.yaml.paper: '{paper['paper']}' is not the file's name; write '{name}'")
    if folder != PAPERS and (PAPERS / f"{name}.yaml").exists():
        raise InputError(f"{folder / name}.yaml: the paper '{name}' is there already ({PAPERS}); rename yours")
    published = folder / f"{name}.published.csv"
    paper = {"first_client": 0} | paper | {"published_file": published.as_posix(), "printed": published.is_file()}
    return paper | {key: config[key] for key in ("plugins", "weights") if config.get(key)}


def with_additions(papers: dict[str, dict[str, Any]], config: Tree) -> tuple[dict[str, dict[str, Any]], Tree]:
    """Return the papers, one of them with what a config adds to it, and the rest of the config, which changes the papers.

    A config adds methods and experiments of its own, and tables and figures, which come before the paper's.

    A method of the config's own has a `name`, an experiment `axes` or `cases`; all else must be the paper's already.
    Raises InputError for a name that is neither, and where the config has several papers to choose from.
    """
    known = {key: list(itertools.chain(*(spec[key] for spec in papers.values()))) for key in ("methods", "experiments")}
    new: dict[str, dict[str, Any]] = {key: dict(config.get(key, {})) for key in OUTPUTS}
    for key, marks in (("methods", ["name"]), ("experiments", ["axes", "cases"])):
        asked = config.get(key, {})
        new[key] = {
            name: value
            for name, value in asked.items()
            if name not in known[key] and any(mark in value for mark in marks)
        }
        check_keys(asked, [*known[key], *new[key]], f"config.{key}")
    for name, experiment in new["experiments"].items():
        for key in OF_CHANGE.keys() & experiment:
            raise InputError(f"config.experiments.{name}.{key}: {OF_CHANGE[key]}")
    added = [f"config.{key}.{next(iter(values))}" for key, values in new.items() if values]
    if added and len(papers) != 1:
        raise InputError(f"{added[0]}: a config of {len(papers)} papers cannot add to them; name one under papers")
    for key in OUTPUTS:
        for name in new[key]:
            if any(name in spec.get(key, {}) for spec in papers.values()):
                raise InputError(f"config.{key}.{name}: the paper has a {key[:-1]} of that name; take another")
            read(OUTPUTS[key], new[key][name], f"config.{key}.{name}")
    whole = {
        paper: spec
        | {key: (new[key] if key in OUTPUTS else {}) | spec.get(key, {}) | new[key] for key in new}
        | {"added": {key: list(new[key]) for key in ("methods", "experiments", *OUTPUTS)}}
        | {"summary": list(dict.fromkeys([*new["tables"], *spec.get("summary", [])]))}
        for paper, spec in papers.items()
    }
    left = {key: {name: value for name, value in config.get(key, {}).items() if name not in new[key]} for key in known}
    return whole, {**config, **left}


ASKS = ("tasks", "active", "clients_on_test")  # what of a run decides what can be shown of it


def check_paper(paper: str, spec: Tree, config: Tree) -> None:
    """Check what a paper makes of its runs, in its own grid, before any is trained. Each claim gets `cells`, in how many of
    that grid it can be tested, since a config may plan fewer. Of the config counts what its runs are asked for beside."""
    from bayesfed.plan import paper_check, published_check
    from bayesfed.results import claims
    from bayesfed.results import study as join

    places = {
        name: f"config.experiments.{name}" if name in spec["added"]["experiments"] else f"{paper}.yaml, {name}"
        for name in spec["experiments"]
    }
    points = [point for name, where in places.items() for point in grid(spec["experiments"][name], {}, where)]
    for number, rule in enumerate(spec.get("given", []), 1):
        where = f"{paper}.yaml, given {number}"
        for axis, values in rule["where"].items():
            check_keys({axis: None}, {name for point in points for name in point}, f"{where}.where")
            known = {frozen({axis: point[axis]}): point[axis] for point in points if axis in point}
            for value in listed(values):
                if frozen({axis: value}) not in known:
                    quoted = str(value) in map(str, known.values())
                    right = f"write {value} without quotes" if quoted else nearest(value, known.values())
                    raise InputError(f"{where}.where.{axis}: no cell has {value!r}; {right}")
        check_keys(rule.get("methods", {}), spec["methods"], f"{where}.methods")

    def asked_for(change: Tree) -> Tree:
        return {key: value for key, value in change.get("run", {}).items() if key in ASKS}

    once: Tree = {"seeds": [0], "experiments": {}}
    for name in spec["experiments"]:
        change = config.get("experiments", {}).get(name, {})
        asks = {**asked_for(config), **asked_for(change)}
        once["experiments"][name] = {"seeds": [0], "run": {} if change.get("skip") else asks}
    # The config's own experiments are here without all else that its `run` says, and are counted with it.
    whole = list(experiments.cells(paper, spec, once, counted=False))
    study = join.study(paper, spec, "", [cell for cell, _ in whole], Path())
    runs = {(cell["experiment"], cell["method"]): run for cell, run in whole}
    paper_check.paper(study, runs)
    published_check.check(study, Path(spec["published_file"]))
    for claim in spec.get("claims", []):
        claim["cells"] = len(claims.tests(study, claim))


def check_means(papers: Mapping[str, Tree], cells: Iterable[Tree]) -> None:
    """Refuse tables and figures that would average runs of a seed which differ in what they do not name, and those of the
    config that no run fills."""
    from bayesfed.plan import averages
    from bayesfed.results import study as join

    for paper, spec in papers.items():
        study = join.study(paper, spec, "", [cell for cell in cells if cell["paper"] == paper], Path())
        averages.means(study)
        averages.filled(study)


def content_hash(config: Tree) -> str:
    """Return a hash over all that a plan is made from: what the config asks for, its papers and plugins, our source."""
    read = [
        paper_folder(name, config) / f"{name}{end}" for name in config["papers"] for end in (".yaml", ".published.csv")
    ]
    # What decides keys only when it has been fetched: what was.
    read += [plugins.DATA / name / "dataset.json" for name, one in SOURCES.items() if one.format == "leaf"]
    asked = {key: value for key, value in config.items() if key not in WORKFLOW_KEYS}
    text = json.dumps(asked, sort_keys=True) + plugins.state(config.get("plugins"))
    return files.digest(text, [*read, *source_files(PACKAGE)])


def source_files(package: Path) -> list[Path]:
    """Return the Python files of a package, in one order on every machine."""
    return sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).parts)


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raises InputError where there is none."""
    return dict(check_mapping(files.read_yaml(path), str(path)))
