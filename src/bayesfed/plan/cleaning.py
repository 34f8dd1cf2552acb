"""Removal of what a results folder can do without: checkpoints and logs of finished runs, and a plan that would be made
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from bayesfed.core import files
from bayesfed.core.errors import InputError, nearest
from bayesfed.plan import plan as planning
from bayesfed.runs import planned
from bayesfed.runs.run_folder import CLIENTS, SUMMARY

RESULTS = Path("results")
CHECKPOINT = ".safetensors"


def folders(names: list[str]) -> list[Path]:
    """Return the results folders of configs, by default all of them; raise InputError for a name without one."""
    known = sorted(path.name for path in RESULTS.glob("*") if path.is_dir())
    for name in names:
        if name not in known:
            right = nearest(name, known) if known else "run this in the project's folder"
            raise InputError(f"{name}: {RESULTS} has no folder of that name; {right}")
    return [RESULTS / name for name in names or known]


def found(folder: Path) -> Mapping[str, list[Path]]:
    """Return the files of a results folder that may go, by what they are; kinds without a file are left out."""
    shared = (folder / "checkpoints.dvc").exists()  # DVC would take their absence to everybody
    kinds = {
        "checkpoints of finished runs": [] if shared else [*checkpoints(folder)],
        "client states of finished runs": [] if shared else [*client_states(folder)],
        "logs of finished runs": [*logs(folder)],
        "files of an old plan": old_plan(folder / "plan"),
    }
    return {kind: paths for kind, paths in kinds.items() if paths}


def checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the checkpoints of finished runs: in the tree of checkpoints, and in run folders."""
    yield from of_finished(folder, "checkpoints", CHECKPOINT)
    for path in sorted((folder / "runs").rglob(f"*{CHECKPOINT}")):
        if path.with_name(SUMMARY).exists():
            yield path


def client_states(folder: Path) -> Iterator[Path]:
    """Yield the files with client states beside those checkpoints."""
    for path in checkpoints(folder):
        yield from sorted(path.with_suffix(CLIENTS).glob("*"))


def logs(folder: Path) -> Iterator[Path]:
    """Yield the logs of finished runs, except those of jobs with an open run: they may say why it failed."""
    plan = folder / "plan" / "plan.json"
    try:
        runs = planned.read(plan) if plan.exists() else []
    except InputError:  # of another version
        runs = []
    needed = {log for run in runs if not run.finished for log in run.shared}
    yield from (path for path in of_finished(folder, "logs/train", ".log") if path not in needed)


def delete(paths: list[Path]) -> None:
    """Delete files, and the folders of client states that are empty then."""
    for path in paths:
        path.unlink()
    for parent in {path.parent for path in paths if path.parent.suffix == CLIENTS}:
        parent.rmdir()


def of_finished(folder: Path, tree: str, end: str) -> Iterator[Path]:
    """Yield the files of a tree that are named after finished runs."""
    for path in sorted((folder / tree).rglob(f"*{end}")):
        run = path.relative_to(folder / tree)
        if (folder / "runs" / run.with_name(run.name.removesuffix(end)) / SUMMARY).exists():
            yield path


def old_plan(folder: Path) -> list[Path]:
    """Return the files of a plan that the workflow would make again, since config, papers or code have changed; none while
    any of its runs is being trained, since trainers of a plan read each run file when its turn comes.
    """
    config = folder / "config.yaml"
    if not config.exists() or planning.current(files.read_yaml(config), folder):
        return []
    if any(map(files.is_locked, (folder.parent / "runs").rglob(".lock"))):
        return []
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size(paths: list[Path]) -> int:
    """Return the bytes of files."""
    return sum(path.stat().st_size for path in paths)


def in_words(count: int) -> str:
    """Return a number of bytes as a person reads it: `1.2 GB`."""
    for unit, one in (("GB", 10**9), ("MB", 10**6)):
        if count >= one:
            return f"{count / one:.1f} {unit}"
    return f"{count / 1000:.0f} kB"
