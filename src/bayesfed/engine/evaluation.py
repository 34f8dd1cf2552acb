"""Measurements of a round: who is tested on which images, and what is made of the predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.data.augment import Features, Images
from bayesfed.engine import method_checks
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.methods.node import GLOBAL, SAMPLED, Node
from bayesfed.methods.predictors import Predictor
from bayesfed.metrics.classification import Predictions, accuracy, bins, further, uncertainty
from bayesfed.metrics.detection import detection, entropy, fpr95
from bayesfed.runs.run_folder import Row
from bayesfed.runs.summary import LAST, PASSES

DETAILED_EVERY = 10  # rounds between evaluations of everything beyond the plain accuracies
DETAILED_CLIENTS = 20  # at most so many clients of such a round, evenly spaced, are tested on the full test set
MEAN = "mean"  # stands for a client in rows of all clients of a round together


@dataclass(frozen=True)
class Reading:
    """A row whose value is still on the device, so that the host need not wait for it."""

    client: str
    model: str
    metric: str
    value: Tensor


class Evaluation:
    """The tests of one round."""

    def __init__(self, federation: Federation, round_number: int, participants: Sequence[int]) -> None:
        """`participants`: the clients of the round."""
        self.federation, self.participants = federation, participants
        budget = federation.run.budget
        self.detailed = round_number == federation.rounds or round_number % DETAILED_EVERY == 0
        self.final = round_number == federation.rounds
        self.late = round_number > federation.rounds - LAST
        self.every = budget.clients_on_test == "round"
        sparse = 1 if self.every else -(-len(participants) // DETAILED_CLIENTS)
        self.on_all = set(participants[::sparse] if self.detailed or self.every else [])  # the test images
        self.best: dict[int, dict[str, Tensor]] = {k: {} for k in participants}  # of epochs, by client and predictor
        self.predicts = False  # whether anything has predicted
        self.off: list[tuple[str, Tensor]] = []  # how far probabilities were from adding up to 1, by predictor
        self.numbers: dict[tuple[int, str], Tensor] = {}  # whether all were numbers, by node and what has predicted
        self.passes: dict[str, int] = {}  # of each predictor of clients, in the last round
        # What clients' models predict of their validation images, and the labels, by model and client.
        self.validated: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def epoch_test(self, client: int) -> Callable[[Node], None] | None:
        """If the method asks for it, return a test of a client after an epoch and keep the best accuracy of each
        model.
        """
        method, shard, best = self.federation.method, self.federation.shards[client], self.best[client]
        if not method.evaluate_each_epoch() or not len(shard.test):
            return None

        def test(c: Node) -> None:
            for predictor in method_checks.client_predictors(method, method.client_predictors(c)):
                if not predictor.sampled:
                    predicted = self.predict(c.client, predictor, shard.test_images, shard.test)
                    value = accuracy(predicted, shard.test_images.labels[shard.test])
                    best[predictor.name] = torch.maximum(best.get(predictor.name, value), value)

        return test

    def of_client(self, c: Node) -> list[Reading]:
        """Measure a client that has trained."""
        method = self.federation.method
        best = [Reading(str(c.client), m, "epoch_shard_accuracy", v) for m, v in self.best[c.client].items()]
        predictors = method_checks.client_predictors(method, method.client_predictors(c))
        on_all = c.client in self.on_all
        measured = best + self.of_predictors(c, predictors, on_all)
        # After all else, so that nothing else is drawn in another order than without it.
        return measured + (self.tasks_of_samples(c.client, predictors) if self.final and on_all else [])

    def of_server(self, server: Node) -> list[Reading]:
        """Measure the server at the end of the round, and its model on the clients' shards."""
        if not server.predicts:
            return []
        method = self.federation.method
        predictors = method_checks.server_predictors(method, method.server_predictors(server))
        whole = (
            not self.federation.run.multi_task
        )  # else clients' tests are of several sets, and their shards are these
        return self.of_predictors(server, predictors, whole, self.shards())

    def shards(self) -> Sequence[int]:
        """Return the clients on whose shards the server's model is tested: those of the round, and in detailed rounds
        and the last ones all.
        """
        everyone = range(self.federation.clients)
        if self.detailed:
            return everyone
        if not self.late:
            return self.participants
        # Those of the round first: what is drawn for their predictions does not depend on the others.
        return [*self.participants, *(k for k in everyone if k not in self.participants)]

    def of_predictors(
        self, node: Node, predictors: Sequence[Predictor], on_all: bool, on: Sequence[int] = ()
    ) -> list[Reading]:
        """Take all metrics of a node's predictors that are due this round; `on_all`: on the full test set, too.

        `on`: the clients on whose shards the server's model is tested.
        """
        node.reseed("predict")
        self.predicts |= bool(predictors)
        shard = self.federation.shards[node.client]
        is_server = node.client == SERVER
        who = "global" if is_server else str(node.client)
        due = {"test"} if on_all else set()
        due |= {"shard"} if not is_server and len(shard.test) else set()
        readings = []
        for predictor in predictors:
            sets = due.intersection(predictor.sets) if self.detailed or not predictor.sampled else set()
            predicted: dict[str, tuple[Tensor, Tensor]] = {}
            labels = shard.test_images.labels
            if "test" in sets:
                everything = torch.arange(len(labels), device=labels.device)
                predicted["test"] = self.predict(node.client, predictor, shard.test_images, everything), labels
            if "shard" in sets and "test" in sets:  # a shard is a part of the test set
                predicted["shard"] = predicted["test"][0][shard.test], labels[shard.test]
            elif "shard" in sets:
                own = self.predict(node.client, predictor, shard.test_images, shard.test)
                predicted["shard"] = own, labels[shard.test]
            for name, (log_probabilities, truth) in predicted.items():
                method_checks.check_shape(
                    self.federation.method, predictor.name, log_probabilities, len(truth), node.classes
                )
                self.off.append((predictor.name, method_checks.off_one(log_probabilities)))
                values = {"accuracy": accuracy(log_probabilities, truth)}
                if self.detailed:
                    of = Predictions(log_probabilities, truth)
                    values |= uncertainty(of) | further(of)
                if self.detailed and name == "test":
                    values |= self.tasks(node.client, predictor, log_probabilities, truth)
                readings += [Reading(who, predictor.name, f"{name}_{key}", value) for key, value in values.items()]
            ours = is_server and predictor.name in (GLOBAL, GLOBAL + SAMPLED)
            if ours and "test" in predicted and self.final:
                readings += reliability(predictor.name, *predicted["test"])
            readings += self.count_passes(is_server, predictor)
            readings += self.validate(node.client, predictor)
            if predictor.name == GLOBAL and "shard" in predictor.sets:
                readings += self.on_shards(predictor, predicted["test"][0] if "test" in predicted else None, on)
        return readings

    def tasks_of_samples(self, client: int, predictors: Sequence[Predictor]) -> list[Reading]:
        """Take the run's tasks of a client's averages over weight samples, which see the full test set for them alone:
        it is many passes.
        """
        readings, asked = [], self.federation.run.tasks.mistakes or self.federation.foreign
        for predictor in predictors if asked else ():
            if predictor.sampled and "test" not in predictor.sets:
                images = self.federation.shards[client].test_images
                everything = torch.arange(len(images.labels), device=images.labels.device)
                found = self.tasks(
                    client, predictor, self.predict(client, predictor, images, everything), images.labels
                )
                readings += [Reading(str(client), predictor.name, f"test_{key}", value) for key, value in found.items()]
        return readings

    def count_passes(self, is_server: bool, predictor: Predictor) -> list[Reading]:
        """Say how many passes a prediction takes, in the last round; that of clients is kept for `over_clients`."""
        if not self.final:
            return []
        if is_server:
            return [Reading("global", predictor.name, PASSES, torch.tensor(float(predictor.passes)))]
        self.passes[predictor.name] = predictor.passes
        return []

    def validate(self, client: int, predictor: Predictor) -> list[Reading]:
        """Test a predictor on the node's validation images, the server's on those of all clients.

        What a client's model predicts of its own is kept for `over_clients`.
        """
        shard = self.federation.shards[client]
        images, own = shard.train_images, shard.validation
        if not len(own) or (predictor.sampled and not self.detailed):
            return []
        predicted = self.predict(client, predictor, images, own, " of its validation images"), images.labels[own]
        if client == SERVER:
            return validation("global", predictor.name, *predicted)
        self.validated.setdefault(predictor.name, {})[client] = predicted
        return []

    def predict(
        self, client: int, predictor: Predictor, images: Images | Features, indices: Tensor, of: str = ""
    ) -> Tensor:
        """Predict for a client or the server, and note whether all of it are numbers.

        `of`: which images, where they are not those of the run's test set.
        """
        found = self.federation.predict(predictor, images, indices)
        what = client, f"prediction by its model '{predictor.name}'{of}"
        self.numbers[what] = ~found.isnan().any() & self.numbers.get(what, True)
        return found

    def tasks(self, client: int, predictor: Predictor, on_test: Tensor, truth: Tensor) -> dict[str, Tensor]:
        """Measure how well entropy tells wrong predictions from right ones, and OOD images from the run's own, as the
        run asks.

        on_test: the predicted log probabilities (n, classes) of the full test set with the labels truth (n,). AUROC as
        mean and sd over resamplings, FPR95 of all images.
        """
        asked: dict[str, tuple[Tensor, Tensor]] = {}  # by task: scores, and which are to be told from the rest
        own = entropy(on_test)
        if self.federation.run.tasks.mistakes:
            asked["mistakes"] = own, on_test.argmax(-1) != truth
        for name, images in self.federation.foreign.items():
            everything = torch.arange(len(images), device=own.device)
            predicted = self.predict(client, predictor, images, everything, f" of images of '{name}'")
            scores = torch.cat([own, entropy(predicted)])
            asked[f"foreign_{name}"] = scores, torch.arange(len(scores), device=own.device) >= len(own)
        found: dict[str, Tensor] = {}
        for name, (scores, positive) in asked.items():
            mean, sd = detection(scores, positive, self.federation.resamplings(len(scores)))
            found |= {f"auroc_{name}": mean, f"auroc_{name}_sd": sd, f"fpr95_{name}": fpr95(scores, positive)}
        return found

    def on_shards(self, predictor: Predictor, on_test: Tensor | None, clients: Sequence[int]) -> list[Reading]:
        """Measure the accuracy of a predictor of the server on the test images of each of the clients.

        `on_test`: what it has predicted on the server's test set, of which a shard is a part unless every client has a
        dataset of its own.
        """
        images, readings = self.federation.shards[SERVER].test_images, []
        for k in clients:
            shard = self.federation.shards[k]
            if not len(shard.test):
                continue
            if on_test is not None and shard.test_images is images:
                predicted = on_test[shard.test]
            else:
                predicted = self.predict(SERVER, predictor, shard.test_images, shard.test)
            value = accuracy(predicted, shard.test_images.labels[shard.test])
            readings.append(Reading(str(k), predictor.name, "shard_accuracy", value))
        return readings

    def over_clients(self, readings: Sequence[Reading], q: Mapping[int, Tensor]) -> list[Reading]:
        """Return what is measured of all clients of the round together.

        The passes of each model, in the last round; its validation metrics, on the validation images of all of them. If
        clients are tested every round, also sum_k q_k of the accuracies on the full test set of each model that all were
        tested with: FOLA's LA.
        """
        together = [
            Reading(MEAN, model, PASSES, torch.tensor(float(count))) for model, count in sorted(self.passes.items())
        ]
        for model, of_clients in self.validated.items():
            of_each = [of_clients[k] for k in self.participants if k in of_clients]
            classes = max(predicted.shape[-1] for predicted, _ in of_each)
            # Clients of other datasets may have fewer classes: of the rest none is likely.
            wide = [
                (F.pad(found, (0, classes - found.shape[-1]), value=-math.inf), labels) for found, labels in of_each
            ]
            together += validation(MEAN, model, *(torch.cat(parts) for parts in zip(*wide, strict=True)))
        found: dict[str, list[Tensor]] = {}
        for reading in readings if self.every else ():
            if reading.metric == "test_accuracy" and reading.client != "global":
                found.setdefault(reading.model, []).append(q[int(reading.client)] * reading.value)
        return together + [
            Reading(MEAN, model, "test_accuracy", torch.stack(values).sum())
            for model, values in found.items()
            if len(values) == len(q)
        ]

    def finiteness(self) -> dict[tuple[str, str], Tensor]:
        """Return whether all predictions were numbers, by node and what has predicted."""
        return {
            ("server" if client == SERVER else str(client), what): flag
            for (client, what), flag in sorted(self.numbers.items(), key=lambda one: one[0])
        }

    def check(self) -> None:
        """Raise InputError where nothing has predicted, or not in probabilities."""
        method_checks.check_predictions(self.federation.method, self.predicts, self.off)


def validation(who: str, model: str, log_probabilities: Tensor, labels: Tensor) -> list[Reading]:
    """Accuracy, NLL and ECE on validation images, from log probabilities (n, classes) and labels (n,)."""
    measured = uncertainty(Predictions(log_probabilities, labels))
    values = {"accuracy": accuracy(log_probabilities, labels), "nll": measured["nll"], "ece": measured["ece"]}
    return [Reading(who, model, f"validation_{name}", value) for name, value in values.items()]


def reliability(model: str, log_probabilities: Tensor, labels: Tensor) -> list[Reading]:
    """Return the bins of a model of the server as rows `reliability_<bin>_<what>`, bins from 1."""
    return [
        Reading("global", model, f"reliability_{number}_{what}", value)
        for what, values in vars(bins(Predictions(log_probabilities, labels))).items()
        for number, value in enumerate(values, start=1)
    ]


def rows(round_number: int, readings: Sequence[Reading]) -> list[Row]:
    """Return the measurements with their values on the host, fetched in one go."""
    if not readings:
        return []
    device = next((reading.value.device for reading in readings if reading.value.device.type != "cpu"), None)
    values = torch.stack([reading.value.to(device, torch.float64) for reading in readings]).tolist()
    return [Row(round_number, r.client, r.model, r.metric, value) for r, value in zip(readings, values, strict=True)]
