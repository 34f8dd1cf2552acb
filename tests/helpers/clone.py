"""The real pipeline, small: copies of the project, in which Snakemake and DVC run."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from helpers.children import child

PROJECT = Path(__file__).parents[2]
PARTS = ("workflow", "profiles", "config", "src", "benchmarks", "dvc.yaml", ".dvcignore", ".gitignore")
RESULTS = ("data", "results", "reports")
BIN = Path(sys.executable).parent
SECONDS = 900  # that a command may take: other tests, or other people, may have the cores
# A process that has loaded Snakemake and DVC, and of which commands are forks: loading takes longer than most of them.
LOADED = multiprocessing.get_context("forkserver")
LOADED.set_forkserver_preload(["snakemake.cli", "dvc.cli", "dvc.repo"])


class Clone:
    """A copy of the project without results, made where there is none yet, and the commands run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in (*PARTS, Path(".dvc", "config"), Path(".dvc", "plots"), Path(".dvc", ".gitignore")):
            if not (folder / part).exists():
                copy(PROJECT / part, folder / part)
        # The copy's source comes before the installed package; nothing of the user's settings comes in. In CI, DVC starts
        # no process that looks for a newer version of itself, and outlives the test. Threads that wait do not spin: another
        # test has the other core.
        path = {"PATH": os.defpath, "HOME": str(folder), "PYTHONPATH": str(folder / "src")}
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        self.environment = path | threads | {"GIT_CONFIG_GLOBAL": os.devnull, "CI": "1"}

    def start(self, *command: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """A command of the environment that runs the tests, found without any help of PATH; it ends with the block."""
        asked, told = [str(BIN / command[0]), *command[1:]], subprocess.PIPE
        return child(asked, cwd=self.folder, env=self.environment, stdout=told, stderr=subprocess.STDOUT)

    def run(self, *command: str) -> str:
        """Run a command to its end; gives what it printed, and fails the test where the command fails."""
        with self.start(*command) as process:
            output, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, output
        return output

    def snakemake(self, *options: str, config: str = "config/test.yaml", code: int = 0) -> str:
        """Run Snakemake on a config of the clone."""
        return self.forked("snakemake", "--cores", "2", *options, "--configfile", config, code=code)

    def dvc(self, *options: str) -> str:
        """Run DVC, which must succeed."""
        return self.forked("dvc", *options, code=0)

    def forked(self, *command: str, code: int) -> str:
        """Run a command in a fork of the process that has loaded it. Gives what it printed; fails the test where it ends
        with another exit code."""
        with tempfile.NamedTemporaryFile("r") as printed:
            process = LOADED.Process(target=fork, args=(self.folder, self.environment, command, printed.name))
            process.start()
            try:
                process.join(SECONDS)
                output = printed.read()
                assert process.exitcode == code, output
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return output

    def wanted(self, *options: str) -> list[tuple[str, str]]:
        """(rule, first output) of every job that a dry run with these options lists."""
        listed = self.snakemake("-n", *options)
        return re.findall(
            r"^(?:local)?rule (\w+):\n(?:    input: .*\n)?    output: ([^,\n]+?)(?: \(update\))?[,\n]", listed, re.M
        )

    def track(self) -> None:
        """Make the copy a repository, in which DVC knows the test config."""
        self.git("init", "--quiet")
        self.git("config", "user.email", "nobody@example.org")
        self.git("config", "user.name", "nobody")
        (self.folder / ".git" / "info" / "exclude").write_text(".venv\n")
        (self.folder / ".venv").symlink_to(BIN.parent)  # where dvc.yaml looks first
        self.edit("dvc.yaml", "configs: [demo,", "configs: [test,")

    def git(self, *command: str) -> None:
        """Run git in the copy."""
        subprocess.run(
            ["git", *command], cwd=self.folder, env=self.environment | {"PATH": os.environ["PATH"]}, check=True
        )

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text that a file holds."""
        text = (self.folder / path).read_text()
        assert old in text
        (self.folder / path).write_text(text.replace(old, new, 1))

    def configure(self, old: str, new: str) -> None:
        """Edit the test config, and make its plan."""
        self.edit("config/test.yaml", old, new)
        self.make_plan("config/test.yaml")

    def make_plan(self, config: str) -> None:
        """Make the plan of a config as the workflow would, but in this process, which has loaded torch."""
        from bayesfed.plan import (
            plan,  # here, since processes of copies import this file, and then the copies' own package
        )

        with contextlib.chdir(self.folder):
            plan.write(Path(config))

    def plan(self) -> dict[str, Any]:
        """The plan of the test config."""
        return json.loads((self.folder / "results" / "test" / "plan" / "plan.json").read_text())

    def summaries(self, config: str = "test") -> dict[Path, int]:
        """The summaries of finished runs, and when each was written (ns)."""
        found = (self.folder / "results" / config / "runs").rglob("summary.json")
        return {path: path.stat().st_mtime_ns for path in found}


def fork(folder: Path, environment: dict[str, str], command: tuple[str, ...], printed: str) -> None:
    """A package's command line in a folder, as a process of its own that leads a session; what it prints goes to a file."""
    assert "bayesfed" not in sys.modules
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with open(printed, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.argv = list(command)
    sys.path.insert(0, environment["PYTHONPATH"])
    sys.exit(importlib.import_module(f"{command[0]}.cli").main())


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder; files get the time of the copy, as in a clone."""
    if source.is_dir():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, True, ignore, shutil.copyfile, dirs_exist_ok=True)  # links stay links
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
