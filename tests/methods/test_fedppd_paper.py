"""The methods of FedPPD's comparison against loops written out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.playing import federation, play
from torch import Tensor, nn

from bayesfed import methods, models
from bayesfed.bayes.sampling import posterior_delta
from bayesfed.core.errors import InputError
from bayesfed.engine.batches import Mixer
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import begin
from bayesfed.methods.node import Learner, Node, State

Make = Callable[..., dict[str, Any]]
ONE = {"partition": {"alpha": 1.0, "clients": 1}, "local_epochs": 3, "rounds": 1}


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.detach().requires_grad_()
    return torch.autograd.grad(loss(at), at)[0]


def epoch(of: Federation, mixer: Mixer) -> list[tuple[Tensor, Tensor]]:
    """The mini-batches of the client's next epoch."""
    return [
        pair for chunk in mixer.epoch(of.shards[0]) for pair in zip(chunk.x.split(32), chunk.y.split(32), strict=True)
    ]


def test_without_student_and_noise_it_is_fedavg_at_half_the_rate(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"name": "fedavg", "lr": 0.025, "momentum": 0.0, "weight_decay": 1e-4}
    expected = play(federation(mapping(plain), data_dir), 2).server["theta"]
    monkeypatch.setattr(Learner, "noise", lambda c, like: torch.zeros_like(like))
    teacher = play(federation(mapping({"name": "fedppd", "lr": 0.05}), data_dir), 2).server["theta"]
    torch.testing.assert_close(teacher, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("noise", ["code", "exact"])
@pytest.mark.parametrize("distillation", ["epochs", "steps"])
def test_a_client_with_two_networks_against_a_loop(
    noise: str, distillation: str, mapping: Make, data_dir: Path
) -> None:
    """One client, one round of three epochs: SGLD of the teacher, the student's steps, alpha after every second epoch."""
    method = {"name": "fedppd", "noise": noise, "distillation": distillation, "lr_every": 2, "lr": 0.05}
    of = federation(mapping(method, **ONE), data_dir)
    server = of.node(SERVER, 0)
    theta, w = server.initial(), server.initial("student")
    c, mixer = of.node(0, 1), Mixer(of, of.node(0, 1))
    n = len(of.shards[0].train)
    teacher, student = of.networks[0]["global"], of.networks[0]["student"]
    alpha, s = 0.05, 2 / n if noise == "code" else n**-0.5

    def teach(x: Tensor, y: Tensor) -> None:
        nonlocal theta
        g = gradient(lambda at: F.cross_entropy(teacher(at, x), y) + 0.5e-4 * at.square().sum(), theta)
        theta = theta - alpha / 2 * g + alpha**0.5 * s * c.noise(theta)

    def distil(x: Tensor) -> None:
        nonlocal w
        p, x = teacher(theta, x).softmax(-1).detach(), x + 0.001 * c.noise(x)
        w = w - 0.02 * gradient(lambda at: F.cross_entropy(student(at, x), p) + 0.5e-4 * at.square().sum(), w)

    for number in (1, 2, 3):
        for x, y in epoch(of, mixer):
            teach(x, y)
            if distillation == "steps":
                distil(x)
        for x, _ in epoch(of, mixer) if distillation == "epochs" else []:
            distil(x)
        alpha *= 0.85 if number == 2 else 1
    after = play(of, 1).server
    torch.testing.assert_close(after["theta"], theta, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(after["w"], w, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("unwatched")
def test_the_map_sample_has_the_largest_density(mapping: Make, data_dir: Path) -> None:
    """Of all teachers at the ends of epochs, by their loss over the client's images, not augmented, and the prior."""
    of = federation(mapping({"name": "fedppd", "teacher": "map", "lr": 0.5}, **(ONE | {"local_epochs": 6})), data_dir)
    seen: list[Tensor] = []
    remember = of.method.remember  # type: ignore[attr-defined]

    def noting(c: Node) -> None:
        seen.append(c["theta"].clone())
        remember(c)

    of.method.remember = noting  # type: ignore[attr-defined]
    sent = play(of, 1).server["theta"]
    images = of.shards[0]
    x, y = images.train_images.plain(images.train), images.train_images.labels[images.train]
    losses = [
        float(F.cross_entropy(of.networks[0]["global"](theta, x), y) + 0.5e-4 * theta.square().sum()) for theta in seen
    ]
    assert len(seen) == 6
    torch.testing.assert_close(sent, seen[losses.index(min(losses))], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("name", ["fedppd", "fedppd_distill"])
def test_the_map_sample_has_no_batchnorm_statistics_of_its_own(name: str, mapping: Make, data_dir: Path) -> None:
    nets = {"global": "normalised", "student": "normalised"}
    with pytest.raises(
        InputError, match=r"method\.teacher: map, but BatchNorm statistics are those of the last teacher"
    ):
        federation(mapping({"name": name, "teacher": "map"}, models=nets), data_dir)
    federation(mapping({"name": name, "teacher": "map"}, models=nets | {"global": "smooth"}), data_dir)
    federation(mapping(name, models=nets), data_dir)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("swa_start", [1, 1000])
def test_teachers_and_students_are_distilled_apart(swa_start: int, mapping: Make, data_dir: Path) -> None:
    """The server's students against a loop, from the ensemble that it drew; with too few steps the last iterate stays."""
    of = federation(mapping({"name": "fedppd_distill", "swa_start": swa_start, "server_batch_size": 20}), data_dir)
    caught: dict[str, Tensor] = {}
    phases = of.method.server_phases

    def catching(server: Node) -> Any:
        caught.update({name: server[name].clone() for name in ("w", "w.ensemble", "theta.ensemble")})
        return phases(server)

    of.method.server_phases = catching  # type: ignore[method-assign]
    after = play(of, 1).server
    assert set(after) == {"theta", "w"}
    assert len(caught["w.ensemble"]) == len(caught["theta.ensemble"]) == 1 + 4 + 2
    shard, student = of.shards[SERVER], of.networks[0]["student"]
    x = shard.train_images.plain(shard.train)
    p = torch.stack([student(w, x).softmax(-1) for w in caught["w.ensemble"]]).mean(0).square()
    p = p / p.sum(1, keepdim=True)
    mixer, w, v = Mixer(of, of.node(SERVER, 1)), caught["w"], torch.zeros_like(caught["w"])
    mixer.size = 20
    for _ in range(1 + 4 + 1):  # the teachers' targets and epochs, and the students' targets
        list(mixer.epoch(shard))
    iterates = []
    for _ in range(4):
        for part in torch.cat([chunk.index for chunk in mixer.epoch(shard)]).split(20):
            g = gradient(
                lambda at, part=part: (p[part] * (p[part].log() - student(at, x[part]).log_softmax(-1))).mean(), w
            )
            v = 0.9 * v + g + 1e-4 * w
            w = w - 0.1 * v
            iterates.append(w)
    chosen = [iterate for t, iterate in enumerate(iterates, 1) if t > swa_start and t % 2 == 0]
    expected = sum(chosen) / len(chosen) if chosen else w
    torch.testing.assert_close(after["w"], expected, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("unwatched", "modules")
@pytest.mark.parametrize("step", [1e-9, 1.0])
@pytest.mark.parametrize("name", ["fedbe", "fedppd_distill"])
def test_models_of_an_ensemble_predict_with_their_own_statistics(
    name: str, step: float, mapping: Make, data_dir: Path
) -> None:
    """A client's as it did there, the mean with the mean of the statistics, samples with such as are between those of the
    clients and the server; with next to no step they predict as the server's model did before."""
    nets = {"global": "normalised"} | dict.fromkeys(methods.get(name).networks, "normalised")
    of = federation(mapping({"name": name, "spread": 3.0, "step": step}, models=nets), data_dir)
    server_step = getattr(of.method, "distillation", None) or of.method.distillations[1]  # type: ignore[attr-defined]
    vector, network = server_step.name, server_step.network
    variance = {"global": "model:", "student": "student:"}[network] + "1.running_var"
    shard = of.shards[SERVER]
    x = shard.train_images.plain(shard.train)
    predicted: dict[int, Tensor] = {}
    variances: dict[int, Tensor] = {}

    def note(place: int, c: Learner, theta: Tensor) -> None:
        with torch.no_grad():
            predicted[place], variances[place] = c.models[network](c, theta, x), c[variance].clone()

    finish, phases, start = of.method.finish, of.method.server_phases, begin(of)

    def noting(c: Node) -> State:
        note(c.client, c, c[vector])
        return finish(c)

    def gathered(server: Node) -> Any:
        note(SERVER, server, server[vector])
        found = phases(server)
        for place, (own, theta) in enumerate(server_step.members(server), 100):
            note(place, own, theta)
        return found

    of.method.finish, of.method.server_phases = noting, gathered  # type: ignore[method-assign]
    before = of.node(SERVER, 1)
    before.state = dict(start.server)
    note(99, before, before[vector])
    play(of, 1, start)
    expected = [SERVER, 0, 1, 2, 3] + [99] * 2 * (step < 1)
    for place, same in enumerate(expected, 100):
        torch.testing.assert_close(predicted[place], predicted[same], rtol=0, atol=1e-6)
    if step == 1:
        ends = torch.stack([variances[place] for place in (99, 0, 1, 2, 3)])
        for place in (105, 106):
            assert ((ends.amin(0) <= variances[place]) & (variances[place] <= ends.amax(0))).all()
            assert not torch.allclose(variances[place], variances[SERVER], rtol=1e-3, atol=0)


@pytest.mark.usefixtures("modules")
def test_the_ensemble_predicts_every_image_of_the_server(mapping: Make, data_dir: Path) -> None:
    """Also the one behind two mini-batches of 28, on which a network with batch normalisation could not be trained."""
    method = {"name": "fedbe", "server_set": 57, "server_batch_size": 28}
    of = federation(mapping(method, models={"global": "normalised"}), data_dir)
    phases = of.method.server_phases
    of.method.server_phases = lambda server: phases(server)[:1]  # type: ignore[method-assign]
    targets = play(of, 1).server["theta.targets"]
    torch.testing.assert_close(targets.exp().sum(1), targets.new_ones(57), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("unwatched")
def test_swag_gathers_in_the_last_round_alone(mapping: Make, data_dir: Path) -> None:
    changes = {"local_epochs": 3, "rounds": 2}
    of, plain = (federation(mapping(name, **changes), data_dir) for name in ("fedswag", "fedavg"))
    first = play(of, 1)
    torch.testing.assert_close(first.server["theta"], play(plain, 1).server["theta"], rtol=0, atol=0)
    iterates: dict[int, list[Tensor]] = {k: [] for k in range(4)}
    collect = of.method.collect  # type: ignore[attr-defined]

    def noting(c: Node) -> None:
        iterates[c.client].append(c["theta"].clone())
        collect(c)

    of.method.collect = noting  # type: ignore[attr-defined]
    second = play(of, 1, first)
    n = torch.tensor([len(of.shards[k].train) for k in range(4)], dtype=torch.float64)
    everything = torch.stack([torch.stack(of_client) for of_client in iterates.values()])  # clients, epochs, P
    weights = (n / n.sum())[:, None, None] / 3
    mean = (weights * everything).sum((0, 1))
    variance = (weights * (everything - mean).square()).sum((0, 1))
    torch.testing.assert_close(second.server["theta"], mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(second.server["sigma"].square(), variance.clamp(min=1e-30), rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("unwatched")
def test_fedpa_samples_after_its_start(mapping: Make, data_dir: Path) -> None:
    """FedAvg's differences in the first of two rounds; then deltas of the epochs' means of iterates, after a burn-in."""
    of = federation(mapping({"name": "fedpa", "rho": 0.3}, local_epochs=4, rounds=2), data_dir)
    sent: dict[int, dict[int, State]] = {1: {}, 2: {}}
    paths: dict[int, list[Tensor]] = {k: [] for k in range(4)}
    finish, step = of.method.finish, of.method.step

    def noting(c: Node) -> State:
        sent[c.round][c.client] = {"start": c["start"].clone(), "theta": c["theta"].clone()} | finish(c)
        return finish(c)

    of.method.finish = noting  # type: ignore[method-assign]
    first = play(of, 1)
    for of_client in sent[1].values():
        torch.testing.assert_close(of_client["delta"], of_client["theta"] - of_client["start"], rtol=0, atol=0)
    order = iter(sorted(range(4), key=lambda k: -len(of.shards[k].train)))
    current: list[int] = []

    def tracking(c: Any, batch: Any) -> None:
        if not current or len(paths[current[0]]) == 4 * -(-len(of.shards[current[0]].train) // 32):
            current[:] = [next(order)]
        step(c, batch)
        paths[current[0]].append(c["theta"].clone())

    of.method.step = tracking  # type: ignore[method-assign]
    second = play(of, 1, first)
    total, q = torch.zeros_like(first.server["theta"]), [len(of.shards[k].train) for k in range(4)]
    for k, path in paths.items():
        batches = len(path) // 4
        samples = torch.stack([torch.stack(path[i * batches : (i + 1) * batches]).mean(0) for i in (1, 2, 3)])
        delta = posterior_delta(first.server["theta"], samples, 0.3)
        torch.testing.assert_close(sent[2][k]["delta"], delta, rtol=1e-9, atol=1e-12)
        total += q[k] / sum(q) * delta
    v = 0.9 * first.server["v"] + total
    torch.testing.assert_close(second.server["theta"], first.server["theta"] + 0.5 * v, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "channels", "side", "classes", "parameters"),
    [
        ("fedppd_mnist", 1, 28, 10, 21_840),
        ("fedppd_mnist_student", 1, 28, 10, 20 * 26 + 40 * (500 + 1) + 641 * 100 + 1010),
        ("fedppd_femnist", 1, 28, 52, 32 * 26 + 64 * 801 + 1025 * 128 + 129 * 52),
        ("fedppd_femnist_student", 1, 28, 52, 50 * 26 + 100 * 1251 + 200 * 2501 + 3201 * 1600 + 1601 * 180 + 181 * 52),
        ("fedppd_cifar10", 3, 32, 10, 62_006),
        ("fedppd_cifar10_student", 3, 32, 10, 144_474),
        ("resnet18", 3, 32, 100, 11_227_812),
    ],
)
def test_the_networks_of_the_tables(name: str, channels: int, side: int, classes: int, parameters: int) -> None:
    network = models.build(name, classes, channels, side)
    assert network.parameters == parameters
    theta = network.initial(np.random.default_rng(0))
    if name.startswith("resnet"):  # all of it that is FedPPD's
        weight, bias = theta[-513 * classes : -classes], theta[-classes:]
        assert not bias.any()
        assert abs(weight).max() == pytest.approx((6 / (512 + classes)) ** 0.5, rel=1e-2)
    else:
        assert (torch.as_tensor(theta) == 0).sum() == sum(
            size for size, shape in zip(network.sizes, shapes(network), strict=True) if len(shape) == 1
        )


class Conv(nn.Module):
    """A 5x5 convolution of the tables, padded as asked or not at all."""

    def __init__(self, inputs: int, maps: int, beyond: str = "") -> None:
        super().__init__()
        self.beyond, self.conv = beyond, nn.Conv2d(inputs, maps, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (2, 2, 2, 2), mode=self.beyond) if self.beyond else x)


class Ones(nn.Module):
    """A row below and a column to the right, of ones."""

    def forward(self, x: Tensor) -> Tensor:
        wider = torch.ones(*x.shape[:2], x.shape[2] + 1, x.shape[3] + 1, dtype=x.dtype)
        wider[:, :, :-1, :-1] = x
        return wider


def line_by_line(*layers: nn.Module) -> nn.Sequential:
    """A column of Tables 5 or 6, with ReLU behind all but dropout, flattening and the last layer."""
    made: list[nn.Module] = []
    for layer in layers:
        made += [layer] + [nn.ReLU()] * (not isinstance(layer, nn.Dropout | nn.Dropout2d | nn.Flatten | Conv))
    return nn.Sequential(*made[:-1])


def two(maps: tuple[int, int], wide: int, hidden: int, classes: int) -> nn.Sequential:
    return line_by_line(
        Conv(1, maps[0]), nn.MaxPool2d(2), Conv(maps[0], maps[1]), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(wide, hidden), nn.Dropout(0.5), nn.Linear(hidden, classes),
    )  # fmt: skip


def lenet(maps: tuple[int, int], hidden: tuple[int, int]) -> nn.Sequential:
    return line_by_line(
        Conv(3, maps[0]), nn.MaxPool2d(2), Conv(maps[0], maps[1]), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 25, hidden[0]), nn.Linear(hidden[0], hidden[1]), nn.Linear(hidden[1], 10),
    )  # fmt: skip


TABLES = {
    "fedppd_mnist": lambda: two((10, 20), 320, 50, 10),
    "fedppd_mnist_student": lambda: two((20, 40), 640, 100, 10),
    "fedppd_femnist": lambda: two((32, 64), 1024, 128, 52),
    "fedppd_femnist_student": lambda: line_by_line(
        Conv(1, 50, "replicate"), nn.MaxPool2d(2),
        Conv(50, 100, "replicate"), nn.Dropout2d(0.5), nn.MaxPool2d(2), Ones(),
        Conv(100, 200, "constant"), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(3200, 1600), nn.Dropout(0.5), nn.Linear(1600, 180), nn.Dropout(0.5), nn.Linear(180, 52),
    ),
    "fedppd_cifar10": lambda: lenet((6, 16), (120, 84)),
    "fedppd_cifar10_student": lambda: lenet((16, 16), (256, 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_the_networks_are_those_of_the_tables_line_by_line(name: str) -> None:
    """Logits with the same weights, and where how much is dropped."""
    table = TABLES[name]().double().eval()
    colours, side = (3, 32) if "cifar" in name else (1, 28)
    network = models.build(name, 52 if "femnist" in name else 10, colours, side)
    theta = nn.utils.parameters_to_vector(table.parameters()).detach()
    x = torch.randn(3, colours, side, side, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        found = network.logits(theta, x, {}, torch.Generator())
        torch.testing.assert_close(found, table(x), rtol=1e-9, atol=1e-12)
    told = nn.Conv2d | nn.MaxPool2d | nn.Linear | nn.Dropout | nn.Dropout2d
    ours, lines = (
        [(type(layer), getattr(layer, "p", None)) for layer in module.modules() if isinstance(layer, told)]
        for module in (network.module(theta, {}), table)
    )
    assert ours == lines


def shapes(network: Any) -> list[tuple[int, ...]]:
    """Of the weights and biases, in order."""
    return list(network.shapes.values()) if isinstance(network.shapes, dict) else network.shapes
