"""fluke's contender: its FedAvg, whose clients train one after another with torch's threads on all cores."""

from collections.abc import Callable

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataContainer, DataSplitter
from fluke.evaluation import ClassificationEval
from networks import network
from workloads import Workload, serve


def build(of: Workload) -> Callable[[], None]:
    """Return what does a round."""
    FlukeENV().set_evaluator(ClassificationEval(eval_every=1, n_classes=of.classes))
    FlukeENV().set_eval_cfg(server=True, pre_fit=False, post_fit=False, locals=False)
    tensors = []
    for count, seed in ((of.clients * of.images_each, 2), (of.test, 1)):
        images, labels = of.pixels(count, seed)
        tensors += [torch.from_numpy(images).float() / 127.5 - 1, torch.from_numpy(labels)]
    client = DDict(
        batch_size=of.batch, local_epochs=of.epochs, loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=of.lr), scheduler=DDict(gamma=1, step_size=1),
    )  # fmt: skip
    asked = DDict(client=client, server=DDict(weighted=True), model=network(of))
    algorithm = FedAVG(of.clients, DataSplitter(DataContainer(*tensors, of.classes)), asked)

    def play() -> None:
        algorithm.run(1, of.per_round / of.clients, finalize=False)

    return play


serve(build)
