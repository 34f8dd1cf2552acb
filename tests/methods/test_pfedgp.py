"""pFedGP's tree, its step and its predictions, against what is written out here and a sampler without Polya-Gamma
variables."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import slices
from helpers.playing import federation
from torch import Tensor

import bayesfed
from bayesfed.engine.executors import EagerExecutor, Job
from bayesfed.engine.executors.base import Result
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Trainer, begin
from bayesfed.methods import pfedgp
from bayesfed.methods.method import Update
from bayesfed.methods.node import Batch, Node
from bayesfed.methods.pfedgp import Classifier, tree_of

Make = Callable[..., dict[str, Any]]


def test_labels_that_are_near_stay_together() -> None:
    """Means on a line at 0, 1, 10, 12, 30 and, with no image, 11: {30} | {0, 1, 10, 12}, then {0, 1} | {10, 12}."""
    y = torch.tensor([0, 0, 1, 2, 4, 4, 4, 5])
    z = torch.tensor([-1.0, 1.0, 1.0, 10.0, 12.0, 12.0, 12.0, 30.0])[:, None]
    tree = tree_of(z, y, 6)
    sides = [({*(row == 1).nonzero()[:, 0].tolist()}, {*(row == -1).nonzero()[:, 0].tolist()}) for row in tree]
    found = {frozenset(map(frozenset, both)) for both in sides}
    expected = [({5}, {0, 1, 2, 4}), ({0, 1}, {2, 4}), ({0}, {1}), ({2}, {4})]
    assert found == {frozenset(map(frozenset, both)) for both in expected}


def test_a_tree_tells_all_labels_apart_wherever_they_lie() -> None:
    same = torch.zeros(20, 3)
    for z, y in (
        (torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 7),
        (same, torch.arange(20) % 5),
        (same, torch.full((20,), 3)),
    ):
        labels, tree = y.unique(), tree_of(z, y, 8)
        assert tree.shape == (len(labels) - 1, 8)
        for one in labels:
            for other in labels[labels != one]:
                assert (tree[:, one] * tree[:, other] == -1).sum() == 1
        if len(tree):
            assert not tree[:, [c for c in range(8) if c not in labels]].any()


def begun(of: Federation, client: int = 0) -> Node:
    """A client at the start of the first round."""
    c = of.node(client, 1)
    c.state = of.method.start(c, begin(of).server)
    return c


@pytest.mark.parametrize("embedding", ["raw", "unit"])
def test_a_step_is_the_gradient_written_out(
    embedding: str, mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Polya-Gamma variables that are given: dense inverses, and an integral of many places for each probability."""
    method = {"name": "pfedgp", "features": 5, "embedding": embedding, "lr": 0.2, "weight_decay": 0.01, "clip": 1e9}
    of = federation(mapping(method), data_dir)
    x, y = (part[:15] for part in of.node(0, 1).images())
    c = begun(of)
    c["theta"].mul_(1.5)
    order, before, tree = (
        of.node(0, 1).noise(torch.empty(15, dtype=torch.float64)).argsort(),
        c["theta"].clone(),
        c["tree"],
    )
    omega = torch.rand(3, len(tree), 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 2 + 0.01
    asked = []

    def given(F: Tensor, y: Tensor, chains: int, steps: int, noise: object) -> Tensor:
        asked.append((F, y))
        return omega * y.square()

    monkeypatch.setattr(pfedgp, "gibbs", given)
    of.method.step(c, Batch(x, y))

    theta = before.clone().requires_grad_()
    z = of.networks[0]["global"](theta, x[order])
    if embedding == "unit":
        z = z / z.square().sum(1, keepdim=True).sqrt()
    K = 8 * (-0.5 * (z[:, None] - z).square().sum(-1)).exp()
    places = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    weight = (-0.5 * places.square()).softmax(0)
    loss = torch.zeros((), dtype=torch.float64)
    for v, node in enumerate(tree):
        side = node[y[order]]
        on = side[:7].nonzero()[:, 0]
        for j in range(7, 15):
            if side[j] == 0:
                continue
            p = torch.zeros((), dtype=torch.float64)
            for m in range(3):
                inverse = torch.linalg.inv(K[on][:, on] + torch.diag(1 / omega[m, v, on]))
                mean = K[j, on] @ inverse @ (side[on] / omega[m, v, on] / 2)
                deviation = (8 - K[j, on] @ inverse @ K[on, j]).sqrt()
                p = p + (side[j] * (mean + deviation * places)).sigmoid() @ weight / 3
            loss = loss - p.log() / 8
    (g,) = torch.autograd.grad(loss, theta)
    assert g.norm() > 0.1
    torch.testing.assert_close(c["theta"], before - 0.2 * (g + 0.01 * before), rtol=1e-4, atol=1e-6)
    ((F, signs),) = asked
    torch.testing.assert_close(F @ F.T, K[:7, :7].detach(), rtol=0, atol=1e-4)
    assert torch.equal(signs, tree[:, y[order[:7]]])


@pytest.mark.parametrize("embedding", ["raw", "unit"])
@pytest.mark.parametrize("held", [[0, 1, 2], [2]])
def test_probabilities_are_those_of_a_long_run_without_polya_gamma_variables(
    held: list[int], embedding: str, mapping: Make, data_dir: Path
) -> None:
    """Three labels in the plane, of which a client has some: the product over the tree, and hardly anything for the
    others."""
    of = federation(mapping({"name": "pfedgp", "embedding": embedding, "test_chains": 3000, "steps": 30}), data_dir)
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.5], [3.0, 2.5]], dtype=torch.float64)
    y = torch.tensor(held).repeat_interleave(4)
    z = centres[y] + 0.7 * torch.randn(len(y), 2, generator=generator, dtype=torch.float64)
    new = torch.cat([centres + 0.1, centres[:2] + 0.8])
    c = of.node(0, 1)
    c.state = {"tree": tree_of(z, y, 10)}
    found = Classifier.of(of.method, c, z, y).log_probabilities(new).exp()
    torch.testing.assert_close(found.sum(1), torch.ones(5, dtype=torch.float64))
    if embedding == "unit":
        z, new = z / z.norm(dim=1, keepdim=True), new / new.norm(dim=1, keepdim=True)
    expected = np.ones((5, 10)) * [label in held for label in range(10)]
    for node in c["tree"].numpy():
        side = node[y.numpy()]
        p = slices.probabilities(z.numpy()[side != 0], side[side != 0], new.numpy())[:, None]
        expected *= np.where(node == 1, p, np.where(node == -1, 1 - p, 1))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=0.015)
    assert 0 < float(found[:, [label for label in range(10) if label not in held]].max()) < 1e-6


def test_lengths_decide_the_tree_alone_where_embeddings_are_of_unit_length(mapping: Make, data_dir: Path) -> None:
    """Labels 0 and 1 lie in one direction, apart by their length: they stay apart in the tree, and to the kernel are one."""
    of = federation(mapping({"name": "pfedgp", "embedding": "unit"}), data_dir)
    z = torch.tensor([[1.0, 0.0], [9.0, 0.0], [1.0, 1.0]], dtype=torch.float64).repeat(4, 1)
    y = torch.arange(3).repeat(4)
    assert {tuple(row) for row in tree_of(z, y, 3).abs().tolist()} == {(1.0, 1.0, 1.0), (1.0, 0.0, 1.0)}
    kernel = of.method.kernel
    torch.testing.assert_close(kernel(z[:3], 5 * z[:3]), kernel(z[:3], z[:3]))
    assert kernel(z[:1], z[1:2]).item() == pytest.approx(8)
    assert kernel(z[:1], z[2:3]).item() == pytest.approx(8 * np.exp(0.5**0.5 - 1))


def test_half_of_one_image_teaches_nothing(mapping: Make, data_dir: Path) -> None:
    """A mini-batch of one image has nothing that the processes could have seen; nor has a client of one label a choice."""
    of = federation(mapping({"name": "pfedgp", "weight_decay": 0}), data_dir)
    x, y = of.node(0, 1).images()
    c = begun(of)
    before = c["theta"].clone()
    of.method.step(c, Batch(x[:1], y[:1]))
    assert torch.equal(c["theta"], before)
    c.state["tree"] = c["tree"][:0]
    of.method.step(c, Batch(x[:20], y[:20]))
    assert torch.equal(c["theta"], before)


def test_embeddings_are_averaged_alike(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("pfedgp"), data_dir)
    server = of.node(SERVER, 1)
    q = torch.tensor([0.1, 0.9], dtype=torch.float64)
    of.method.aggregate(server, [Update(k, 1 + 8 * k, q[k], {"theta": q.new_tensor([1.0, 3.0 * k])}) for k in (0, 1)])
    assert server["theta"].tolist() == [1.0, 1.5]


def test_the_network_has_features_and_the_task_its_classes(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "pfedgp", "features": 17}), data_dir)
    c = of.node(0, 1)
    x, y = c.images()
    assert of.networks[0]["global"](c.initial(), x).shape == (len(y), 17)
    assert (c.classes, of.node(SERVER, 0).classes) == (10, 10)
    shard = of.shards[0]
    assert torch.equal(y, shard.train_images.labels[shard.train])
    assert torch.equal(x, shard.train_images.plain(shard.train))


@pytest.mark.usefixtures("modules")
def test_a_client_predicts_by_the_embedding_as_it_was_sent(mapping: Make, data_dir: Path) -> None:
    """Parameters and the statistics of batch normalisation, whatever its own training has made of them."""
    of = federation(mapping("pfedgp", models={"global": "residual"}), data_dir)
    start, network = begin(of).server, of.networks[0]["global"]
    sent = {name: start[f"model:{name}"].clone() for name in network.statistics}
    visited = []

    class Looking(EagerExecutor):
        def run(
            self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
        ) -> Iterator[Result]:
            def looking(job: Job) -> Result:
                c = job.node
                x, _ = c.images()
                with torch.no_grad():
                    expected = network.logits(start["theta"], x, sent, c.generator)
                    trained = c.model(c["theta"], x)
                torch.testing.assert_close(of.method.embedded(c, c["common"], x), expected)
                assert not torch.equal(c["model:norm.running_mean"], sent["norm.running_mean"])
                assert (trained - expected).abs().max() > 1e-3
                visited.append(c.client)
                return end(job)

            return super().run(clients, begin, looking)

    trainer = Trainer(of, "eager")
    trainer.executor = Looking(of)
    trainer.play(begin(of))
    assert sorted(visited) == [0, 1, 2, 3]


def test_a_finished_run_has_no_network_of_classes(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    run = bayesfed.train(mapping("pfedgp"), tmp_path / "out", data=data_dir)
    assert (run.server, run.client(0)) == ({}, {})
    assert set(run.metrics["model"]) == {"personal", "communication", "computation"}
