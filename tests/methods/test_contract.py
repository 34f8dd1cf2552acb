"""Every method, the toys of the tests included, passes the contract: it runs, resumes exactly, and stays as it was."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import convolutions, federation, play, tensors

from bayesfed import methods
from bayesfed.bayes.gaussian import softplus
from bayesfed.engine import checkpoint, outside
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Progress, begin
from bayesfed.methods.method import Update
from bayesfed.methods.node import RATE, Node, Phase, State
from bayesfed.methods.predictors import softmax_of
from bayesfed.metrics.classification import accuracy
from bayesfed.runs.revision import ENGINE_REVISION

REAL = sorted(methods.ours())
TOYS = ["toy", "toy_phases", "toy_message", "toy_server"]
OPTIONS = [  # with state, messages or steps of their own
    {"name": "fola", "squares": "images"},
    {"name": "fedcurv", "squares": "images"},
    {"name": "fola_errors", "precision": "optimum", "aggregated": 1, "epochs": 2},
]
GOLDEN = Path(__file__).parent / "golden.json"
Make = Callable[..., dict[str, Any]]
DEFAULTS: dict[str, list[dict[str, torch.Tensor]]] = {}  # results of the default options after each round, trained once


def figures(progress: Progress) -> dict[str, list[float]]:
    """A few numbers of every tensor that no change of a method can leave alone, and every metric."""
    found = {
        name: [float(t.sum()), float(t.square().sum()), *t.flatten()[:2].tolist()]
        for name, t in tensors(progress).items()
    }
    # The server's model on a client's shard is a part of its accuracy on the full set, which is here.
    found |= {
        f"{r.round}/{r.client}/{r.model}/{r.metric}": [r.value]
        for r in progress.history
        if r.metric.endswith("accuracy") and (r.model, r.client == "global") != ("global", False)
    }
    return found


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold every method to what users' own are: it draws from no generator of the process, and gives the same twice."""
    monkeypatch.setattr(outside, "users_own", lambda method: True)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("name", [*REAL, *TOYS, *OPTIONS], ids=str)
def test_runs_and_resumes_exactly(name: str | dict[str, Any], mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    of = federation(mapping(name), data_dir, torch.float32)
    whole = play(of, 2)
    assert all(torch.isfinite(t).all() for t in tensors(whole).values())
    assert {row.round for row in whole.history} == {1, 2}
    logged = {row.metric for row in whole.history if row.model == "server"}
    unsaid = {one for one in logged if not {one, one.split()[0]} & of.method.logs.keys()}
    assert name in TOYS or not unsaid, "what the server logs is to stand in `logs`, in words"

    first = play(of, 1)
    checkpoint.save(tmp_path / "c", first, checkpoint.Header("key", "fp32", "eager"))
    again, _ = checkpoint.load(tmp_path / "c", "key", torch.device("cpu"))
    resumed = play(federation(mapping(name), data_dir, torch.float32), 1, again)
    assert resumed.history == whole.history
    assert tensors(resumed).keys() == tensors(whole).keys()
    assert all(torch.equal(t, tensors(whole)[key]) for key, t in tensors(resumed).items())


class Noted(dict[str, torch.Tensor]):
    """A message that notes which of its tensors are read."""

    def __init__(self, content: State) -> None:
        super().__init__(content)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.add(name)
        return super().__getitem__(name)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(
    "method", [*(name for name in REAL if name != "fola_errors"), {"name": "fedcurv", "form": "repository"}], ids=str
)
def test_all_that_is_sent_is_read(method: str | dict[str, Any], mapping: Make, data_dir: Path) -> None:
    """Bytes that nobody needs would make a method look dearer than it is. FOLA's errors are a study, compared with nothing;
    a single number counts for nothing."""
    of = federation(mapping(method), data_dir, torch.float32)
    start, aggregate, down, up = of.method.start, of.method.aggregate, list[Noted](), list[Noted]()

    def starting(c: Node, message: State) -> State:
        down.append(Noted(message))
        return start(c, down[-1])

    def aggregating(server: Node, updates: Sequence[Update]) -> dict[str, torch.Tensor]:
        up.extend(Noted(update.values) for update in updates)
        return aggregate(
            server, [replace(update, values=one) for update, one in zip(updates, up[-len(updates) :], strict=True)]
        )

    of.method.start, of.method.aggregate = starting, aggregating  # type: ignore[method-assign]
    play(of, 2)
    for way in (down, up):
        sent = {name for one in way for name, tensor in one.items() if tensor.numel() > 1} - {*of.method.free}
        assert way
        assert sent <= {name for one in way for name in one.read}


def changed(found: dict[str, list[float]], stored: dict[str, list[float]]) -> list[str]:
    """The names whose figures differ, or that only one of the two has."""
    return [
        key
        for key in found.keys() | stored.keys()
        if found.get(key) != pytest.approx(stored.get(key, []), rel=1e-8, abs=1e-10)
    ]


def hold_golden(name: str, revisions: list[int], found: dict[str, list[float]], path: Path, write: bool) -> None:
    """Compare a method's figures with the stored ones, or store them where that is allowed."""
    again = "run `BAYESFED_GOLDEN=write .venv/bin/pytest tests/methods/test_contract.py -k golden`"
    stored = json.loads(path.read_text()) if path.exists() else {}
    known = stored.get(name, {"revisions": None, "figures": {}})
    if write and known["revisions"] != revisions:
        stored[name] = known = {"revisions": revisions, "figures": found}
        path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    assert name in stored, f"{name} has no golden results yet: {again}"
    assert known["revisions"] == revisions, f"{name}: a revision was raised: {again}"
    differ = changed(found, known["figures"])
    assert not differ, f"{name}: {', '.join(sorted(differ)[:5])} changed; where that is on purpose, raise its revision"


@pytest.mark.parametrize("name", REAL)
def test_golden_results(name: str, mapping: Make, data_dir: Path) -> None:
    """Two rounds in float64. After a change of results on purpose: raise the method's (or engine's) revision first."""
    revisions = [methods.get(name).revision, ENGINE_REVISION]
    found = figures(play(federation(mapping(name, **convolutions(name)), data_dir), 2))
    hold_golden(name, revisions, found, GOLDEN, os.environ.get("BAYESFED_GOLDEN") == "write")


def test_golden_results_are_guarded(tmp_path: Path) -> None:
    """A new method is told what to do; stored results change with a revision alone."""
    path, first, second = tmp_path / "golden.json", {"theta": [1.0, 2.0]}, {"theta": [1.0, 2.1]}
    with pytest.raises(AssertionError, match="mine has no golden results yet: run"):
        hold_golden("mine", [1, 1], first, path, write=False)
    hold_golden("mine", [1, 1], first, path, write=True)
    hold_golden("mine", [1, 1], first, path, write=True)
    with pytest.raises(AssertionError, match="mine: theta changed; where that is on purpose, raise its revision"):
        hold_golden("mine", [1, 1], second, path, write=False)
    with pytest.raises(AssertionError, match="raise its revision"):
        hold_golden("mine", [1, 1], second, path, write=True)
    with pytest.raises(AssertionError, match="mine: a revision was raised: run"):
        hold_golden("mine", [2, 1], second, path, write=False)
    hold_golden("mine", [2, 1], second, path, write=True)
    hold_golden("mine", [2, 1], second, path, write=False)


TRAINED = (
    "theta",
    "m",
    "mu",
    "rho",
    "mu_w",
    "rho_w",
    "phi",
    "y",
    "w",
    "student",
)  # what the methods call parameters that clients train


def moves(of: Federation, progress: Progress | None = None) -> tuple[dict[str, float], Progress]:
    """How far each vector of client 0 goes in the next round, the largest change of an entry; and what it leaves."""
    found: dict[str, float] = {}
    before: dict[str, torch.Tensor] = {}
    phases, finish = of.method.phases, of.method.finish

    def noting(c: Node) -> Sequence[Phase]:
        if c.client == 0:
            before.update({name: c[name].clone() for name in TRAINED if name in c.state})
        return phases(c)

    def measuring(c: Node) -> State:
        if c.client == 0:
            found.update({name: float((c[name] - start).abs().max()) for name, start in before.items()})
        return finish(c)

    of.method.phases, of.method.finish = noting, measuring  # type: ignore[method-assign]
    progress = play(of, 1, progress)
    of.method.phases, of.method.finish = phases, finish  # type: ignore[method-assign]
    return found, progress


@pytest.mark.usefixtures("unwatched", "toys")
@pytest.mark.parametrize("name", [*REAL, *TOYS])
def test_learning_rates_follow_the_schedule(name: str, mapping: Make, data_dir: Path) -> None:
    """With rates of a thousand-millionth from the second round on, nothing that clients train moves any more."""
    of = federation(mapping(name, schedule={"milestones": [[0.5, 1e-9]]}), data_dir)
    usual, first = moves(of)
    plain = tensors(play(federation(mapping(name), data_dir), 1))
    assert all(torch.equal(tensor, plain[key]) for key, tensor in tensors(first).items())
    slow, _ = moves(of, first)
    assert max(usual.values()) > 1e-4
    assert all(moved <= 1e-5 for moved in slow.values())


def test_learning_rates_fall_within_a_round(mapping: Make, data_dir: Path) -> None:
    """One client, against torch.optim.SGD with StepLR on the same batches, over two rounds that both begin anew."""
    from bayesfed.engine.batches import Mixer

    one = mapping(
        {"name": "fedavg", "momentum": 0.0, "weight_decay": 0.0}, partition={"alpha": 1.0, "clients": 1},
        local_epochs=5, schedule={"epoch_decay": 0.5, "epoch_every": 2, "round_decay": 0.8},
    )  # fmt: skip
    of = federation(one, data_dir)
    theta = begin(of).server["theta"].clone().requires_grad_()
    for round in (1, 2):
        optimiser = torch.optim.SGD([theta], lr=0.01 * 0.8 ** (round - 1))
        falling = torch.optim.lr_scheduler.StepLR(optimiser, 2, 0.5)
        mixer = Mixer(of, of.node(0, round))
        for _ in range(5):
            for chunk in mixer.epoch(of.shards[0]):
                for x, y in zip(chunk.x.split(32), chunk.y.split(32), strict=True):
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(of.networks[0]["global"](theta, x), y).backward()
                    optimiser.step()
            falling.step()
    torch.testing.assert_close(play(of, 2).server["theta"], theta.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedpa"},
        {"name": "fedcurv"},
        {"name": "fola", "evaluation": "offline"},
        {"name": "fedppd"},
        {"name": "fedppd", "teacher": "map"},
        {"name": "fedppd", "distillation": "steps"},
    ],
    ids=lambda method: "-".join(method.values()),
)
def test_schedules_count_local_epochs(method: dict[str, Any], mapping: Make, data_dir: Path) -> None:
    """Not the phases that one is made of, nor passes that train nothing."""
    of = federation(mapping(method, local_epochs=2, schedule={"epoch_decay": 0.5}), data_dir)
    finish, rates = of.method.finish, []

    def noting(c: Node) -> State:
        rates.append(c[RATE].item())
        return finish(c)

    of.method.finish = noting  # type: ignore[method-assign]
    play(of, 2)
    assert {*rates} == {0.25}


@pytest.mark.usefixtures("toys")
def test_phases_run_on_their_data_for_their_length(mapping: Make, data_dir: Path) -> None:
    history = play(federation(mapping("toy_phases", local_epochs=3), data_dir), 1).history
    noted = {row.metric: row.value for row in history if row.model == "server"}
    assert noted == {"epochs": 3, "student_steps": 7, "measured": 40, "ends": 1}


@pytest.mark.usefixtures("toys")
def test_each_client_gets_its_own_message_and_keeps_its_state(mapping: Make, data_dir: Path) -> None:
    progress = play(federation(mapping("toy_message"), data_dir), 2)
    assert [state["rounds"].item() for state in progress.clients.values()] == [2, 2, 2, 2]
    assert {f"theta.{k}" for k in range(4)} < progress.server.keys()


@pytest.mark.usefixtures("toys")
def test_all_clients_are_counted_and_weights_are_the_participants(mapping: Make, data_dir: Path) -> None:
    """FedDyn needs the first, an average the second: half of the clients take part, and their q add up to 1."""
    progress = play(federation(mapping("toy_message", participation=0.5), data_dir), 3)
    for round in (1, 2, 3):
        told = {row.metric: row.value for row in progress.history if (row.round, row.model) == (round, "server")}
        assert (told["clients"], told["q"]) == (4, pytest.approx(1, abs=1e-12))
    assert {state["clients"].item() for state in progress.clients.values()} == {4}


@pytest.mark.usefixtures("toys")
def test_the_server_trains_on_images_that_no_client_has(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("toy_server"), data_dir)
    server = set(of.shards[-1].train.tolist())
    clients = [set(of.shards[k].train.tolist()) for k in range(4)]
    assert len(server) == 50
    assert not server & set().union(*clients)
    assert len(server) + sum(map(len, clients)) == 250
    counts = of.splits[0][0].labels[of.shards[-1].train].bincount()
    assert counts.tolist() == [5] * 10
    progress = play(of, 2)
    assert progress.server["steps"].item() == 2 * 2 * 2  # rounds x epochs x batches of 32 in 50
    assert progress.server["ensemble"].shape[0] == 2
    assert {row.model for row in progress.history if row.client == "global"} == {
        "global",
        "ensemble",
        "server",
        "communication",
        "computation",
    }


def test_multi_task_shares_the_convolutions_alone(mapping: Make, data_dir: Path) -> None:
    shared = {
        "dataset": ["few", "few-parity"],
        "partition": {"scheme": "whole", "clients": 2},
        "models": {"global": "convolutions", "local": ["lenet5", "cnn1"]},
        "images": {},
    }
    for name in ("fml", "hbfl"):
        of, symbol = federation(mapping(name, **shared), data_dir), {"fml": "theta", "hbfl": "mu"}[name]
        progress = play(of, 1)
        first = [progress.clients[k][f"{symbol}.own"].clone() for k in (0, 1)]
        progress = play(of, 1, progress)
        assert progress.server[symbol].numel() == 1 * 6 * 25 + 6 + 6 * 16 * 25 + 16
        own = [state[f"{symbol}.own"].numel() for state in progress.clients.values()]
        assert own == [400 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10, 400 * 120 + 120 + 120 * 2 + 2]
        assert not [row for row in progress.history if row.model == "global"]
        # A client's two networks of one architecture begin apart, in their own layers too.
        node = of.node(0, 0)
        ends = [node.initial(model)[-(84 * 10 + 10) :] for model in ("global", "local")]
        assert not torch.isclose(*ends).any()
        # Every client's own layers have been trained, apart from what it began with.
        assert all(not torch.equal(first[k], progress.clients[k][f"{symbol}.own"]) for k in (0, 1))


def test_one_client_and_one_round_is_plain_training(mapping: Make, data_dir: Path) -> None:
    """FedAvg with one client against torch.optim.SGD on the same batches."""
    from bayesfed.engine.batches import Mixer

    one = mapping("fedavg", partition={"alpha": 1.0, "clients": 1}, rounds=1, local_epochs=2)
    of = federation(one, data_dir)
    theta = begin(of).server["theta"].clone().requires_grad_()
    optimiser = torch.optim.SGD([theta], lr=0.01, momentum=0.9, weight_decay=5e-4)
    mixer = Mixer(of, of.node(0, 1))
    for _ in range(2):
        for chunk in mixer.epoch(of.shards[0]):
            for x, y in zip(chunk.x.split(32), chunk.y.split(32), strict=True):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(of.networks[0]["global"](theta, x), y).backward()
                optimiser.step()
    torch.testing.assert_close(play(of, 1).server["theta"], theta.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("unwatched", "modules")
def test_abavg_validates_a_client_with_its_own_statistics(mapping: Make, data_dir: Path) -> None:
    """As the client itself would on the server's images."""
    of = federation(mapping("abavg", models={"global": "normalised"}), data_dir)
    shard, own, given = of.shards[SERVER], {}, []
    finish, weights = of.method.finish, of.method.weights  # type: ignore[attr-defined]

    def noting(c: Node) -> State:
        predicted = of.predict(softmax_of("client", c.model, c["theta"]), shard.train_images, shard.train)
        own[c.client] = accuracy(predicted, shard.train_images.labels[shard.train])
        return finish(c)

    def measured(server: Node, updates: Sequence[Update]) -> torch.Tensor:
        given.append(weights(server, updates))
        return given[-1]

    of.method.finish, of.method.weights = noting, measured  # type: ignore[attr-defined,method-assign]
    play(of, 1)
    assert given[0].tolist() == [float(own[k]) for k in range(4)]


def test_hbfl_with_equal_sigmas_averages_as_its_ablation(mapping: Make, data_dir: Path) -> None:
    """With one step a round sigma hardly moves; with a frozen sigma both averages are the same number."""
    of = federation(mapping("hbfl"), data_dir)
    plain = federation(mapping({"name": "hbfl", "average": "plain"}), data_dir)
    generator = torch.Generator().manual_seed(0)
    size = of.networks[0]["global"].parameters
    sigma = torch.full((size,), 0.0067, dtype=torch.float64)
    mus = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(3)]
    q = torch.tensor([1, 11, 21], dtype=torch.float64) / 33
    updates = [Update(k, 10 * k + 1, q[k], {"mu": mus[k], "sigma": sigma}) for k in range(3)]
    servers = []
    for one in (of, plain):
        server = one.node(-1, 1)
        one.method.aggregate(server, updates)
        servers.append(server["mu"])
    assert torch.equal(*servers)


@pytest.mark.parametrize(
    ("method", "kept"),
    [
        ({"name": "hbfl", "sigma": "kept"}, {"rho"}),
        ({"name": "hbfl", "adam_state": "kept"}, {"mu.m", "mu.v", "mu.t", "rho.m", "rho.v", "rho.t"}),
        ({"name": "hbfl"}, set()),
    ],
)
def test_what_a_client_of_hbfl_keeps(method: dict[str, Any], kept: set[str], mapping: Make, data_dir: Path) -> None:
    progress = play(federation(mapping(method), data_dir), 1)
    assert progress.clients[0].keys() == {"phi", "phi.momentum", "mu.own"} | kept


def by_round(of: Federation) -> Iterator[dict[str, torch.Tensor]]:
    """Every tensor after the first round, and after the second."""
    progress = play(of, 1)
    yield {name: tensor.clone() for name, tensor in tensors(progress).items()}
    yield tensors(play(of, 1, progress))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "hbfl", "entropy_weight": "T"},
        {"name": "hbfl", "entropy_weight": "1"},
        {"name": "hbfl", "sigma": "kept"},
        {"name": "hbfl", "decay_rho": True},
        {"name": "hbfl", "adam_state": "kept"},
        {"name": "hbfl", "local_start": "reset"},
        {"name": "hbfl", "alpha": 0.9},
        {"name": "hbfl", "distillation_temperature": 3.0},
        {"name": "hbfl", "distillation_temperature": 3.0, "distillation_squared": True},
        {"name": "hbfl", "average": "plain"},
        {"name": "hbfl", "average": "precision-without-q"},
        {"name": "hbfl", "sigma": "sent"},
        {"name": "hbfl", "optimizer": "sgd"},
        {"name": "hbfl", "decay": "decoupled"},
        {"name": "hbfl", "beta": 0.5},
        {"name": "hbfl", "noise": "none"},
        {"name": "fml", "average": "uniform"},
        {"name": "fml", "local_start": "reset"},
        {"name": "fml", "meme_adam": 0.001},
        {"name": "fedavg", "optimizer_state": "kept"},
        {"name": "fedavg", "optimizer": "adam", "lr": 0.001},
        {"name": "fedprox", "mu": 1.0},
        {"name": "fedbe", "step": 0.5},
        {"name": "fola", "squares": "images"},
        {"name": "fedcurv", "squares": "images"},
        {"name": "fedbe", "sharpen": 1.0},
        {"name": "fedbe", "floor": 0.01},
        {"name": "fedbe", "distribution": "gaussian"},
        {"name": "fedbe", "distribution": "dirichlet"},
        {"name": "abavg", "weight": "images-times-accuracy"},
        {"name": "abavg", "weight": "scaled-accuracy"},
        {"name": "pfedbayes", "noise_scale": 0.001},
        {"name": "pfedbayes", "zeta": 1.0},
        {"name": "pfedbayes", "personal_steps": 5},
        {"name": "pfedbayes", "weights": "images"},
        {"name": "pfedgp", "embedding": "unit"},
        {"name": "pfedme", "penalty": 5.0},
        {"name": "pfedme", "averaged": 2},
        {"name": "perfedavg", "adapt": "test"},
        {"name": "perfedavg", "order": "hf"},
        {"name": "perfedavg", "order": "exact"},
        {"name": "heurfedamp", "alpha": 0.1},
        {"name": "heurfedamp", "scale": 1.0},
        {"name": "bnfed", "sigma": 0.1},
        {"name": "bnfed", "form": "code"},
        {"name": "bnfed", "select": "validation"},
        {"name": "bnfed", "select": "test"},
        {"name": "bayesadmm", "server": "mean"},
        {"name": "bayesadmm", "temperature": 1.0},
        {"name": "bayesadmm", "step": 0.25},
        {"name": "bayesadmm", "damping": 1.0},
        {"name": "bayesadmm", "alpha": 1.0},
        {"name": "feddyn", "alpha": 1.0},
        {"name": "fedgvi", "alpha": 1.0},
        {"name": "fedgvi", "delta": 0.0},
        {"name": "fedgvi", "damping": 0.5},
        {"name": "fedgvi", "first": 0.01},
        {"name": "fedgvi", "draws": 2},
        {"name": "fedlap", "delta": 10.0},
        {"name": "fedlap", "damping": 0.5},
        {"name": "fedlap", "proximal": "norm"},
        {"name": "fedlap", "optimizer_state": "fresh"},
        {"name": "fedlap_cov", "received": "flat"},
        {"name": "fedlap_cov", "draws": 2},
        {"name": "fedep", "cavity": "sep"},
        {"name": "fedep", "cavity": "adf"},
        {"name": "fedep", "covariance": "mcmc"},
        {"name": "fedep", "covariance": "laplace"},
        {"name": "fedep", "clip": 0.01},
        {"name": "fedep", "damping": 1.0},
        {"name": "fedivon", "prior": "server"},
        {"name": "fedivon", "curvature": "fresh"},
        {"name": "fedivon", "rescale": False},
        {"name": "pfedvem", "beta": 0.5},
        {"name": "pfedvem", "aggregated": 1.0},
        {"name": "pfedvem", "sigma": 0.1},
        {"name": "pfedvem", "head_epochs": 3},
        {"name": "gaussian", "inference": "bbb"},
        {"name": "gaussian", "rule": "rkl"},
        {"name": "gaussian", "sent": "mean"},
        {"name": "gaussian", "weights": "equal"},
        {"name": "gaussian", "rescale": False},
    ],
    ids=lambda method: "-".join(str(value) for value in method.values()),
)
def test_every_reading_changes_the_result(method: dict[str, Any], mapping: Make, data_dir: Path) -> None:
    """In the first round or, where something is kept or reset, in the second."""
    if method["name"] not in DEFAULTS:
        DEFAULTS[method["name"]] = [*by_round(federation(mapping(method["name"]), data_dir))]
    found = zip(by_round(federation(mapping(method), data_dir)), DEFAULTS[method["name"]], strict=True)
    assert any(
        not torch.equal(t, default[name]) for read, default in found for name, t in read.items() if name in default
    )


def test_hbfl_sends_its_sigma_down(mapping: Make, data_dir: Path) -> None:
    """So that a client starts from the server's Gaussian, in layers of its own from the first sigma."""
    of = federation(mapping({"name": "hbfl", "sigma": "sent"}), data_dir)
    server = play(of, 1).server
    c = of.node(0, 2)
    c.state = of.method.init_client(of.node(0, 0))
    started = of.method.start(c, {"mu": server["mu"], "sigma": server["sigma"]})
    torch.testing.assert_close(softplus(started["rho"]), server["sigma"], rtol=1e-10, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["hbfl", "fml"])
def test_the_meme_alone_is_fedavg(name: str, optimizer: str, mapping: Make, data_dir: Path) -> None:
    """HBFL without noise, by the plain mean, and FML without distillation: the meme is the model of FedAvg, by either
    optimiser."""
    adam, models = optimizer == "adam", {"global": "lenet5"}
    chosen = {"optimizer": optimizer, "lr": 0.001 if adam else 0.01}
    bare = {
        "hbfl": {"noise": "none", "average": "plain"} | chosen,
        "fml": {"beta": 1.0} | ({"meme_adam": 0.001} if adam else {}),
    }[name]
    of = federation(mapping({"name": name} | bare, models=models | {"local": ["mlp"] * 4}), data_dir)
    ours = play(of, 2).server["mu" if name == "hbfl" else "theta"]
    theirs = play(federation(mapping({"name": "fedavg"} | chosen, models=models), data_dir), 2).server["theta"]
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["hbfl", "fml"])
def test_testing_after_each_epoch_changes_no_training(name: str, mapping: Make, data_dir: Path) -> None:
    once = play(federation(mapping(name, local_epochs=2), data_dir), 1)
    each = play(federation(mapping({"name": name, "evaluate": "epoch"}, local_epochs=2), data_dir), 1)
    assert all(torch.equal(t, tensors(each)[key]) for key, t in tensors(once).items())
    best = {(r.client, r.model): r.value for r in each.history if r.metric == "epoch_shard_accuracy"}
    end = {
        (r.client, r.model): r.value
        for r in each.history
        if r.metric == "shard_accuracy" and (r.client, r.model) in best
    }
    assert len(best) == 8
    assert all(best[key] >= value for key, value in end.items())


def test_a_client_without_test_images_has_no_accuracy(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("independent"), data_dir)
    of.shards[1].test = of.shards[1].test[:0]
    measured = {row.client for row in play(of, 1).history if row.metric.endswith("shard_accuracy")}
    assert measured == {"0", "2", "3"}
