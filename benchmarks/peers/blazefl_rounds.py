"""BlazeFL's contender: its own FedAvg, its single-process trainer, with torch's threads on all cores."""

from collections.abc import Callable

import numpy as np
import torch
from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from blazefl.contrib.fedavg import FedAvgPartitionType
from blazefl.core import ModelSelector, PartitionedDataset
from networks import network
from torch.utils.data import DataLoader, Dataset, TensorDataset
from workloads import Workload, serve


class Shards(PartitionedDataset[FedAvgPartitionType]):
    """Every client's images in memory, as tensors that are ready to train on."""

    def __init__(self, of: Workload) -> None:
        def tensors(images: np.ndarray, labels: np.ndarray) -> TensorDataset:
            return TensorDataset(torch.from_numpy(images).float() / 127.5 - 1, torch.from_numpy(labels))

        self.test = tensors(*of.pixels(of.test, 1))
        self.shards = [tensors(*of.pixels(of.images_each, 2 + client)) for client in range(of.clients)]

    def get_dataset(self, type_: FedAvgPartitionType, cid: int | None) -> Dataset:
        return self.test if cid is None else self.shards[cid]

    def get_dataloader(
        self, type_: FedAvgPartitionType, cid: int | None, batch_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> DataLoader:  # fmt: skip
        return DataLoader(self.get_dataset(type_, cid), batch_size, shuffle=True, generator=generator)


class Selector(ModelSelector):
    """The workload's network, under any name."""

    def __init__(self, of: Workload) -> None:
        self.of = of

    def select_model(self, model_name: str) -> torch.nn.Module:
        return network(self.of)


def build(of: Workload) -> Callable[[], None]:
    """Return what does a round."""
    data, models = Shards(of), Selector(of)
    server = FedAvgBaseServerHandler(
        models, "", data, 10**6, of.clients, of.per_round / of.clients, "cpu", of.batch, seed=0
    )
    trainer = FedAvgBaseClientTrainer(models, "", data, "cpu", of.clients, of.epochs, of.batch, of.lr, seed=0)

    def play() -> None:
        sampled = server.sample_clients()
        trainer.local_process(server.downlink_package(), sampled)
        for package in trainer.uplink_package():
            server.load(package)
        server.get_summary()

    return play


serve(build)
