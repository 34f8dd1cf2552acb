"""Flower's clients, in a module that Ray's processes can import."""

from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from networks import network
from workloads import Workload


@cache
def images_of(of: Workload, number: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels as a process keeps them."""
    images, labels = of.pixels(count, number)
    return torch.from_numpy(images).float() / 127.5 - 1, torch.from_numpy(labels)


def app(of: Workload) -> ClientApp:
    """Return clients that train on the workload's images, with one thread each."""
    made = ClientApp()

    @made.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = network(of)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), of.lr)
        images, labels = images_of(of, 2 + int(context.node_config["partition-id"]), of.images_each)
        for _ in range(of.epochs):
            for batch in torch.randperm(len(labels)).split(of.batch):
                optimiser.zero_grad()
                F.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimiser.step()
        sent = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
        return Message(content=RecordDict(sent), reply_to=message)

    return made
