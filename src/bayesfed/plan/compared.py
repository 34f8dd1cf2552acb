"""The call of `bayesfed compare`: methods and grounds as a config over the comparison's file, and what is left to train.

The comparison's own runs stay where they are, in results/comparison/runs. What is trained for one call goes to
results/compare/runs, where the next call finds it. A search of the call's own is an experiment beside the comparison's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesfed.core import files, plugins
from bayesfed.core.errors import InputError, nearest
from bayesfed.core.options import option
from bayesfed.data import catalogue
from bayesfed.plan import config_check, experiments
from bayesfed.plan import plan as planning
from bayesfed.plan.asked import Asked, partition_of, written
from bayesfed.results.grounds import PLAIN, usual
from bayesfed.results.searches import SEARCH, is_search

PAPER, NAME = "comparison", "compare"
STORED, OWN = Path("results", PAPER, "runs"), Path("results", NAME, "runs")
WORKFLOW = Path("workflow/Snakefile")
SEARCHED = [100]  # seeds of the searches, as config/comparison.yaml has them
CALLED = f"{SEARCH}_called"  # the experiment of the call's own search
FIRST = "mnist-harsh"  # the ground of a call that names none
ALPHA, CLIENTS, ROUNDS = 0.1, 10, 50  # of a ground of one's own, where the call does not say

Block = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call: methods as `plan.asked` reads them, and grounds by name, or a ground of one's own by its dataset.

    against: by name the comparison's methods on a ground of one's own beside the baseline; none: all that can run there.
    tried: the configurations of the call's searches so far, for each method that has one. chosen: one of them.
    """

    methods: tuple[str, ...]
    grounds: tuple[str, ...] = ()
    seeds: int = option(5, low=1)
    plugins: str | None = None
    dataset: str | None = None
    partition: str | None = None
    alpha: float | None = None
    clients: int | None = None
    model: str | None = None
    rounds: int | None = None
    against: tuple[str, ...] = ()
    tried: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    chosen: Mapping[str, Block] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=lambda: planning.read_paper(PAPER, {}))

    @property
    def known(self) -> list[str]:
        """The grounds of the comparison."""
        return [name for name in self.paper["experiments"] if not is_search(name)]

    @cached_property
    def named(self) -> dict[str, tuple[str, Block]]:
        """Label and block of the config of each method; an empty block for a method as the comparison has it.

        A method whose label another one has goes by its name, and a search that has not ended by its text.
        """
        from bayesfed import methods

        ours = {block["name"]: label for label, block in self.paper["methods"].items() if not label.endswith(PLAIN)}
        whose = {label: name for name, label in ours.items()}  # label -> the method that has it
        found: dict[str, tuple[str, Block]] = {}
        for text in self.methods:
            asked = Asked.read(text)
            if asked.name in plugins.registered["methods"]:
                raise InputError(
                    f"{asked.name}: registered in this session, where no other process finds it; put it into a file of a "
                    "folder `methods` and give the folder around that as `plugins`"
                )
            label, options = methods.get(asked.name).label, asked.options | self.chosen.get(text, {})
            open_ = asked.choices and text not in self.chosen
            if asked.name in ours and not options and not open_:
                found[text] = ours[asked.name], {}
                continue
            shown = label if whose.setdefault(label, asked.name) == asked.name else asked.name
            own = self.paper["methods"].get(ours.get(asked.name), {})
            words = text.partition(":")[2].split(",") if open_ else written(options)
            found[text] = " ".join([shown, *words]), {**own, "name": asked.name, **options}
        return found

    @property
    def asked(self) -> dict[str, Block]:
        """The methods of the call: label -> block of the config."""
        return dict(self.named.values())

    @cached_property
    def own_ground(self) -> tuple[str, Block]:
        """The name and the experiment of a ground of one's own."""
        assert self.dataset is not None
        every = [one["axes"] for one in self.paper["experiments"].values()]
        models = {dataset: axes["models.global"][0] for axes in every for dataset in axes["dataset"]}
        model = self.model or models.get(self.dataset)
        catalogue.described(self.dataset)
        if model is None:
            raise InputError(f"--model: give the network for {self.dataset}; `bayesfed list models` names them")
        axes: Block = {"dataset": [self.dataset], "models.global": [model]}
        dealt, words = partition_of(self.partition, {"clients": self.clients, "alpha": self.alpha})
        dealt = {"clients": CLIENTS if self.clients is None else self.clients} | dealt
        if self.alpha is not None or not self.partition:
            alpha = ALPHA if self.alpha is None else self.alpha
            axes["partition.alpha"] = [alpha]
            words.append(f"alpha{alpha:g}")
        experiment = {"axes": axes, "partition": dealt, "rounds": ROUNDS if self.rounds is None else self.rounds}
        name = "-".join([self.dataset, *words, model]).lower()
        return f"own-{name}" if is_search(name) else name, experiment

    def networks(self, labels: Iterable[str]) -> Block:
        """Name the further networks of methods on a ground of one's own: each is that ground's. An empty block for none."""
        from bayesfed import methods

        if not self.dataset:
            return {}
        (model,) = self.own_ground[1]["axes"]["models.global"]
        blocks = [self.asked.get(label) or self.paper["methods"][label] for label in labels]
        further = {name: model for block in blocks for name in methods.get(block["name"]).networks}
        return {"models": further} if further else {}

    def axes(self, ground: str) -> Mapping[str, Any]:
        """Return the axes of one of the comparison's grounds."""
        return self.paper["experiments"][ground]["axes"]  # type: ignore[no-any-return]

    @cached_property
    def searched_at(self) -> Block:
        """The axes of the call's own search: its dataset at the harsh alpha, as the comparison's searches.

        Raises InputError for grounds of several datasets.
        """
        if self.dataset:
            return dict(self.own_ground[1]["axes"])
        asked = {dataset for ground in self.grounds or (FIRST,) for dataset in self.axes(ground)["dataset"]}
        if len(asked) > 1:
            raise InputError(
                f"--ground: options are chosen on one dataset, these have {', '.join(sorted(asked))}; split the call"
            )
        of_dataset = [axes for axes in map(self.axes, self.known) if set(axes["dataset"]) == asked]
        harsh = min(of_dataset, key=lambda axes: min(axes["partition.alpha"]))
        return {axis: harsh[axis] for axis in ("dataset", "models.global", "partition.alpha")}

    @property
    def cases(self) -> list[Block]:
        """The points of the call's own search: a method and its options each."""
        every = [(self.named[text][0], options) for text, tried in self.tried.items() for options in tried]
        return [
            {"method": label} | {f"method.{key}": value for key, value in options.items()} for label, options in every
        ]

    def config(
        self, methods: Mapping[str, Sequence[str]], *, searches: bool = False, cases: Sequence[Block] = ()
    ) -> Block:
        """Build the config of all seeds of these methods on each ground, as `config_of` does."""
        seeds = list(range(self.seeds))
        return self.config_of([(ground, labels, seeds) for ground, labels in methods.items()], searches, cases)

    def config_of(
        self, parts: Sequence[tuple[str, Sequence[str], Sequence[int]]], searches: bool, cases: Sequence[Block]
    ) -> Block:
        """Build the config of methods and seeds on grounds, the comparison's searches or none, and points of the call's own.

        Of a ground's further parts each is an experiment of its own.
        """
        kept = [name for name in self.paper["experiments"] if searches and is_search(name)]
        changes: Block = {name: {"skip": True} for name in self.paper["experiments"] if name not in kept}
        for number, (ground, labels, seeds) in enumerate(parts):
            own = self.own_ground[1] if self.dataset else self.paper["experiments"][ground]
            name = ground if changes.get(ground, {"skip": True}) == {"skip": True} else f"{ground}_{number}"
            axes = {**own["axes"], "method": list(labels)}
            changes[name] = {**own, **self.networks(labels), "axes": axes, "seeds": list(seeds)}
        tried = {case["method"] for case in cases}
        if cases:
            own = self.own_ground[1] if self.dataset else {}
            axes = self.searched_at
            changes[CALLED] = {**own, **self.networks(tried), "axes": axes, "cases": list(cases), "seeds": SEARCHED}
        used = {label for _, labels, _ in parts for label in labels} | tried
        blocks = {label: block for label, block in self.asked.items() if block and label in used}
        config: Block = {"name": NAME, "title": "Methods compared", "papers": [PAPER], "methods": blocks}
        config |= {"seeds": SEARCHED} if kept else {}
        return config | {"experiments": changes} | ({"plugins": self.plugins} if self.plugins else {})

    @cached_property
    def every(self) -> dict[str, list[str]]:
        """Ground -> the methods that it shows: the comparison's that can run there, and those of the call."""
        if self.dataset:
            name, _ = self.own_ground
            return {name: [label for label in self.labels(self.others) if label not in self.refused]}
        return {ground: self.labels(self.axes(ground)["method"]) for ground in self.grounds or (FIRST,)}

    @cached_property
    def others(self) -> list[str]:
        """The comparison's methods on a ground of one's own; InputError for one of `against` that is none of them."""
        every = {label: block["name"] for label, block in self.paper["methods"].items()}
        for name in self.against:
            if name not in every.values():
                raise InputError(f"--against {name}: not a method of the comparison; {nearest(name, every.values())}")
        if not self.against:
            return list(every)
        wanted = ("fedavg", *self.against)
        return [label for label, name in every.items() if name in wanted and not label.endswith(PLAIN)]

    def labels(self, stored: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """List the comparison's methods and those of the call, each once."""
        return list(dict.fromkeys([*stored, *self.asked]))

    @cached_property
    def refused(self) -> dict[str, str]:
        """The comparison's methods that cannot run on a ground of one's own, and why.

        Raises InputError for one of the call.
        """
        found = {}
        for label in self.labels(self.others):
            config = self.config({self.own_ground[0]: [label]})
            whole = {**self.paper, **({"plugins": self.plugins} if self.plugins else {})}
            paper, changes = planning.with_additions({PAPER: whole}, config)
            try:
                list(experiments.cells(PAPER, paper[PAPER], {**changes, "seeds": [0]}))
            except InputError as error:
                if label in self.asked or self.against:
                    raise
                found[label] = str(error).partition("): ")[2]  # behind the experiment and its point
        return found


def check(request: Request) -> None:
    """Raise InputError for a call that cannot be: its grounds, numbers, plugins or folder."""
    if not WORKFLOW.is_file():
        raise InputError(f"{WORKFLOW}: there is no such file here; run this in the project's folder")
    if request.dataset and request.grounds:
        raise InputError("--dataset: it is of a ground of your own; give that, or --ground")
    for name in () if request.dataset else ("partition", "alpha", "clients", "model", "rounds", "against"):
        if getattr(request, name) not in (None, ()):
            raise InputError(f"--{name}: it is of a ground of your own; give --dataset, too")
    for name in () if request.dataset else request.grounds or (FIRST,):
        if name not in request.known:
            known = ", ".join(request.known) or "none yet"
            raise InputError(f"--ground {name}: it is not there, or its searches are not finished; valid: {known}")
    plugins.use(request.plugins)


@dataclass(frozen=True)
class Planned:
    """The plan of a call: all cells that it shows, each run's cost by its folder, and the folders of runs with plugins."""

    request: Request
    cells: Sequence[Mapping[str, Any]]
    costs: Mapping[str, int]
    with_plugins: Collection[str]

    @property
    def own(self) -> list[str]:
        """The folders of the runs that the call trains: its methods at the seeds that count, or all of its own ground."""
        request = self.request

        def trained(cell: Mapping[str, Any]) -> bool:
            ground = cell["experiment"]
            if request.dataset or ground == CALLED:
                return ground in (*request.every, CALLED)
            return ground in request.every and cell["method"] in request.asked and cell["seed"] in self.stored[ground]

        return list(dict.fromkeys(cell["folder"] for cell in self.cells if trained(cell)))

    @cached_property
    def stored(self) -> dict[str, list[Any]]:
        """Ground of the comparison -> the seeds that more than half of its methods with records have."""
        found = {}
        for ground in () if self.request.dataset else self.request.every:
            methods = self.request.axes(ground)["method"]
            of_ground = [cell for cell in self.cells if cell["experiment"] == ground and cell["method"] in methods]
            found[ground] = usual((cell["method"], cell["seed"]) for cell in of_ground if finished(cell["folder"]))
        return found

    @property
    def lacking(self) -> list[Mapping[str, Any]]:
        """The cells of the call whose runs are missing."""
        own = set(self.own)
        return [cell for cell in self.cells if cell["folder"] in own and not finished(cell["folder"])]

    @property
    def missing(self) -> list[tuple[str, list[str], list[int]]]:
        """The methods that lack a run on a ground, together where they lack the same seeds."""
        lacking: dict[tuple[str, str], list[int]] = {}
        for cell in self.lacking:
            if cell["experiment"] != CALLED:
                lacking.setdefault((cell["experiment"], cell["method"]), []).append(int(cell["seed"]))
        together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for (ground, label), seeds in lacking.items():
            together.setdefault((ground, tuple(seeds)), []).append(label)
        return [(ground, labels, list(seeds)) for (ground, seeds), labels in together.items()]

    @property
    def untried(self) -> list[Block]:
        """The points of the call's own search that lack a run."""
        folders = [cell["folder"] for cell in self.cells if cell["experiment"] == CALLED]
        return [case for case, folder in zip(self.request.cases, folders, strict=True) if not finished(folder)]

    def check_stored(self) -> None:
        """Raise InputError for a ground of the comparison on which none of its methods has a finished run."""
        for ground, seeds in self.stored.items():
            if not seeds:
                raise InputError(
                    f"{STORED}: no finished run of {ground} here; take a ground that has some, restore records (git checkout), "
                    "or train them: snakemake --cores all --configfile config/comparison.yaml"
                )

    def write_config(self) -> Path:
        """Write the config of what is missing, which names the plugins if it takes any; returns its file."""
        path = OWN.parent / "config.yaml"
        config = self.request.config_of(self.missing, searches=False, cases=self.untried)
        if not any(cell["folder"] in self.with_plugins for cell in self.lacking):
            config.pop("plugins", None)
        files.write_yaml(path, json.loads(json.dumps(config)))
        return path


def finished(folder: str) -> Path | None:
    """Return the folder of a finished run, of the comparison or of an earlier call; None where neither is."""
    places = (STORED / folder, OWN / folder)
    return next((place for place in places if (place / "summary.json").exists()), None)


def plan(request: Request) -> Planned:
    """Return the plan of a call. Raises InputError for a wrong one, and for a method that cannot run on its ground."""
    check(request)
    planned = of_config(request, request.config(request.every, searches=True, cases=request.cases))
    planned.check_stored()
    return planned


def plan_search(request: Request) -> Planned:
    """Return the plan of the call's own search alone; raises InputError for grounds of several datasets."""
    return of_config(request, request.config({}, cases=request.cases))


def of_config(request: Request, config: Block) -> Planned:
    """Return the plan of a call's config."""
    made, runs = planning.make(config)
    own = {run.folder for run in runs if config_check.takes_plugins(run)}
    return Planned(request, made["cells"], {run["folder"]: run["cost"] for run in made["runs"]}, own)
