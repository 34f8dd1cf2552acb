"""Whatever is given as run file, config, paper or command line, or stands in a cache: an answer or one line, and soon.

`make test-long` tries many times as much (`--hypothesis-profile=long`).
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bayesfed import cli
from bayesfed.core.errors import InputError
from bayesfed.data.records import read_npz
from bayesfed.engine import checkpoint
from bayesfed.plan import plan
from bayesfed.runs import run_file

ROOT = Path(__file__).parents[2]
RUN = {
    "dataset": "digits",
    "partition": {"scheme": "dirichlet_class_shared", "alpha": 1.0, "clients": 4, "min_train": 2, "min_test": 1},
    "method": {"name": "hbfl", "temperature": 1.0e-4, "sigma": "reset", "lr": 0.001},
    "models": {"global": "cnn2", "local": ["mlp", "mlp", "lenet5", "cnn1"]},
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 32,
    "seed": 0,
    "stragglers": 0.5,
    "participation": 1.0,
    "images": {"prepare": "default", "normalise": "dataset", "augment": "dataset"},
    "schedule": {"round_decay": 0.9, "milestones": [[0.5, 0.1]]},
    "tasks": {"mistakes": True},
}
CONFIG = yaml.safe_load((ROOT / "config/test.yaml").read_text())
PAPER = yaml.safe_load((ROOT / "examples/own_plugins/papers/shapes.yaml").read_text())
PAPER["methods"]["FedDyn"] = {"name": "fedprox", "mu": 0.1}
PAPER["experiments"]["shapes"]["axes"] |= {"dataset": ["digits"], "models.global": ["mlp"]}

ODD: list[Any] = [
    10**9, 10**18, 2**63, -1, 0, 1e308, float("nan"), float("inf"), "", "nan", "../x", "/etc/passwd", "a b", "$(touch x)", "'", '"',
    "\n", "\0", "=1+1", "<script>", "x" * 300, "é", "{x}", "%s", [[]], {"": None}, {"name": []},
]  # fmt: skip
values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.sampled_from(ODD), st.text(max_size=4),
    st.lists(st.one_of(st.integers(-2, 2), st.sampled_from(ODD)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-2, 2), max_size=2),
)  # fmt: skip


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a tree of mappings and lists."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one to three things replaced, taken out or put in."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(tree))
        *above, last = draw(st.sampled_from(found))
        holder = tree
        for key in above:
            holder = holder[key]
        what = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if what == "remove":
            del holder[last]
        elif what == "add" and isinstance(holder, dict):
            holder[draw(st.one_of(st.text(max_size=3), st.sampled_from(["axes", "clients", "where", "method.lr"])))] = (
                draw(values)
            )
        else:
            holder[last] = draw(values)
        if not list(places(tree)):
            break
    return tree


def one_line(refused: InputError) -> None:
    text = str(refused)
    assert text.strip(), "an error that says nothing"
    assert "\n" not in text


@given(changed(RUN))
def test_run_files(mapping: Any) -> None:
    try:
        run = run_file.resolve(mapping)
    except InputError as refused:
        one_line(refused)
    else:
        again = run_file.resolve(yaml.safe_load(yaml.safe_dump(run.to_dict())))
        assert again.key == run.key


@given(changed(CONFIG))
def test_configs(config: Any) -> None:
    with contextlib.chdir(ROOT):
        try:
            plan.make(config)
        except InputError as refused:
            one_line(refused)


@given(changed(PAPER))
def test_papers(tmp_path_factory: pytest.TempPathFactory, paper: Any) -> None:
    folder = tmp_path_factory.mktemp("own")
    (folder / "papers").mkdir()
    (folder / "papers/odd.yaml").write_text(yaml.safe_dump(paper))
    with contextlib.chdir(ROOT):
        try:
            plan.make({"name": "odd", "title": "Odd", "papers": ["odd"], "plugins": str(folder), "seeds": [0]})
        except InputError as refused:
            one_line(refused)


@given(st.text(max_size=40))
def test_texts_that_are_no_run_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("text") / "run.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(InputError) as refused:
        run_file.load(path)
    one_line(refused.value)


WORDS = [
    "train", "plan", "partition", "fetch", "verify", "tables", "published", "figures", "--out", "--data", "--runs", "--checkpoint",
    "--rounds", "--device", "--precision", "--gpu-slots", "--mirror", "cpu", "digits", "nothing.yaml", "0", "-1", "", ".", "/dev/null",
    "--help", "a b", "$(touch x)", "\n", "é",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=5))
def test_command_lines(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    folder = tmp_path_factory.mktemp("empty")
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stderr(io.StringIO()) as told,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            code: Any = cli.main(words)
        except SystemExit as stop:
            code = stop.code
    assert code in (0, 1, 2) or isinstance(code, str), told.getvalue()
    assert not [path for path in folder.rglob("*") if path.name.startswith(".") and path.suffix], "a half-written file"


@given(st.binary(max_size=200), st.booleans())
def test_bytes_of_caches(tmp_path_factory: pytest.TempPathFactory, content: bytes, header: bool) -> None:
    path = tmp_path_factory.mktemp("bytes") / "cache"
    sealed = b"\x78" + bytes(7) + b'{"__metadata__":{"digest":"' + b"0" * 64 + b'"}}'
    path.write_bytes(sealed + content if header else content)
    with pytest.raises(InputError, match="this checkpoint is damaged"):
        checkpoint.load(path, "key", torch.device("cpu"))
    with pytest.raises(ValueError, match="not as it was written"):
        read_npz(path)
