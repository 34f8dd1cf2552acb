"""The workflow of a config: the files that its rules take and make, and the runs that are left to train.

Snakemake reads it at every start, and again on a cluster's node for each job. A finished run is a file there, and no job: no
time, record or missing input can train it again.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.papers.grid import Tree
from bayesfed.plan import plan as planning
from bayesfed.results.grounds_of_plan import has_grounds
from bayesfed.results.searches import is_search
from bayesfed.runs.planned import SAYS
from bayesfed.runs.run_folder import LATER

PICTURES = (".svg", ".png", ".csv")  # of a partition
MEASURED = ("*-cpu.csv", "*-cuda.csv", "kernels.csv")  # the benchmarks of speed; others are about results and data
CODE = (".py", ".html", ".css", ".js")


class Workflow:
    """Files and runs of a config, as the rules in `workflow/` name them; all paths are from the project's folder.

    `cores` are those that jobs share. `every` makes each wanted run a job, finished or not. A node must take the job that it
    was given, whose runs may have been finished since; a report runs nothing, and tells of all runs.
    """

    def __init__(self, config: Tree, cores: int = 1, *, every: bool = False) -> None:
        self.config = config
        self.plan = planning.load(self.config)
        self.started = time.time()
        self.results = f"results/{config['name']}"
        # Otherwise results are made from finished runs, and nothing is trained or fetched.
        self.training = config.get("runs", "all") == "all"
        self.every = every and self.training
        self.runs: dict[str, Any] = {run["folder"]: run for run in self.plan["runs"]}
        self.job_of = {run: job for job in self.plan["jobs"] for run in job}
        self.finished = {run for run in self.runs if Path(self.summary(run)).exists()}
        self.wanted = [run for run in self.runs if self.training or run in self.finished]
        if not self.wanted:
            raise InputError(
                f"{self.results}/runs holds no finished run of this config; train first, without runs=finished"
            )
        self.open = [run for run in self.wanted if run not in self.finished]
        # An open job is known by the last of its open runs.
        open_jobs = [[run for run in job if run not in self.finished] for job in self.plan["jobs"] if self.training]
        self.declared = [job[-1] for job in open_jobs if job]
        # A job a core does no less than one job on several, and more for most small networks (benchmarks/cores-cpu.csv).
        # Where fewer jobs are open than there are cores, these share them.
        self.threads = max(1, cores // max(1, len(self.declared)))

    # Datasets and partitions

    @cached_property
    def datasets(self) -> list[str]:
        """The files that `fetch` makes, one a dataset."""
        names = {name for run in self.plan["runs"] for name in run["datasets"]}
        return [f"data/{name}/dataset.json" for name in sorted(names)]

    @property
    def partition_folder(self) -> str:
        """The folder that all configs share, or the config's own."""
        return Path(self.config.get("partitions") or "data/partitions").as_posix()

    def partition(self, run: Tree) -> str:
        """Return the file of a run's partition; the plan has it relative to the data folder."""
        return f"{self.partition_folder}/{Path(run['partition']).relative_to('partitions')}"

    @cached_property
    def runs_of_partitions(self) -> dict[str, str]:
        """A run file that knows all about it, for each file of a partition."""
        return {self.partition(run): run["runfile"] for run in self.plan["runs"] if run["partition"]}

    @cached_property
    def overviews(self) -> list[str]:
        """The pictures and tables of partitions; where nothing is trained, of those that have all of them.

        A table may be kept without its pictures, for their size.
        """
        found: list[str] = []
        for partition in self.runs_of_partitions:
            base = f"{self.results}/partitions/{Path(partition).relative_to(self.partition_folder).with_suffix('')}"
            pictures = [f"{base}{end}" for end in PICTURES]
            if self.training or all(map(os.path.exists, pictures)):
                found += pictures
        return found

    @property
    def shown_partitions(self) -> list[str]:
        """The tables of partitions that the page shows and no rule makes, since nothing is trained or fetched."""
        if self.training:
            return []
        return sorted(path.as_posix() for path in Path(self.results, "partitions").rglob("*.csv"))

    @property
    def data_priority(self) -> int:
        """The priority of datasets and partitions: the most valuable run must not wait for one of less value."""
        return len(self.runs) + 1

    def option(self, key: str) -> list[str]:
        """Return the option of the command line that hands on a folder of the config, if it has one."""
        return [f"--{key}", self.config[key]] if self.config.get(key) else []

    def plugins_from(self, folder: str) -> str:
        """Return the target of a link in a folder: the own plugins, or without any the list of datasets beside it."""
        plugins = Path(self.config.get("plugins") or f"{folder}/datasets.txt")
        return str(plugins) if plugins.is_absolute() else os.path.relpath(plugins, Path(folder).resolve())

    # Runs

    def summary(self, run: str) -> str:
        """Return the file whose existence says that a run is finished."""
        return f"{self.results}/runs/{run}/summary.json"

    @property
    def trainable(self) -> str:
        """A regular expression for the runs that may be asked for."""
        return "|".join(map(re.escape, self.wanted if self.every else self.open)) or "(?!)"

    @cached_property
    def summaries(self) -> list[str]:
        """The files that results wait for: summaries of finished runs, and of each open job the one it is known by."""
        there = self.wanted if self.every else [*(run for run in self.wanted if run in self.finished), *self.declared]
        return [self.summary(run) for run in there]

    @cached_property
    def bytes_later(self) -> list[str]:
        """The bytes of wanted runs that `bayesfed count-bytes` has put beside their records."""
        files = [Path(self.summary(run)).with_name(LATER) for run in self.wanted if run in self.finished]
        return [path.as_posix() for path in files if path.exists()]

    def trained_with(self, run: str) -> list[str]:
        """Return the runs that the job known by a run trains: what is open in its job before it, and it last."""
        job = self.job_of[run]
        return [*(one for one in job[: job.index(run)] if one not in self.finished), run]

    def run_files(self, run: str) -> list[str]:
        """Return the run files of a job, in the order of training."""
        return [self.runs[one]["runfile"] for one in self.trained_with(run)]

    def data(self, run: str) -> list[str]:
        """Return the datasets and partitions of a job."""
        found: dict[str, None] = {}
        for one in map(self.runs.__getitem__, self.trained_with(run)):
            found |= dict.fromkeys(f"data/{name}/dataset.json" for name in one["datasets"])
            found |= {self.partition(one): None} if one["partition"] else {}
        return list(found)

    def priority(self, run: str) -> int:
        """Return the value of a job: of its first run, since the plan puts the most valuable first."""
        return int(self.runs[self.trained_with(run)[0]]["priority"])

    # Results

    @property
    def wanted_digest(self) -> str:
        """A digest of the names of the runs that results are made from: one that comes or goes makes them again."""
        return files.digest(" ".join(sorted(self.wanted)), [])

    @property
    def plan_file(self) -> str:
        """The plan, which is written when its content changes."""
        return (planning.folder(self.config["name"]) / planning.PLAN).as_posix()

    @property
    def config_file(self) -> str:
        """The config that the plan was made from."""
        return (planning.folder(self.config["name"]) / "config.yaml").as_posix()

    @property
    def papers(self) -> Mapping[str, Tree]:
        """The plan's papers."""
        return self.plan["papers"]  # type: ignore[no-any-return]

    @cached_property
    def published(self) -> list[str]:
        """The files of the papers' published numbers."""
        return [spec["published_file"] for spec in self.papers.values() if spec["printed"]]

    def items(self, kind: str) -> list[tuple[str, str, str]]:
        """(paper, name, title) of every item of a kind, `tables` or `figures`, in the papers' order."""
        return [
            (paper, name, item["title"]) for paper, spec in self.papers.items() for name, item in spec[kind].items()
        ]

    def drawn(self, arguments: Sequence[str]) -> list[tuple[str, str, str]]:
        """(paper, name, title) of the figures that are there, for Snakemake's report alone.

        Which figures have a curve is known when they are drawn, so the rule declares their list, not their files.
        """
        if "--report" not in arguments:
            return []
        return [one for one in self.items("figures") if Path(self.results, "figures", one[0], f"{one[1]}.svg").exists()]

    @property
    def methods_page(self) -> list[str]:
        """The page of the grounds, which lies beside that of the papers: none where a plan has one of both, or no run of a
        ground.
        """
        with_grounds = {paper for paper, spec in self.papers.items() if has_grounds(spec)}
        of_grounds = {
            cell["folder"]
            for cell in self.plan["cells"]
            if cell["paper"] in with_grounds and not is_search(cell["experiment"])
        }
        both = with_grounds and self.papers.keys() - with_grounds
        return [f"reports/{self.config['name']}-methods.html"] if both and of_grounds.intersection(self.wanted) else []

    @property
    def searched(self) -> list[tuple[str, str]]:
        """(paper, name) of the figures that show the best of a search."""
        return [
            (paper, name)
            for paper, spec in self.papers.items()
            for name, one in spec["figures"].items()
            if "search" in one
        ]

    @cached_property
    def benchmarks(self) -> dict[str, str]:
        """The name and file of each table of speed, for a config that shows them."""
        found = itertools.chain(*(sorted(Path("benchmarks").glob(pattern)) for pattern in MEASURED))
        return {path.name: path.as_posix() for path in found} if self.config.get("benchmarks") else {}

    def tell_reasons(self) -> None:
        """Print why rules have failed, from the logs that have come since the start."""
        for path in sorted(Path(self.results, "logs").rglob("*.log")):
            if path.stat().st_mtime >= self.started:
                for line in path.read_text(errors="replace").splitlines():
                    if line.startswith(SAYS):
                        print(line, file=sys.stderr)


def code(*parts: str) -> list[str]:
    """Return the source files of these folders of the package, from the working folder where they lie in it.

    Results are made again when one of them changes, and in a moved project they are still the same files.
    """
    found = [path for part in parts for path in sorted((planning.PACKAGE / part).rglob("*")) if path.suffix in CODE]
    here = Path.cwd()
    return [(path.relative_to(here) if path.is_relative_to(here) else path).as_posix() for path in found]


def every_run(arguments: Sequence[str], *, main: bool) -> bool:
    """Return True if each wanted run is a job: on a cluster's node, whose process is not the `main` one, and for a
    report alone.
    """
    return not main or ("--report" in arguments and "--report-after-run" not in arguments)


def environment(config: Tree) -> dict[str, str]:
    """Variables for all jobs: rules call `bayesfed`, which lies beside this Python, and nobody need have activated its
    environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
    mirror = {"BAYESFED_MIRROR": config["data_mirror"]} if config.get("data_mirror") else {}
    return {"PATH": path, **mirror}


def check_profile(arguments: Sequence[str]) -> None:
    """Refuse a profile that is not there: Snakemake takes no notice of it, and would run everything here."""
    words = [part for argument in arguments for part in argument.split("=", 1)]
    for option, profile in itertools.pairwise(words):
        if option == "--workflow-profile" and profile != "none" and not Path(profile).is_dir():
            known = ", ".join(sorted(path.as_posix() for path in Path("profiles").iterdir()))
            raise InputError(f"there is no profile {profile}; there are {known}")


def check_configs(paths: Sequence[str]) -> None:
    """Check what is not seen in configs that Snakemake has read: of a key given twice it has kept the last."""
    for path in paths:
        planning.check_file(Path(os.path.relpath(path)))


def trouble(executor: str) -> str:
    """Words about a scheduler that does not answer; sbatch itself would go on trying for minutes, without one."""
    if executor != "slurm":
        return ""
    try:
        told = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=20)
        answer = told.stdout + told.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        answer = str(error)
    if " is UP" in answer:
        return ""
    return f"no Slurm answers here ({' '.join(answer.split())}); start it on a login node of the cluster"
