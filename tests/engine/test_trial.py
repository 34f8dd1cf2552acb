"""What a run tells of steps that do nothing, and of tensors in a wrong shape."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.playing import federation, play

from bayesfed import cli, methods
from bayesfed.core.errors import InputError
from bayesfed.engine.rounds import Trainer, begin

Make = Callable[..., dict[str, Any]]
OfMine = Callable[..., Any]
# An optimiser of torch moves what has a gradient, and a tensor of the state has none.
TORCH_SGD = """
    def step(self, c, batch):
        theta = c["theta"].clone().requires_grad_()
        batch.mean(torch.nn.functional.cross_entropy(c.model(theta, batch.x), batch.y, reduction="none")).backward()
        torch.optim.SGD([c["theta"]], 0.1).step()
"""
OF_TWO = """
    def start(self, c, message):
        return super().start(c, message) | {"other": torch.zeros(3)}

    def idle(self, c, batch):
        c["other"].mul_(2)

    def phases(self, c):
        return [c.local(self.step), Phase(self.idle, batches=3, counted=False, end=lambda c: c["other"].add_(1))]
"""
OF_SERVER = """
    def server_images(self):
        return 50

    def idle(self, c, batch):
        pass

    def server_phases(self, server):
        return [Phase(self.idle, epochs=1)]
"""


def told(of: Any, rounds: int = 2, executor: str = "threads") -> list[str]:
    """What the log is told in so many rounds."""
    lines: list[str] = []
    trainer, progress = Trainer(of, executor, tell=lines.append), begin(of)
    for _ in range(rounds):
        progress = trainer.play(progress)
    return lines


@pytest.mark.parametrize(
    ("inside", "step", "whose"),
    [(TORCH_SGD, "Mine.step", r"client \d"), (OF_TWO, "Mine.idle", r"client \d"), (OF_SERVER, "Mine.idle", "the server")],
    ids=["SGD of torch", "one of two", "the server's"],
)  # fmt: skip
@pytest.mark.parametrize("executor", ["eager", "threads", "graphs"])
def test_a_step_that_changes_nothing_is_told_once(
    inside: str, step: str, whose: str, executor: str, of_mine: OfMine
) -> None:
    (line,) = told(of_mine("from bayesfed.methods.base import Phase", inside), executor=executor)
    assert re.match(
        f"method 'mine': {step} left every tensor of {whose} as it was in all of round 1; a step works", line
    )


def test_a_server_that_does_not_change_is_told_once(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods.get("fedavg"), "aggregate", lambda self, server, updates: {})
    (line,) = told(federation(mapping("fedavg"), data_dir, torch.float32))
    assert line.startswith("method 'fedavg': aggregate left every tensor of the server as it was in round 1, whatever")


@pytest.mark.usefixtures("modules")
def test_statistics_of_normalisation_are_no_ones_step(of_mine: OfMine) -> None:
    """They change with every pass in training."""
    assert len(told(of_mine("", TORCH_SGD, models={"global": "normalised"}, schedule={"epoch_decay": 0.5}))) == 1


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("name", [*sorted(methods.ours()), "toy", "toy_phases", "toy_message", "toy_server"])
def test_nothing_is_told_of_steps_that_train(name: str, mapping: Make, data_dir: Path) -> None:
    assert told(federation(mapping(name), data_dir, torch.float32), 1, "eager") == []


def test_the_log_has_it(mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods.get("fedavg"), "step", lambda self, c, batch: None)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(mapping(rounds=3)))
    assert cli.main(["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out"), "--data", str(data_dir)]) == 0
    assert (tmp_path / "out" / "run.log").read_text().count("left every tensor of client") == 1


SHORT = "c['theta'][:10]"


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("    def message(self, server, client):\n        return {'theta': server['theta'][client:]}",
         r"client [1-3]'s 'theta' has the shape \(256\d,\); expected \(2570,\), as model 'softmax' has"),
        ("    def start(self, c, message):\n        return {'theta': message['theta'].clone()[None]}",
         r"client \d's 'theta' has the shape \(1, 2570\); expected \(2570,\)"),
        (f"    def finish(self, c):\n        return {{'theta': {SHORT} if c.client == 2 else c['theta']}}",
         r"client 2's finish gave 'theta' of the shape \(10,\); expected \(2570,\), and aggregate failed: RuntimeError"),
        ("    def finish(self, c):\n        return {'change': torch.zeros(c.client // 3 + 2)}\n"
         "    def aggregate(self, server, updates):\n        server['mean'] = sum(one['change'] for one in updates)\n        return {}",
         r"client 3's finish gave 'change' of the shape \(3,\); expected \(2,\), and aggregate failed: RuntimeError"),
        ("    def aggregate(self, server, updates):\n        server['theta'] = torch.stack([one['theta'] for one in updates])\n        return {}",
         r"the server's 'theta' has the shape \(4, 2570\); expected \(2570,\)"),
        ("    def server_predictors(self, server):\n        return [softmax_of('global', server.model, server['theta'][:10] * 2)]",
         r"the server has parameters of the shape \(10,\); expected \(2570,\)"),
    ],
)  # fmt: skip
def test_a_wrong_shape_is_told_with_its_owner(inside: str, message: str, of_mine: OfMine) -> None:
    with pytest.raises(InputError, match=f"^method 'mine': {message}"):
        play(of_mine("from bayesfed.methods.base import softmax_of", inside), 1, executor="threads")


def test_what_else_an_aggregation_raises_stays_as_it_is(of_mine: OfMine) -> None:
    inside = "    def aggregate(self, server, updates):\n        raise ValueError('of its own')"
    with pytest.raises(ValueError, match="of its own"):
        play(of_mine("", inside), 1)
