"""pfl-research's contender: its FederatedAveraging over its simulated backend."""

import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from networks import network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from workloads import Workload, serve


def loss(self: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return a mini-batch's cross-entropy ()."""
    self.train()
    return F.cross_entropy(self(images), labels)


def build(of: Workload) -> Callable[[], None]:
    """Return what does a round."""
    module = network(of)
    module.loss, module.metrics = types.MethodType(loss, module), lambda images, labels: {}
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    shards = {}
    for client in range(of.clients):
        images, labels = of.pixels(of.images_each, 2 + client)
        shards[client] = Dataset([torch.from_numpy(images).float() / 127.5 - 1, torch.from_numpy(labels)])
    users = FederatedDataset(shards.__getitem__, get_user_sampler("random", list(shards)))
    backend, algorithm, rounds = SimulatedBackend(users, val_data=None), FederatedAveraging(), 0
    hyperparameters = NNTrainHyperParams(
        local_num_epochs=of.epochs, local_learning_rate=of.lr, local_batch_size=of.batch
    )

    def play() -> None:
        nonlocal rounds
        rounds += 1
        asked = NNAlgorithmParams(rounds, 10**6, of.per_round, val_cohort_size=None)
        algorithm.run(asked, backend, model, hyperparameters, send_metrics_to_platform=False)

    return play


serve(build)
