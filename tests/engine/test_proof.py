"""Recordings prove themselves: what a step takes from elsewhere than its tensors is found when it changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fake_cuda import FakeCuda
from helpers.playing import federation, play, tensors

from bayesfed.core.errors import InputError
from bayesfed.engine import checkpoint
from bayesfed.engine.executors import cuda_graphs, cuda_worker, stacked
from bayesfed.engine.executors.proof import Proofs
from bayesfed.engine.rounds import Trainer, begin

OfMine = Callable[..., Any]
# A number that no look at the method finds: an environment's, of what the engine knows nothing.
STEP = """
    def step(self, c, batch):
        super().step(c, batch)
        c["theta"].mul_(1 - 1e-3 * {number})
"""
SET = "os.environ['NUMBER'] = str({value})"
READ = "float(os.environ['NUMBER'])"
START = "\n    def start(self, c, message):\n        {line}\n        return super().start(c, message)\n"
HOOK = "\n    def phases(self, c):\n        def hook(c): {line}\n        return [replace(one, {place}=hook) for one in super().phases(c)]\n"
LOCAL = """
    def phases(self, c):
        n = [0]

        def step(c, batch):
            n[0] += 1
            FedAvg.step(self, c, batch)
            c["theta"].mul_(0.5 if n[0] > 100 else 1.0)

        return [c.local(step)]
"""


@pytest.fixture(params=["threads", "graphs", "stacked"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Those that record, or trace; graphs are played on a CPU, of one client after another."""
    monkeypatch.setenv("NUMBER", "1")
    if request.param == "graphs":
        FakeCuda().stand_in(monkeypatch)
        monkeypatch.setattr(cuda_worker, "recorder_of", cuda_worker.Recorder)
        monkeypatch.setattr(cuda_graphs, "worker_count", lambda compute: 1)
    monkeypatch.setattr(stacked, "RAGGED", 0.0)
    monkeypatch.setattr(stacked, "ROUNDING", 1e-5)  # the numbers of the tests are small
    return str(request.param)


@pytest.mark.parametrize(
    ("inside", "found"),
    [
        (STEP.format(number=READ) + START.format(line=SET.format(value="c.round")), "round 2"),
        (STEP.format(number=READ) + START.format(line=SET.format(value="int(c.round > 2)")), "round [34]"),
        (STEP.format(number=READ) + HOOK.format(line=SET.format(value="c.round + 1"), place="epoch_end"), "round [12]"),
        (STEP.format(number=READ) + START.format(line=SET.format(value="0"))
         + HOOK.format(line=SET.format(value="1"), place="epoch_end"), "round 1"),
        (STEP.format(number="(c.generator.initial_seed() % 7)"), "round 1"),
        (STEP.format(number="np.random.default_rng().normal()"), "round 1"),
        (STEP.format(number="torch.from_numpy(np.random.default_rng().normal(size=c['theta'].shape)).float()"), "round 1"),
        (STEP.format(number="(time.perf_counter() % 1)"), "round 1"),
    ],
)  # fmt: skip
def test_a_number_that_changes_is_found(inside: str, found: str, executor: str, of_mine: OfMine) -> None:
    of = of_mine("import os, time", inside, rounds=6, local_epochs=3)
    with pytest.raises(
        InputError,
        match=rf"^method 'mine': Mine.step gave another 'theta'( of row '\d')? when it was done again \({found}, client \d\); a step",
    ):
        play(of, 6, executor=executor)


@pytest.mark.parametrize("number", ["c.client", "int(c.client == 3)"])
@pytest.mark.parametrize("executor", ["threads", "graphs"], indirect=True)
def test_a_number_of_each_clients_own_is_found(number: str, executor: str, of_mine: OfMine) -> None:
    """Clients that train stacked begin together, and have the last one's."""
    inside = STEP.format(number=READ) + START.format(line=SET.format(value=number))
    with pytest.raises(
        InputError, match=r"Mine\.step gave another 'theta' when it was done again \(round 1, client \d\)"
    ):
        play(of_mine("import os", inside), 1, executor=executor)


def test_a_counter_between_the_steps_of_one_client_is_found(executor: str, of_mine: OfMine) -> None:
    """Made anew for each, so that it is gone with the round, and of no effect before the hundredth step."""
    with pytest.raises(InputError, match=r"^method 'mine': a step changed n in Mine\.phases\.<locals>\.step"):
        play(of_mine("", LOCAL), 1, executor=executor)


def test_what_the_look_finds_is_told_by_its_name(executor: str, of_mine: OfMine) -> None:
    inside = STEP.format(number="NUMBERS['round']") + START.format(line="NUMBERS['round'] = c.round")
    with pytest.raises(InputError, match=r"^method 'mine': a round changed mine\.NUMBERS\['round'\]"):
        play(of_mine("NUMBERS = {'round': 1}", inside), 3, executor=executor)


def test_a_resumed_run_looks_again(
    executor: str, of_mine: OfMine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of = of_mine(
        "import os", STEP.format(number=READ) + START.format(line=SET.format(value="max(c.round, 5)")), rounds=9
    )
    progress = play(of, 4, executor=executor)
    checkpoint.save(tmp_path / "c", progress, checkpoint.Header("key", "fp32", executor))
    again, _ = checkpoint.load(tmp_path / "c", "key", torch.device("cpu"))
    with pytest.raises(InputError, match=r"Mine\.step gave another 'theta'.* \(round 6"):
        play(of, 4, again, executor=executor)


def test_proofs_leave_no_trace(executor: str, mapping: OfMine, data_dir: Path) -> None:
    """A resumed run proves other steps and gives the same bits, also where a step and its replay differ by a rounding."""
    of = federation(mapping("pfedbayes", rounds=6), data_dir)
    straight = tensors(play(of, 3, executor=executor))
    resumed = tensors(play(of, 1, play(of, 2, executor=executor), executor=executor))
    assert [name for name, tensor in straight.items() if not torch.equal(tensor, resumed[name])] == []


@pytest.mark.parametrize("network", ["lenet5", "residual"])
@pytest.mark.usefixtures("modules")
def test_a_step_that_is_not_recorded_repeats_itself_too(network: str, of_mine: OfMine) -> None:
    models = {"global": network}
    play(of_mine("", STEP.format(number="c.noise(c['theta'])"), models=models), 2, executor="threads")


@pytest.mark.parametrize("network", ["lenet5", "residual"])
@pytest.mark.usefixtures("modules")
def test_one_that_does_not_is_refused(network: str, of_mine: OfMine) -> None:
    inside = STEP.format(number="np.random.default_rng().normal()")
    with pytest.raises(InputError, match=r"Mine\.step gave another 'theta' when it was done again \(round 1"):
        play(of_mine("", inside, models={"global": network}), 1, executor="threads")


def test_numbers_of_the_method_and_its_modules_may_be_read(executor: str, of_mine: OfMine) -> None:
    inside = STEP.format(number="(FACTOR * self.options.lr if len(c['theta']) > 3 else 2)")
    assert play(of_mine("FACTOR = 0.5", inside), 3, executor=executor).round == 3


def test_tensors_that_are_no_numbers_are_as_they_were(executor: str, of_mine: OfMine) -> None:
    """A run that diverges says so."""
    progress = play(of_mine("", STEP.format(number="torch.inf * c['theta']")), 1, executor=executor)
    assert progress.diverged


def test_few_replays_are_proved(of_mine: OfMine, monkeypatch: pytest.MonkeyPatch) -> None:
    proved, replayed = [0], [0]
    prove, due = Proofs.prove, Proofs.due

    def counted(self: Proofs, *given: Any) -> bool:
        replayed[0] += 1
        return due(self, *given)

    def noted(self: Proofs, *given: Any) -> None:
        proved[0] += 1
        prove(self, *given)

    monkeypatch.setattr(Proofs, "due", counted)
    monkeypatch.setattr(Proofs, "prove", noted)
    of = of_mine(rounds=100, batch_size=4, local_epochs=2)
    trainer, progress = Trainer(of, "threads"), begin(of)
    for _ in range(24):
        progress = trainer.play(progress)
    assert proved[0] < 0.015 * replayed[0]
