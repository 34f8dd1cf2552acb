"""fedjax's contender: its federated averaging, whose clients' steps XLA compiles."""

from collections.abc import Callable

import fedjax
import jax
import numpy as np
from workloads import Workload, serve


def build(of: Workload) -> Callable[[], None]:
    """Return what does a round."""
    create = {"two_convs": fedjax.models.emnist.create_conv_model, "mlp": fedjax.models.emnist.create_dense_model}
    model = create[of.network](only_digits=True)
    gradient = fedjax.model_grad(model)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient, fedjax.optimizers.sgd(of.lr), fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=of.batch, num_epochs=of.epochs),
    )  # fmt: skip
    clients = {}
    for client in range(of.clients):
        images, labels = of.pixels(of.images_each, 2 + client)
        clients[client] = {"x": images.transpose(0, 2, 3, 1).astype(np.float32) / 127.5 - 1, "y": labels}
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), of.per_round, seed=0
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def play() -> None:
        nonlocal state
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)

    return play


serve(build)
