"""The package's shape: few entries at its top, imports that go down only, modules of a length that can be read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import bayesfed

PACKAGE = Path(bayesfed.__file__).parent
LAYERS = (
    "core", "bayes", "metrics", "models", "data", "methods", "runs", "engine", "papers", "results", "plan", "report", "cli",
    "__main__",
)  # fmt: skip
MOST_ENTRIES, MOST_LINES = 16, 350
REASON = re.compile(r"^Longer than 350 lines: \w.{10,}", re.MULTILINE)


def entries(package: Path) -> set[str]:
    """Everything at the top of a package that git keeps."""
    return {path.name for path in package.iterdir() if path.name != "__pycache__"}


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bayesfed":
            yield from (
                [node.module or ""] if node.module != "bayesfed" else [f"bayesfed.{one.name}" for one in node.names]
            )
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("bayesfed."))


def imports_up(package: Path) -> list[tuple[str, str]]:
    """Files below the top of a package, with what they import from a layer above their own."""
    return [
        (path.relative_to(package).as_posix(), module)
        for path in sorted(package.rglob("*.py"))
        if path != package / "__init__.py"
        for module in imported(path)
        if (to := module.split(".")[1]) in LAYERS
        and LAYERS.index(to) > LAYERS.index(path.relative_to(package).parts[0].removesuffix(".py"))
    ]


def too_long(path: Path) -> bool:
    """Whether a module is longer than it may be, and its docstring does not say why."""
    text = path.read_text(encoding="utf-8")
    return text.count("\n") > MOST_LINES and not REASON.search(ast.get_docstring(ast.parse(text)) or "")


def test_few_entries_at_the_top() -> None:
    assert len(entries(PACKAGE)) <= MOST_ENTRIES


def test_imports_go_down() -> None:
    layers = {Path(name).stem for name in entries(PACKAGE)} - {"__init__", "_version", "py"}
    assert layers <= set(LAYERS)
    assert not imports_up(PACKAGE)


def test_modules_are_short_or_say_why_not() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if too_long(path)}
    assert not found


def test_what_breaks_these_rules_is_found(tmp_path: Path) -> None:
    package = tmp_path / "bayesfed"
    (package / "core").mkdir(parents=True)
    (package / "engine").mkdir()
    (package / "core" / "up.py").write_text("def late():\n    from bayesfed.engine import rounds\n")
    (package / "core" / "plainly_up.py").write_text("import bayesfed.engine.rounds\n")
    (package / "engine" / "down.py").write_text("from bayesfed.core import up\n")
    assert imports_up(package) == [
        ("core/plainly_up.py", "bayesfed.engine.rounds"), ("core/up.py", "bayesfed.engine"),
    ]  # fmt: skip
    module = package / "core" / "long.py"
    for text, wrong in (
        ("x = 1\n" * 350, False),
        ("x = 1\n" * 351, True),
        ('"""Long."""\n' + "x = 1\n" * 351, True),
        ('"""Long.\n\nLonger than 350 lines:\n"""\n' + "x = 1\n" * 351, True),
        ('"""Long.\n\nLonger than 350 lines: the passes share a layout.\n"""\n' + "x = 1\n" * 351, False),
    ):
        module.write_text(text)
        assert too_long(module) is wrong
