"""Every code block of every page runs, block by block, in a folder that was empty before the first.

The language of the fence says what is done with a block: `python` is executed, `yaml` read as the file that its keys make
it, and planned where it is a config, `toml` read, `sh` run in a copy of the project; `text` is no code. Of what cannot run
in a test, marked by `<!-- not run: why -->` before its fence, each command goes through its own program's parser, and the
files, targets, stages and modules that it names must be there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import linecache
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.children import finished
from helpers.clone import BIN, PROJECT, Clone, copy

from bayesfed import cli
from bayesfed.core import files, plugins
from bayesfed.data import own
from bayesfed.papers.spec import Config
from bayesfed.runs import compatibility, run_file

GENERATED = ("data", "results", "reports", "runs")  # what a command names in these need not be there yet
FOLDERS = ("docs", "config", "data", "examples", "reports")
PAGES = sorted([*PROJECT.glob("*.md"), *(page for folder in FOLDERS for page in (PROJECT / folder).rglob("*.md"))])
README = PROJECT / "README.md"
FENCE = re.compile(r"( *)(`{3,}|~{3,})(.*)")
MARK = re.compile(r"\s*<!-- not run: \S.* -->\s*")
OTHERS = ("cd", "export", "git", "pip", "pre-commit", "pytest", "source", "uv")  # programs that are not ours to check


@dataclass(frozen=True)
class Block:
    """A code block: the line of its fence, its language and text, and whether a test runs it."""

    line: int
    language: str
    text: str
    runs: bool


def blocks(text: str) -> Iterator[Block]:
    """The code blocks of a page."""
    lines = iter(enumerate(text.splitlines(), 1))
    before = ""
    for number, line in lines:
        if fence := FENCE.fullmatch(line):
            held: list[str] = []
            for _, inner in lines:
                if inner.strip() == fence[2]:
                    break
                held.append(inner.removeprefix(fence[1]))
            yield Block(number, fence[3].strip(), "\n".join(held) + "\n", not MARK.fullmatch(before))
        before = line if line.strip() else before


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_code_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # and back, when the test is over
    run(page.read_text(encoding="utf-8"), tmp_path)


def test_commands_that_are_not_marked_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one copy of the project for the whole page; Python's blocks share their names."""
    monkeypatch.chdir(tmp_path)
    page = """\
```sh
source .venv/bin/activate
bayesfed \\
    --version > version.txt  # here
```

* In a list:

  ```python
  import bayesfed
  ```

```python
bayesfed.train
```

```sh
cp version.txt ../found.txt
```
"""
    run(page, tmp_path)
    assert (tmp_path / "found.txt").exists()


@pytest.mark.parametrize(
    "block",
    [
        "```\nno language\n```",
        "```bash\na second name\n```",
        "```sh\nfalse\n```",
        "```python\nimport nothing_of_that_name\n```",
        "<!-- not run: why -->\n```python\nno code\n```",
        "```yaml\ntitel: Mine\n```",
        "```yaml\nrounds: 0\n```",
        "```yaml\nmethods: {HBFL: {nothing: 3}}\n```",
        '```toml\n[project.entry-points."bayesfed.method"]\na = "b"\n```',
        *(
            f"<!-- not run: why -->\n\n```sh\n{command}\n```"
            for command in (
                "bayesfed train RUN.yaml --outt DIR",
                "OMP_NUM_THREADS=1 bayesfed train examples/nothing-NAME.yaml --out DIR",
                "cd x && make nothing",
                "make report CONFIG=nothing",
                "make report CONFIGS=paper",
                "snakemake --coers all",
                "snakemake --cores all nothing",
                "snakemake --cores all --configfile nothing.yaml",
                "snakemake --cores all --config mirror=DIR",
                "snakemake --cores all --workflow-profile profiles/nothing",
                "export X=1; .venv/bin/dvc repro tables@nothing",
                "dvc repro tabels@demo",
                "dvc rerpo",
                "python3 -m benchmarks.nothing",
                "python -m benchmarks.gpu smoke --dtaa DIR",
                "curl example.org",
            )
        ),
    ],
)
def test_what_could_not_be_meant_fails(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((Exception, SystemExit)) as caught:
        run(f"A page.\n\n{block}\n", tmp_path)
    assert caught.value.__notes__ == [f"the code block in line {3 + block.partition('```')[0].count(chr(10))}"]


def run(page: str, folder: Path) -> None:
    """Run, or check, the code blocks of a page."""
    names: dict[str, Any] = {"__name__": "page"}  # what a reader has who has pasted all blocks before
    for block in blocks_to_run(page):
        os.chdir(folder)
        try:
            LANGUAGES[block.language](block, folder, names)
        except (Exception, SystemExit) as error:
            error.add_note(f"the code block in line {block.line}")
            raise


def blocks_to_run(page: str) -> Iterator[Block]:
    """The blocks of a page, without the lines that README's own test runs, where that page makes the same of its copy.

    It does where the page's commands, but for lists, are README's first ones in their order.
    """
    front = README.read_text(encoding="utf-8")
    done, asked = shell_commands(front), shell_commands(page)
    writing, wanted = ([one for one in every if one[1][:1] != ["list"]] for every in (done, asked))
    same = page != front and wanted == writing[: len(wanted)]
    for block in blocks(page):
        if same and block.language == "sh" and block.runs:
            lines = block.text.replace("\\\n", " ").splitlines()
            left = [line for line in lines if not all(one in done for one in commands(line))]
            block = replace(block, text="\n".join(left))
        yield block


def shell_commands(page: str) -> list[tuple[str, list[str]]]:
    """The commands of a page that run, in their order."""
    run = (block.text for block in blocks(page) if block.language == "sh" and block.runs)
    return [command for text in run for command in commands(text)]


def python(block: Block, folder: Path, names: dict[str, Any]) -> None:
    """Execute a block with the names of those before it; its source is known, as that of a notebook's cell."""
    name = f"<the code block in line {block.line}>"
    linecache.cache[name] = (len(block.text), None, block.text.splitlines(keepends=True), name)
    code = compile(block.text, name, "exec", dont_inherit=True)
    if block.runs:
        exec(code, names)


def shell(block: Block, folder: Path, names: dict[str, Any]) -> None:
    """Run the commands in a copy of the project, which all blocks of a page share; or check each of them."""
    if block.runs and block.text:
        clone = Clone(folder / "bayesfed")
        copy(PROJECT / "examples", clone.folder / "examples")
        with contextlib.suppress(FileExistsError):
            (clone.folder / ".venv").symlink_to(BIN.parent)
        command = ["bash", "-euo", "pipefail", "-c", block.text]
        active = clone.environment | {"PATH": f"{BIN}{os.pathsep}{clone.environment['PATH']}"}
        done = finished(command, 900, cwd=clone.folder, env=active)
        assert done.returncode == 0, done.stdout + done.stderr
    if block.runs:
        return
    os.chdir(PROJECT)
    for program, words in commands(block.text):
        check(program, words)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Program and arguments of each command, without the variables set for it and the environment's folder."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set(";&|"):
                if command or not re.match(r"\w+=", word):
                    command.append(word)
            elif command:
                yield command[0].removeprefix(".venv/bin/"), command[1:]
                command = []


def check(program: str, words: list[str]) -> None:
    """Fail where a command could not be meant: its parser refuses it, or what it names is not there."""
    for word in words:
        for path in re.split("[=,]", word):
            first, _, rest = path.partition("/")
            if path.endswith(".yaml") or (rest and first not in GENERATED and (PROJECT / first).is_dir()):
                assert list(PROJECT.glob(re.sub(r"[A-Z]{2,}", "*", path))), f"there is no {path}"
    if program in ("python", "python3"):
        assert words[0] == "-m", f"python {words[0]}: only modules are checked"
        program, words = words[1], words[2:]
    if program.startswith(("analyses.", "benchmarks.")):
        benchmark(program, words)
    elif program not in OTHERS:
        PROGRAMS[program](words)


def benchmark(module: str, words: list[str]) -> None:
    """A benchmark's module is there, and its parser, where it has one, takes the arguments."""
    found = importlib.import_module(module)
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{module}.__main__")
    parser = getattr(found, "parser", argparse.ArgumentParser)()
    parser.parse_args(words)


def make(words: list[str]) -> None:
    """The targets are there, the variables are used, and the configs that this would run are there."""
    text = (PROJECT / "Makefile").read_text()
    for word in words:
        assert "=" not in word or f"\n{word.partition('=')[0]} ?=" in text, f"the Makefile has no variable {word}"
    done = subprocess.run(["make", "--dry-run", *words], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for config in re.findall(r"--configfile (\S+)", done.stdout):
        assert (PROJECT / config).exists(), f"there is no {config}"


def snakemake(words: list[str]) -> None:
    """Snakemake's parser takes the arguments, and targets are rules or files of the workflow's."""
    from snakemake.cli import parse_args, parse_config

    _, args = parse_args(words)
    assert parse_config(args.config).keys() <= config_keys()
    rules = "".join(
        path.read_text() for path in [PROJECT / "workflow/Snakefile", *PROJECT.glob("workflow/rules/*.smk")]
    )
    for target in args.targets:
        assert f"\nrule {target}:" in rules or target.startswith(GENERATED), f"there is no rule {target}"


def dvc(words: list[str]) -> None:
    """DVC's parser takes the arguments, and stages are those of `dvc.yaml`."""
    from dvc.cli import parse_args

    args = parse_args(words)
    stages = files.read_yaml(PROJECT / "dvc.yaml")["stages"]
    for target in getattr(args, "targets", None) or ():
        stage, _, config = target.partition("@")
        assert stage in stages, f"dvc.yaml has no stage {stage}"
        assert (PROJECT / "config" / f"{config}.yaml").exists(), f"there is no config/{config}.yaml"


def bayesfed(words: list[str]) -> None:
    """The command line takes the arguments."""
    cli.parser().parse_args(words)


def settings(block: Block, folder: Path, names: dict[str, Any]) -> None:
    """Describe a dataset, plan a config or check a run file: whole, or by those of its keys that the block shows."""
    mapping = yaml.safe_load(block.text)
    if not block.runs:
        return
    if mapping.keys() <= own.Description.__dataclass_fields__.keys():
        for name in ("train.npz", "test.npz"):
            copy(PROJECT / "examples/own_plugins/datasets/shapes" / name, folder / "described" / name)
        (folder / "described/dataset.yaml").write_text(block.text)
        own.describe("described", folder / "described", folder / "data")
    elif mapping.keys() <= config_keys():
        config = {"name": "shown", "papers": ["hbfl"], "seeds": [0]} | mapping
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        os.chdir(PROJECT)  # where the papers are
        assert cli.main(["plan", str(folder / "config.yaml"), "--out", str(folder / "plan")]) == 0
    else:
        compatibility.check_counts(run_file.resolve(RUN | mapping, folder / "data"))


def config_keys() -> set[str]:
    """The keys of a config."""
    return set(Config.__dataclass_fields__)


def entry_points(block: Block, folder: Path, names: dict[str, Any]) -> None:
    """Read what a package's `pyproject.toml` says of its plugins: of kinds that there are."""
    groups = tomllib.loads(block.text)["project"]["entry-points"]
    assert groups.keys() <= {f"bayesfed.{kind}" for kind in plugins.KINDS}


def nothing(block: Block, folder: Path, names: dict[str, Any]) -> None:
    """What is no code."""


RUN = {
    "dataset": "mnist", "partition": {"alpha": 1.0, "clients": 4}, "method": {"name": "fedavg"}, "models": {"global": "mlp"},
    "rounds": 100, "local_epochs": 1, "batch_size": 32, "seed": 0,
}  # fmt: skip
LANGUAGES: dict[str, Callable[[Block, Path, dict[str, Any]], None]] = {
    "python": python, "sh": shell, "yaml": settings, "toml": entry_points, "text": nothing,
}  # fmt: skip
PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "bayesfed": bayesfed,
    "dvc": dvc,
    "make": make,
    "snakemake": snakemake,
}


def test_every_target_of_the_makefile_does_something() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (PROJECT / "Makefile").read_text(), re.M)
    for target in phony.split():
        # As if nothing were set up, so that the set-up alone does something, too.
        done = subprocess.run(
            ["make", "--dry-run", "--always-make", target], cwd=PROJECT, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip(), target
        assert not done.stderr, done.stderr
