"""Flower's contender: its FedAvg over its simulation, whose clients run in Ray's processes, one a core."""

from collections.abc import Callable

import torch
from flower_client import app, images_of
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from networks import network
from workloads import Workload, chosen, serve

server = ServerApp()


@server.main()
def rounds(grid: Grid, context: Context) -> None:
    """Do a round whenever one is asked for."""

    def build(of: Workload) -> Callable[[], None]:
        part = of.per_round / of.clients
        strategy = FedAvg(fraction_train=part, fraction_evaluate=0.0, min_available_nodes=of.clients)
        model = network(of)
        images, labels = images_of(of, 1, of.test)

        def play() -> None:
            model.load_state_dict(strategy.start(grid, ArrayRecord(model.state_dict()), 1).arrays.to_torch_state_dict())
            with torch.no_grad():
                for x, y in zip(images.split(250), labels.split(250), strict=True):
                    (model(x).argmax(1) == y).sum().item()

        return play

    serve(build)


run_simulation(server, app(chosen()), chosen().clients, backend_config={"client_resources": {"num_cpus": 1}})
