"""What a call of `bayesfed compare` is told before its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayesfed.core import plugins
from bayesfed.plan.compared import Planned, Request
from bayesfed.report import call_notice
from bayesfed.report.call_notice import by_default, notice, tuned_for, untuned

PROJECT = Path(__file__).parents[2]
AXES = {"dataset": ["digits"], "models.global": ["mlp200"], "partition.alpha": [0.1], "method": ["FedAvg", "FedProx"]}
PAPER = {
    "methods": {"FedAvg": {"name": "fedavg"}, "FedProx": {"name": "fedprox"}, "BNFed": {"name": "bnfed"}},
    "given": [{"where": {"dataset": "digits", "method": "FedAvg"}, "methods": {"FedAvg": {"lr": 0.02}}}],
    "experiments": {"digits-harsh": {"axes": AXES}},
}


@pytest.fixture(autouse=True)
def plugins_of_the_examples() -> Iterator[None]:
    plugins.use(PROJECT / "examples/own_plugins")
    yield
    plugins.use(None)


def call(*methods: str, **more: Any) -> Request:
    ground = {} if more else {"grounds": ("digits-harsh",)}
    return Request(methods=methods, paper=PAPER, **ground, **more)


def test_whose_options_are_the_defaults_beside_searched_ones() -> None:
    assert by_default(call("own_feddyn", "fedavg")) == ["FedDyn"]
    assert by_default(call("fedprox", "bnfed")) == ["BNFed"]  # which the comparison has, and not on this ground
    assert by_default(call("fedprox:mu=1", "fedprox:mu=1,lr=0.1")) == ["FedProx mu=1"]  # whose rate is the default
    assert by_default(call("own_feddyn:alpha=0.1/1")) == []
    on_searched = call("own_feddyn", "fedavg", dataset="digits")
    assert by_default(on_searched) == ["FedDyn"]
    assert not untuned(on_searched)


def test_on_data_without_searches_all_have_defaults() -> None:
    request = call("own_feddyn", dataset="mnist", model="mlp200")
    assert untuned(request)
    assert (by_default(request), tuned_for(request)) == ([], "")
    assert notice(Planned(request, [], {}, [])) == call_notice.UNTUNED


def test_options_that_were_chosen_for_another_network_are_told() -> None:
    assert tuned_for(call("fedavg", dataset="digits")) == ""
    other = call("fedavg", dataset="digits", model="lenet5")
    assert tuned_for(other) == "mlp200"
    assert "were chosen for mlp200, not for this network" in notice(Planned(other, [], {}, []))


def test_seeds_without_records_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planned, "stored", {"digits-harsh": [0, 1]})
    planned = Planned(call("fedavg"), [], {}, [])
    assert notice(planned) == (
        "digits-harsh: most methods have records of seeds 0 and 1 alone, so yours are compared on these"
    )
    monkeypatch.setattr(Planned, "stored", {"digits-harsh": [0]})
    assert "of seed 0 alone" in notice(planned)
    assert (
        notice(Planned(Request(methods=("fedavg",), paper=PAPER, grounds=("digits-harsh",), seeds=1), [], {}, [])) == ""
    )
