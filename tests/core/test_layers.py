"""Imports between the folders of the package go down only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import bayesfed

PACKAGE = Path(bayesfed.__file__).parent
LAYERS = (
    "core", "bayes", "metrics", "models", "data", "methods", "runs", "engine", "papers", "results", "plan", "report", "cli",
    "__main__",
)  # fmt: skip


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bayesfed":
            yield from (
                [node.module or ""] if node.module != "bayesfed" else [f"bayesfed.{one.name}" for one in node.names]
            )


def test_imports_go_down() -> None:
    entries = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert entries - {"__init__"} == set(LAYERS)
    up = [
        (path.relative_to(PACKAGE).as_posix(), module)
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE or path.stem != "__init__"
        for module in imported(path)
        if (to := module.split(".")[1]) in LAYERS
        and LAYERS.index(to) > LAYERS.index(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
    ]
    assert not up
