"""What a user's method keeps outside its named tensors is found, wherever it is; what only looks like it is left alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.playing import federation, play

from bayesfed.core import plugins, reachable
from bayesfed.core.errors import InputError
from bayesfed.engine import outside
from bayesfed.engine.rounds import Progress
from bayesfed.methods.fedavg import FedAvg

Make = Callable[..., dict[str, Any]]
# In `start`, which every client passes in every round.
START = """
    def start(self, c, message):
        {line}
        return super().start(c, message)
"""


def played(of: Any, rounds: int = 2, executor: str = "threads") -> Progress:
    return play(of, rounds, executor=executor)


@pytest.mark.parametrize(
    ("before", "line", "path"),
    [
        ("SEEN = []", "SEEN.append(c.client)", "mine.SEEN"),
        ("SEEN = {}", "SEEN.setdefault('v', []).append(1)", "mine.SEEN"),
        ("SEEN = {'v': {'n': 0}}", "SEEN['v']['n'] += 1", r"mine.SEEN\['v'\]\['n'\]"),
        ("SEEN = 0", "globals()['SEEN'] += 1", "mine.SEEN"),
        ("", "globals()['NEW'] = c.round", "mine.NEW"),
        ("", "type(self).count = c.round", "Mine.count"),
        ("", "FedAvg.count = c.round", "FedAvg.count"),
        ("", "self.count = c.round", "self.count"),
        ("", "object.__setattr__(self.options, 'count', c.round)", "self.options.count"),
        ("def helper(): pass", "helper.count = getattr(helper, 'count', 0) + 1", "helper.count"),
        ("SEEN = np.zeros(3)", "SEEN[1] += 1", "mine.SEEN"),
        ("SEEN = np.array([[], {}], object)", "SEEN[0].append(1)", "mine.SEEN"),
        ("SEEN = torch.zeros(3)", "SEEN.data[0] += 1", "mine.SEEN"),
        ("SEEN = torch.zeros(3, requires_grad=True)", "SEEN.sum().backward()", "mine.SEEN.grad"),
        ("SEEN = collections.deque([0], 1)", "SEEN.append(c.round)", "mine.SEEN"),
        ("SEEN = collections.Counter()", "SEEN[c.client] += 1", "mine.SEEN"),
        ("SEEN = set()", "SEEN.add(c.client)", "mine.SEEN"),
        ("SEEN = types.SimpleNamespace(n=0)", "SEEN.n += 1", "mine.SEEN.n"),
        ("SEEN = itertools.count()", "next(SEEN)", "mine.SEEN"),
        ("SEEN = (n for n in range(10**6))", "next(SEEN)", "mine.SEEN"),
        ("SEEN = iter(range(10**6))", "next(SEEN)", "mine.SEEN"),
        ("SEEN = bytearray(1)", "SEEN[0] += 1", "mine.SEEN"),
        ("SEEN = contextvars.ContextVar('seen')", "SEEN.set(c.round)", "mine.SEEN"),
        ("SEEN = threading.local()", "SEEN.round = c.round", "mine.SEEN.round"),
        ("SEEN = []\nadd = functools.partial(SEEN.append, 1)\ndel SEEN", "add()", "mine.add"),
        ("DRAWS = np.random.default_rng()", "DRAWS.normal()", "mine.DRAWS"),
        ("DRAWS = np.random.RandomState(1)", "DRAWS.normal()", "mine.DRAWS"),
        ("DRAWS = random.Random(1)", "DRAWS.random()", "mine.DRAWS"),
        ("DRAWS = torch.Generator().manual_seed(1)", "torch.rand(1, generator=DRAWS)", "mine.DRAWS"),
        ("@functools.cache\ndef kept(): return {'n': 0}", "kept()['n'] += 1", "a value that mine.kept holds"),
        ("@functools.lru_cache(2)\ndef kept(a): return {}", "kept(1).setdefault('n', []).append(1)", "a value that mine.kept"),
        ("class Own:\n    __slots__ = ('n',)\nOWN = Own()\nOWN.n = 0", "OWN.n += 1", "mine.OWN.n"),
        ("class Own:\n    n = 0\n    def add(self): Own.n += 1\nOWN = Own()", "OWN.add()", "Own.n"),
        ("class Own(dict): pass\nOWN = Own()", "OWN[1] = c.round", "mine.OWN"),
        ("net = torch.nn.Linear(1, 1)\nadam = torch.optim.Adam(net.parameters())",
         "net(torch.ones(1, 1)).sum().backward(); adam.step()", "mine.(net|adam)"),
        ("", "from . import helper; helper.SEEN.append(1)", "helper.SEEN"),
        ("from .helper import add", "add()", "helper.SEEN"),
        ("from . import helper", "helper.OTHER = c.round", "helper.OTHER"),
    ],
)  # fmt: skip
def test_state_is_found_wherever_it_is(
    before: str, line: str, path: str, of_mine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "count", 0, raising=False)
    of = of_mine(before, START.format(line=line), "SEEN = []\ndef add(): SEEN.append(1)")
    with pytest.raises(
        InputError, match=rf"^method 'mine': a round changed {path}.*, which no checkpoint keeps, .*start"
    ):
        played(of, 3)


@pytest.mark.parametrize(
    ("inside", "path"),
    [
        ("    def aggregate(self, server, updates, seen=[]):\n        seen.append(1)\n        return super().aggregate(server, updates)",
         "seen in Mine.aggregate"),
        ("    def finish(self, c, *, seen={}):\n        seen[c.client] = c.round\n        return super().finish(c)", "seen in Mine.finish"),
        ("    aggregate = counted(FedAvg.aggregate)", "n in counted.<locals>.wrapper"),
        ("    def message(self, server, client):\n        SEEN.append(1)\n        return super().message(server, client)", "mine.SEEN"),
        ("    def server_phases(self, server):\n        SEEN.append(1)\n        return []", "mine.SEEN"),
        ("    def server_predictors(self, server):\n        (one,) = super().server_predictors(server)\n"
         "        return [Predictor('global', lambda x: SEEN.append(1) or one.log_probabilities(x))]", "mine.SEEN"),
        ("    def phases(self, c):\n        return [replace(one, epoch_end=lambda c: SEEN.append(1)) for one in super().phases(c)]",
         "mine.SEEN"),
        ("    def phases(self, c):\n        return [replace(one, end=lambda c: SEEN.append(1)) for one in super().phases(c)]",
         "mine.SEEN"),
        ("    @property\n    def of_round(self):\n        SEEN.append(1)\n    def init_client(self, c):\n        self.of_round\n        return {}",
         "mine.SEEN"),
        ("    def aggregate(self, server, updates):\n        if server.round == 3: SEEN.append(1)\n        return super().aggregate(server, updates)",
         "mine.SEEN"),
        ("    @torch.no_grad()\n    def finish(self, c):\n        SEEN.append(1)\n        return super().finish(c)", "mine.SEEN"),
        # Only there within a round: set when a client begins, and gone when it ends.
        ("    def start(self, c, message):\n        self.now = c.client\n        return super().start(c, message)\n"
         "    def finish(self, c):\n        vars(self).pop('now', None)\n        return super().finish(c)", "self.now"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("executor", ["eager", "threads", "graphs"])
def test_whichever_part_keeps_it(inside: str, path: str, executor: str, of_mine: Callable[..., Any]) -> None:
    before = (
        "SEEN = []\ndef counted(f):\n    n = 0\n    def wrapper(*args):\n        nonlocal n\n        n += 1\n"
        "        return f(*args)\n    return wrapper"
    )
    with pytest.raises(InputError, match=f"^method 'mine': a round changed {path}"):
        played(of_mine(before, inside), 3, executor)


def test_what_is_kept_before_the_first_round_is_refused(of_mine: Callable[..., Any]) -> None:
    """A run that is resumed does not pass there."""
    of = of_mine(
        "SEEN = []",
        "    def init_server(self, server):\n        SEEN.append(1)\n        return super().init_server(server)",
    )
    with pytest.raises(InputError, match=r"method 'mine': init_server changed mine\.SEEN"):
        played(of, 1)


def test_a_module_beside_the_folder_of_parts(
    of_mine: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_parts.py").write_text("SEEN = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = "import beside_the_parts; beside_the_parts.SEEN.append(1)"
    with pytest.raises(InputError, match=r"a round changed beside_the_parts\.SEEN"):
        played(of_mine("", START.format(line=line)), 2)
    del sys.modules["beside_the_parts"]


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("TABLE = {'rate': [0.1, 0.2], 'mask': torch.ones(3), 'names': ('a', {'b'}), 'nan': float('nan')}", "TABLE['rate'][0]"),
        ("@functools.cache\ndef eye(n): return torch.eye(n)", "eye(c.round)"),
        ("@functools.lru_cache(1)\ndef eye(n): return [torch.eye(n)]", "eye(c.round); eye(c.round + 1)"),
        ("log = logging.getLogger('mine')", "log.debug('a round')"),
        ("", "import colorsys; colorsys.rgb_to_hsv(1, 1, 1)"),
        ("", "from . import helper; helper.add()"),
        ("@torch.compile(backend='eager')\ndef twice(x): return 2 * x", "twice(torch.ones(2))"),
        ("net = torch.compile(torch.nn.Linear(2, 2), backend='eager')", "net(torch.ones(1, 2))"),
        ("LOCK = threading.Lock()", "LOCK.acquire(); LOCK.release()"),
        ("DRAWS = np.random.default_rng(3)", "np.random.default_rng(c.round).normal()"),
        ("class Own:\n    def __init__(self, n): self.n = n\n    def __reduce__(self): raise TypeError", "Own(c.round).n += 1"),
    ],
)  # fmt: skip
def test_what_is_no_state_is_left_alone(before: str, line: str, of_mine: Callable[..., Any]) -> None:
    assert played(of_mine(before, START.format(line=line), "def add(): pass"), 3).round == 3


DRAW = "torch.from_numpy(np.random.default_rng().normal(size=c['theta'].shape)).float()"
START_ANEW = "    def start(self, c, message):\n        c['theta'] = message['theta']\n        return {{'theta': c['theta'] + {draw}}}"


@pytest.mark.parametrize(
    ("part", "inside"),
    [
        ("init_server", "    def init_server(c, server):\n        return {'theta': server.initial() + torch.from_numpy("
         "np.random.default_rng().normal(size=len(server.initial())))}"),
        ("start", "    def start(self, c, message):\n        found = super().start(c, message)\n        c = found\n"
         f"        return found | {{'theta': found['theta'] + {DRAW}}}"),
        ("finish", f"    def finish(self, c):\n        return {{'theta': c['theta'] + {DRAW}}}"),
        ("finish", f"    def finish(self, c):\n        c['theta'].add_({DRAW})\n        return {{'theta': torch.zeros(1)}}"),
        ("aggregate", "    def aggregate(self, c, updates):\n        super().aggregate(c, updates)\n"
         f"        c['theta'] = c['theta'] + {DRAW}\n        return {{}}"),
    ],
)  # fmt: skip
def test_a_generator_of_the_systems_randomness_is_found(part: str, inside: str, of_mine: Callable[..., Any]) -> None:
    """It is made where it is used, and leaves no trace."""
    with pytest.raises(
        InputError, match=f"method 'mine': {part} was called again from the same state and gave another 'theta'"
    ):
        played(of_mine("", inside), 1)


@pytest.mark.parametrize(
    ("part", "inside"),
    [
        ("aggregate", "    def aggregate(self, c, updates):\n        super().aggregate(c, updates)\n        c['v'] = 0.5\n        return {}"),
        ("finish", "    def finish(self, c):\n        c['v'] = 0.5\n        return {'theta': c['theta']}"),
    ],
)  # fmt: skip
def test_what_is_no_tensor_is_told_in_the_first_round(part: str, inside: str, of_mine: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=f"method 'mine': {part} gave 'v' as a float; expected a tensor"):
        played(of_mine("", inside), 1)


def test_parts_that_draw_from_their_node_repeat_themselves(of_mine: Callable[..., Any]) -> None:
    inside = """
    def init_server(self, server):
        theta = server.initial()
        return {"theta": theta + server.noise(theta), "drift": torch.zeros_like(theta)}

    def init_client(self, c):
        return {"own": c.noise(c.initial())}

    def start(self, c, message):
        c["own"].add_(c.noise(c["own"]))
        return super().start(c, message)

    def finish(self, c):
        c["own"].mul_(2)
        return {"theta": c["theta"] + 1e-3 * c.noise(c["theta"])}

    def aggregate(self, server, updates):
        server["drift"].add_(updates[0].values["theta"].mul_(0.5))
        super().aggregate(server, updates)
        server["theta"] = server["theta"] + 1e-3 * server.noise(server["theta"])
        return {}
"""
    assert played(of_mine("", inside), 2).round == 2


@pytest.mark.parametrize("executor", ["threads", "graphs"])
@pytest.mark.parametrize("line", ["self.passes += 1", "self.seen.append(len(x))", "self.scale.mul_(0.99)"])
def test_a_network_keeps_nothing_either(
    line: str, executor: str, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    """But for buffers that training changes: they are found when it is built, by their change in one pass."""
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "counting.py").write_text(f"""
import torch
from torch import nn

class Counting(nn.Module):
    def __init__(self, classes, channels, size):
        super().__init__()
        self.layer = nn.Linear(channels * size**2, classes)
        self.norm = nn.BatchNorm1d(classes)
        self.passes, self.seen = 0, []
        self.scale = torch.ones(1)

    def forward(self, x):
        {line}
        return self.norm(self.layer(x.flatten(1)))

NETWORKS = {{"counting": Counting}}
""")
    plugins.use(tmp_path)
    try:
        of = federation(mapping(models={"global": "counting"}, plugins=str(tmp_path)), data_dir, torch.float32)
        with pytest.raises(InputError, match=f"^model 'counting': a pass changed {line[:9]}.*; make it a buffer"):
            play(of, 2, executor=executor)
    finally:
        plugins.use(None)


def test_other_threads_may_draw_beside_a_built_in_method(
    mapping: Make, data_dir: Path, of_mine: Callable[..., Any]
) -> None:
    """As one that logs to a server and waits a random time. Of a user's own method nobody knows who has drawn."""
    with outside.Watch(federation(mapping("fedavg"), data_dir)).watching("a round"):
        random.random()
    watch = outside.Watch(of_mine())
    with (
        pytest.raises(InputError, match=r"drew from Python's own generator.* or another thread"),
        watch.watching("a round"),
    ):
        random.random()


def test_what_changes_between_rounds_is_no_fault_of_a_round(of_mine: Callable[..., Any]) -> None:
    """A function that is called after every round may know a list that the method knows, too."""
    of = of_mine("SEEN = []", "    def seen(self):\n        return SEEN")
    watch = outside.Watch(of)
    for _ in range(2):
        with watch.watching("a round"):
            pass
        of.method.seen().append(1)


def test_shared_generators_are_those_of_the_process() -> None:
    before = outside.shared_generators()
    assert outside.shared_generators() == before
    np.random.rand()
    torch.rand(1)
    after = outside.shared_generators()
    assert [owner for owner in before if before[owner] != after[owner]] == ["numpy", "torch"]


def test_a_look_costs_little() -> None:
    """Of our own methods attributes and classes are looked at, and no function is entered."""
    from bayesfed import methods

    for name in sorted(methods.ours()):
        found = reachable.held({"self": methods.get(name)(methods.get(name).Options())})
        assert len(found.contents) < 250
        assert found.changed(reachable.held({"self": methods.get(name)(methods.get(name).Options())})) is None
