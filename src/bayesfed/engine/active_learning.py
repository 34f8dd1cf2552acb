"""Active learning in a federation: which of its images each client has labels of, and which are labelled next.

Every client has its own pool and its own budget (FedPPD, Algorithm 5); training goes on from the server's model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.engine.evaluation import Evaluation
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.methods.node import GLOBAL, Node
from bayesfed.methods.predictors import Predictor
from bayesfed.metrics.detection import entropy

Labelled = dict[int, Tensor]  # of each client: the indices (n,) of its labelled training images, in the order they came


def first(federation: Federation) -> Labelled:
    """Label images before the first round: as many random images of every client's shard as the run says, all of one
    that has no more; nothing without active learning. Raises InputError where no client has more.
    """
    active, seed = federation.run.active, federation.run.budget.seed
    if active is None:
        return {}
    found = {}
    for client in range(federation.clients):
        own = federation.whole[client].train
        order = rng.generator(seed, "labelling", 0, client).permutation(len(own))[: active.start]
        found[client] = own.cpu()[torch.from_numpy(order)]
    if all(len(found[k]) == len(federation.whole[k].train) for k in found):
        raise InputError(f"active.start: no client has more than {active.start} images; nothing would be left to label")
    return found


def due(federation: Federation, round_number: int) -> bool:
    """Return whether images are labelled at the end of a round, for the next."""
    active, rounds = federation.run.active, federation.run.budget.rounds
    return active is not None and round_number < rounds and round_number % active.every == 0


def more(federation: Federation, labelled: Labelled, server: Node, evaluation: Evaluation) -> Labelled:
    """Label more images after a round whose server is given: of every client the next images of its pool as well.

    `evaluation`, the round's, notes whether what the server's model predicts of them are numbers. Where entropy decides,
    ties go by the order of the shard. Raises InputError as `judge` does.
    """
    active = federation.run.active
    assert active is not None
    scored = judge(federation, server) if active.by == "entropy" else None
    found = {}
    for client, before in labelled.items():
        shard = federation.whole[client]
        own = shard.train.cpu()
        pool = own[~torch.isin(own, before)]
        if not len(pool):
            found[client] = before
            continue
        if scored is None:
            stream = rng.generator(federation.run.budget.seed, "labelling", server.round, client)
            order = torch.from_numpy(stream.permutation(len(pool)))
        else:
            there = pool.to(shard.train.device)
            scores = entropy(evaluation.predict(SERVER, scored, shard.train_images, there, " of images to label"))
            order = scores.cpu().argsort(descending=True, stable=True)
        found[client] = torch.cat([before, pool[order[: active.add]]])
    return found


def judge(federation: Federation, server: Node) -> Predictor:
    """Return the server's model; raises InputError for a method without one."""
    server.reseed("predict")
    for predictor in federation.method.server_predictors(server) if server.predicts else ():
        if predictor.name == GLOBAL:
            return predictor
    raise InputError(f"active.by: method '{federation.method.name}' has no global model to judge images; take 'random'")
