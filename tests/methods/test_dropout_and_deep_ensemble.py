"""MC dropout and the deep ensemble under FedAvg, against FedAvg itself and networks written out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play
from torch import nn

from bayesfed.core.errors import InputError
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Progress
from bayesfed.methods.fedavg_dropout import FedAvgDropout
from bayesfed.methods.node import Node

Make = Callable[..., dict[str, Any]]


def server_of(of: Federation, progress: Progress) -> Node:
    """The server after these rounds."""
    node = of.node(SERVER, progress.round)
    node.state = progress.server
    return node


@pytest.mark.parametrize(
    ("name", "options"), [("fedavg_dropout", {"rate": 0.0}), ("fedavg_deep_ensemble", {"members": 1})]
)
@pytest.mark.parametrize("shared", [{}, {"optimizer": "adam", "lr": 0.001, "clip": 0.5, "optimizer_state": "kept"}])
def test_without_its_part_it_is_fedavg(
    name: str, options: dict[str, Any], shared: dict[str, Any], mapping: Make, data_dir: Path
) -> None:
    plain = play(federation(mapping({"name": "fedavg", **shared}), data_dir, torch.float32), 2).server["theta"]
    found = play(federation(mapping({"name": name, **options, **shared}), data_dir, torch.float32), 2).server["theta"]
    assert torch.equal(found.flatten(), plain)


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_a_mask_drops_what_a_fully_connected_layer_sees(model: str, mapping: Make, data_dir: Path) -> None:
    """The module with masks on the inputs of its linear layers, whose entries are 0 or 1/(1 - rate), 1 in the mean."""
    of = federation(mapping({"name": "fedavg_dropout", "rate": 0.3}, models={"global": model}, images={}), data_dir)
    method, c = of.method, of.node(0, 1)
    assert isinstance(method, FedAvgDropout)
    theta = c.initial()
    units = method.units(c, theta)
    drawn = torch.stack([method.mask(c, units) for _ in range(100)])
    assert drawn.unique().tolist() == pytest.approx([0, 1, 1 / 0.7])
    by_unit = torch.stack([drawn[:, units["unit"] == unit][:, 0] for unit in range(1, 60)])
    assert float(by_unit.mean()) == pytest.approx(1, abs=4 * (0.3 / 0.7) ** 0.5 / by_unit.numel() ** 0.5)

    d = drawn[0]
    x = of.splits[0][0].plain(torch.arange(5))
    module = of.networks[0]["global"].module(theta, {}).double()
    torch.nn.utils.vector_to_parameters(theta, module.parameters())
    place, masks = 0, []
    for part in module.modules():
        if isinstance(part, nn.Linear):
            row = d[place : place + part.in_features]
            assert torch.equal(d[place : place + part.weight.numel()], row.repeat(part.out_features))
            masks.append(part.register_forward_pre_hook(lambda _, given, row=row: (given[0] * row,)))
        own = [value.numel() for value in part.parameters(recurse=False)]
        if own and not isinstance(part, nn.Linear):
            assert torch.equal(d[place : place + sum(own)], torch.ones(sum(own), dtype=d.dtype))
        place += sum(own)
    assert len(masks) == 3
    torch.testing.assert_close(c.model(d * theta, x), module(x), rtol=1e-10, atol=1e-12)


def test_dropout_trains_on_masked_weights(mapping: Make, data_dir: Path) -> None:
    """Of the gradient with respect to theta, autograd through the mask; masks differ from step to step."""
    from bayesfed.methods.node import Batch

    of = federation(mapping("fedavg_dropout"), data_dir)
    method, c = of.method, of.node(0, 1)
    assert isinstance(method, FedAvgDropout)
    c.state = method.start(c, {"theta": c.initial()})
    batch = Batch(of.splits[0][0].plain(torch.arange(20)), of.splits[0][0].labels[:20])
    found = [method.gradient(c, batch) for _ in range(2)]
    c.reseed("noise")
    for g in found:
        theta = c["theta"].clone().requires_grad_()
        loss = nn.functional.cross_entropy(c.model(theta * method.mask(c, c.state), batch.x), batch.y)
        torch.testing.assert_close(g, torch.autograd.grad(loss, theta)[0], rtol=1e-9, atol=1e-12)
    assert not torch.equal(*found)


def test_dropout_predicts_with_and_without_masks(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fedavg_dropout", "samples": 3}, rounds=1), data_dir)
    server = server_of(of, play(of, 1))
    method = of.method
    assert isinstance(method, FedAvgDropout)
    x = of.splits[0][1].plain(torch.arange(30))
    mean, sampled = method.server_predictors(server)
    assert (mean.name, sampled.name, sampled.passes) == ("global", "global_sampled", 3)
    server.reseed("noise")
    with torch.no_grad():
        found = sampled.log_probabilities(x)
        assert torch.equal(mean.log_probabilities(x), server.model(server["theta"], x).log_softmax(-1))
        server.reseed("noise")
        units = method.units(server, server["theta"])
        each = [server.model(server["theta"] * method.mask(server, units), x).softmax(-1) for _ in range(3)]
    torch.testing.assert_close(found.exp(), sum(each) / 3, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("unwatched", "modules")
def test_a_networks_own_dropout_trains_as_fedavg_and_predicts(mapping: Make, data_dir: Path) -> None:
    """Behind the residual network's dropout is a linear layer, so that its logits in the mean are those without."""
    own: dict[str, Any] = {"models": {"global": "residual"}, "images": {}}
    of = federation(mapping({"name": "fedavg_dropout", "masks": "network", "samples": 3}, **own), data_dir)
    progress = play(of, 2)
    plain = play(federation(mapping("fedavg", **own), data_dir), 2)
    assert torch.equal(progress.server["theta"], plain.server["theta"])
    server = server_of(of, progress)
    before = {name: tensor.clone() for name, tensor in server.state.items()}
    x = of.splits[0][1].plain(torch.arange(30))
    _, sampled = of.method.server_predictors(server)
    server.reseed("predict")
    found = sampled.log_probabilities(x)
    server.reseed("predict")
    each = [server.dropped(server["theta"], x).softmax(-1) for _ in range(3)]
    torch.testing.assert_close(found.exp(), sum(each) / 3, rtol=1e-10, atol=1e-12)
    assert (sampled.name, sampled.passes, sampled.sets) == ("global_sampled", 3, ("test",))
    assert not torch.allclose(each[0], each[1])
    many = server.dropped(server["theta"], x[:1].expand(4000, -1, -1, -1))
    with torch.no_grad():
        mean = server.model(server["theta"], x[:1])[0]
    assert ((many.mean(0) - mean).abs() < 5 * many.std(0) / 4000**0.5).all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in server.state.items())


def test_without_dropout_layers_there_are_no_passes_with_dropout(mapping: Make, data_dir: Path) -> None:
    with pytest.raises(InputError, match=r"^method\.masks: network, but the network has no dropout; take inputs, or"):
        federation(mapping({"name": "fedavg_dropout", "masks": "network"}), data_dir)
    of = federation(mapping("fedavg"), data_dir)
    c = of.node(0, 1)
    x = of.splits[0][1].plain(torch.arange(3))
    with torch.no_grad():
        assert torch.equal(c.dropped(c.initial(), x), c.model(c.initial(), x))


def test_dropout_needs_a_fully_connected_layer() -> None:
    method = FedAvgDropout(FedAvgDropout.Options())
    node = type("Convolutions", (), {"shapes": {"global": [(6, 1, 5, 5), (6,)]}})
    with pytest.raises(InputError, match=r"^models\.global: 'fedavg_dropout' needs a network with a fully connected"):
        method.units(node, torch.zeros(156))  # type: ignore[arg-type]


def test_the_deep_ensemble_mixes_members_of_their_own(mapping: Make, data_dir: Path) -> None:
    """Member 0 begins and trains as FedAvg does; others begin by the same law, apart; the mixture's NLL is no more than
    the members' mean."""
    of = federation(mapping({"name": "fedavg_deep_ensemble", "members": 3}), data_dir)
    begun = of.method.init_server(of.node(SERVER, 0))["theta"]
    assert begun.shape == (3, of.networks[0]["global"].parameters)
    assert all(not torch.isclose(begun[0], other).any() for other in begun[1:])
    torch.testing.assert_close(begun.std(1), begun[0].std().expand(3), rtol=0.05, atol=0)
    progress = play(of, 2)
    plain = play(federation(mapping("fedavg"), data_dir), 2).server["theta"]
    torch.testing.assert_close(progress.server["theta"][0], plain, rtol=1e-12, atol=1e-12)
    server = server_of(of, progress)
    x, y = of.splits[0][1].plain(torch.arange(30)), of.splits[0][1].labels[:30]
    (ensemble,) = of.method.server_predictors(server)
    assert (ensemble.name, ensemble.passes) == ("global", 3)
    with torch.no_grad():
        each = torch.stack([server.model(theta, x).softmax(-1) for theta in server["theta"]])
        mixed = ensemble.log_probabilities(x)
    torch.testing.assert_close(mixed.exp(), each.mean(0), rtol=1e-10, atol=1e-12)
    nll = -each.log().gather(-1, y[None, :, None].expand(3, -1, 1)).mean()
    assert float(-mixed.gather(-1, y[:, None]).mean()) <= float(nll)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "what"), [("fedavg_deep_ensemble", "a deep ensemble"), ("fedavg_ensemble", "an ensemble of clients")]
)
def test_ensembles_refuse_batchnorm(name: str, what: str, mapping: Make, data_dir: Path) -> None:
    with pytest.raises(InputError, match=rf"^models\.global: {what} needs a network without BatchNorm"):
        federation(mapping(name, models={"global": "normalised"}), data_dir)
