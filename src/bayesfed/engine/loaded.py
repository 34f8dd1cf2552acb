"""bayesfed in Python and notebooks: train a run, and look at a finished one with its trained networks."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesfed.core import helper_modules, plugins
from bayesfed.core.errors import InputError
from bayesfed.data import partition, prepare, store
from bayesfed.data.augment import on_device
from bayesfed.data.records import SPLITS
from bayesfed.data.source import Source
from bayesfed.engine import checkpoint as checkpoints
from bayesfed.engine.device import Compute
from bayesfed.engine.federation import SERVER, Federation, prefix
from bayesfed.engine.kept import Kept, Networks
from bayesfed.engine.rounds import Progress
from bayesfed.engine.session import Process
from bayesfed.engine.training import Place, assemble
from bayesfed.engine.training import train as train_run
from bayesfed.methods.node import GLOBAL, LOCAL, Bound
from bayesfed.methods.predictors import Predictor
from bayesfed.models import pretrained as pretraining
from bayesfed.runs import run_file, spec
from bayesfed.runs import run_folder as runfolder
from bayesfed.runs.callbacks import OnRound
from bayesfed.runs.described import Run, resolved

if TYPE_CHECKING:
    import pandas as pd

AnyPath = str | os.PathLike[str]

BATCH = 250  # images at once: activations that stay in a CPU's cache
HOST = Compute(torch.device("cpu"))


def train(run: Run | Mapping[str, Any] | AnyPath, out: AnyPath, *, checkpoint: AnyPath | None = None,
          data: AnyPath | None = None, device: str = "auto", precision: str = "auto", executor: str = "auto",
          weights: AnyPath = plugins.WEIGHTS, partitions: AnyPath | None = None,
          on_round: OnRound | None = None) -> LoadedRun:  # fmt: skip
    """Train a run into the folder `out`, and load it.

    `run`: a `bayesfed.Run`, the mapping of a run file, or the path of one. The rest is as with `bayesfed train`: a stopped
    run goes on from its checkpoint, and a finished one is loaded. `data`: the folder with datasets; default: the run's, or
    `data`. A bundled dataset (digits and its kin) is fetched where it is missing; the error for another one names the
    command. `on_round`: a function that is called with a `RoundDone` after every round, and stops the run where it returns
    "stop". Raises InputError for wrong input or another run's folder, on SIGTERM, SIGINT (Ctrl-C) or SIGHUP the
    KeyboardInterrupt `bayesfed.engine.signals.Stopped`, `bayesfed.core.errors.RunStopped` where `on_round` stopped it.
    """
    if on_round is not None and not callable(on_round):
        raise InputError(f"on_round: {on_round!r} is no function; give one of a RoundDone")
    folder = run_folder(out, "out")
    where = Path(checkpoint) if checkpoint is not None else folder / checkpoints.FILE
    data = Path(data if data is not None else run.data if isinstance(run, Run) else plugins.DATA)
    shares = None if partitions is None else Path(partitions)
    place = Place(folder, where, data, device, precision, executor=executor, weights=Path(weights),
                  partitions=shares, on_round=on_round)  # fmt: skip
    with Process() as process:
        train_run(resolved(run, data), place, process)
    return load_run(folder, checkpoint=where, data=data, weights=weights, partitions=partitions)


def run_folder(given: object, name: str) -> Path:
    """Return the run's folder as it was given; raises InputError for what is no path."""
    if not isinstance(given, str | os.PathLike) or not str(given):
        raise InputError(f"{name}: expected the run's folder, found {'an empty text' if given == '' else repr(given)}")
    return Path(given)


def load_run(folder: AnyPath, *, checkpoint: AnyPath | None = None, data: AnyPath = "data",
             weights: AnyPath = plugins.WEIGHTS, plugins: AnyPath | None = None,
             trust: bool = False, partitions: AnyPath | None = None) -> LoadedRun:  # fmt: skip
    """Load the finished run in `folder`, its record verified.

    `checkpoint`: unless given, that in the folder, or the workflow's own for it (`results/<config>/checkpoints/`); only
    networks need it. `data`: the data folder, which `images` needs. `weights`: the folder with the files that networks
    started from, which those with layers that were not trained need. `plugins`: where the run's own plugins are now, if not
    where its run file says, from the working folder; `run`, networks and images need them. `trust`: load networks although
    a file with a plugin has changed, where the plugin itself has not: files count as a whole. `partitions`: the folder of
    partitions, if not that in the data folder. Raises InputError for a folder without a finished run and for a record that
    was changed.
    """
    folder = run_folder(folder, "folder")
    summary = runfolder.finished(folder)
    given = Path(checkpoint) if checkpoint is not None else None
    moved = None if plugins is None else str(Path(plugins))
    shares = None if partitions is None else Path(partitions)
    return LoadedRun(folder, summary, Path(data), given, Path(weights), moved, trust, shares)


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained network, as an ordinary module in fp32 on the host, in evaluation mode, and what its images need."""

    name: str
    network: nn.Module
    source: Source
    run: LoadedRun

    def __repr__(self) -> str:
        return f"TrainedModel({self.name!r} of {str(self.run.folder)!r})"

    def prepare(self, images: NDArray[Any] | Tensor) -> Tensor:
        """Prepare examples for the network, in float32: images (N, C, side, side) or features (N, ...).

        From what the dataset has: images uint8 (N, C, H, W), or features float32 (N, ...).

        Raises InputError for anything else.
        """
        native, shape = np.asarray(images), self.source.shape
        what = f"float32 {('N', *shape)}".replace("'", "") if shape else "uint8 (N, C, H, W)"
        fits = (
            native.dtype == np.float32 and native.shape[1:] == shape
            if shape
            else native.dtype == np.uint8 and native.ndim == 4
        )
        if not fits or not len(native):
            raise InputError(f"{self.source.array}: expected {what}, at least one, found {native.dtype} {native.shape}")
        self.run.take_plugins()  # another run may have had its own in use since
        values = prepare.seen(native, self.source, self.run.training(self.source) if shape else native)
        one = on_device(
            self.source, values, np.zeros(len(values)), augment="none", device=HOST.device, dtype=torch.float32
        )
        return one.plain(torch.arange(len(one)))

    @torch.no_grad()
    def log_probabilities(self, images: NDArray[Any] | Tensor) -> Tensor:
        """Predict log class probabilities (N, classes) of images as the dataset has them; raise InputError as
        `prepare` does.
        """
        pieces = [images[start : start + BATCH] for start in range(0, max(len(images), 1), BATCH)]
        return torch.cat([self.network(self.prepare(piece)).log_softmax(-1) for piece in pieces])


@dataclass(frozen=True)
class LoadedRun:
    """A finished run. Clients are numbered from 0, as in `metrics`.

    Accuracies of its networks equal the recorded ones: exactly for a run in fp32 (`provenance["precision"]`), as far as
    the last bit of a logit may decide between two classes; for one in bf16 or tf32 within that precision's rounding.
    """

    folder: Path
    summary: Mapping[str, Any] = field(hash=False)
    data: Path
    given: Path | None
    weights: Path
    plugins: str | None
    trust: bool = False
    partitions: Path | None = None
    _sources: dict[int, Source] = field(default_factory=dict, init=False, compare=False)  # by task
    _training: dict[str, NDArray[Any]] = field(default_factory=dict, init=False, compare=False)

    def __repr__(self) -> str:
        return f"LoadedRun({str(self.folder)!r})"

    def __reduce__(self) -> tuple[Any, ...]:  # a copy reads again from the folder what it is asked for
        return LoadedRun, tuple(getattr(self, one.name) for one in fields(self) if one.init)

    @cached_property
    def run(self) -> spec.Run:
        """The run file; raises InputError where the run's own plugins are not where it says."""
        return run_file.of_record(self.folder, self.data, self.plugins)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The metric history: columns round, client (a number as text, `global` or `mean`), model, metric, value."""
        import pandas as pd

        return pd.read_csv(io.StringIO(runfolder.metrics(self.folder)), dtype={"client": str})

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Versions, device, precision, executor, fingerprints."""
        return runfolder.provenance(self.folder)

    @property
    def checkpoint(self) -> Path:
        """The file with its tensors; raises InputError if there is none."""
        places = [self.given] if self.given else [self.folder / checkpoints.FILE, *checkpoints.of_workflow(self.folder)]
        for path in places:
            if path.is_file():
                return path
        looked = " nor ".join(map(str, places))
        raise InputError(
            f"{self.folder}: no checkpoint at {looked}; its networks need one: name it by `checkpoint`, `dvc pull` it, or train the run again into another folder; a clone has records alone"
        )

    @cached_property
    def server(self) -> dict[str, TrainedModel]:
        """The server's networks after the last round, by the names of its predictors: `global`.

        Only predictors that are one network; nothing where the server has no whole one.
        """
        node = self._nodes.node(SERVER, self._progress.round)
        node.state = self._progress.server
        predictors = self._nodes.method.server_predictors(node) if node.predicts else []
        return self._named("the server", [one for predictor in predictors for one in self._trained(node, predictor)])

    def client(self, client: int) -> dict[str, TrainedModel]:
        """Return a client's networks as it left them in the last round that it took part in, by the names of its
        predictors.

        Only those that it keeps between rounds, since no other one outlives a run: nothing for FedAvg.
        """
        self._check(client)
        node = self._nodes.node(client, self._progress.round)
        node.state = Kept(self._progress.clients.get(client, {}))
        try:
            predictors = self._nodes.method.client_predictors(node)
        except RuntimeError:  # torch: a tensor that is not there, computed with one that is
            predictors = []
        return self._named(
            f"client {client}", [one for predictor in predictors for one in self._trained(node, predictor)]
        )

    def _named(self, owner: str, found: list[TrainedModel]) -> Networks:
        """Order networks by the names of their predictors."""
        return Networks(f"{owner} of this run of {self.summary['method']}", {one.name: one for one in found})

    def images(self, split: str = "test", client: int | None = None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return images uint8 (N, C, H, W), or features float32 (N, ...), as the dataset has them, whatever the partition
        changes in them, and labels (N,) without noise, of the split `train` or `test`.

        `client`: its own shard alone. Where every client has a dataset of its own, None stands for that of client 0.
        """
        if client is not None:
            self._check(client)
        if split not in SPLITS:
            raise InputError(f"split '{split}': expected one of {', '.join(SPLITS)}")
        self.take_plugins()
        source = self.run.sources[(client or 0) if self.run.multi_task else 0]
        store.fetch_or_check(source, self.data)
        images, labels = self._native(source, split)
        if client is None:
            return images, labels
        shard = self._federation.shards[client]
        own = (shard.train if split == "train" else shard.test).numpy()
        return images[own], labels[own]

    def _check(self, client: object) -> None:
        """Raise InputError for what is no client's number."""
        if not isinstance(client, int | np.integer) or not 0 <= client < self.run.partition.clients:
            raise InputError(f"client {client!r}: this run has clients 0 to {self.run.partition.clients - 1}")

    def _native(self, source: Source, split: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return images and labels of a split as the run has it, which takes it from both where its partition deals
        from both.
        """
        found = {one: store.native(source, one, self.data)[:2] for one in SPLITS}
        how = self.run.partition
        if not self.run.multi_task and how.pooled:
            shares = partition.load(source.name, how, self.run.budget.seed, self.data, self.partitions)
            (train_images, train_labels), (test_images, test_labels) = found["train"], found["test"]
            images = partition.dealt(train_images, test_images, shares)
            labels = partition.dealt(train_labels, test_labels, shares)
            found = dict(zip(found, zip(images, labels, strict=True), strict=True))
        return found[split]

    @cached_property
    def _progress(self) -> Progress:
        """The content of the checkpoint; raises InputError for one from before the end of the run."""
        found = checkpoints.load(self.checkpoint, self.summary["key"], HOST.device)[0]
        last = self.summary["diverged"]["round"] if self.summary["diverged"] else self.summary["rounds"]
        if found.round != last:
            raise InputError(
                f"{self.checkpoint}: this checkpoint is of round {found.round}, and the run in {self.folder} ended with round "
                f"{last}; name its own by `checkpoint`, `dvc pull` it, or train the run again into another folder"
            )
        return found

    @cached_property
    def _nodes(self) -> Federation:
        """The federation without images. No checkpoint holds what is not trained: a network has that from its file."""
        self.take_plugins()
        of = Federation(self.run, [], None, HOST)
        constant = {key for networks in of.networks for key, network in networks.items() if network.constants}
        begun = {key: pretraining.find(self.weights, name) for key, name in self.run.weights if key in constant}
        return Federation(self.run, [], None, HOST, pretrained=begun) if begun else of

    @cached_property
    def _federation(self) -> Federation:
        """The federation with images."""
        self.take_plugins()
        datasets = [store.load(name, self.data, self.run.images) for name in self.run.datasets]
        # Its networks have begun and its tasks are done: neither weights' files nor OOD images are needed any more.
        trained = replace(self.run, weights=(), tasks=spec.Tasks())
        return assemble(trained, Place(self.folder, self.folder, self.data, partitions=self.partitions), HOST, datasets)

    def take_plugins(self) -> None:
        """Take the run's own plugins into use; raise InputError if their sources have changed since, unless trusted."""
        plugins.use(self.run.plugins, self.data)
        if self.trust:
            return
        changed = self.run.changed_plugins(self.provenance.get("plugins", {}))
        changed += helper_modules.changed(self.provenance.get("helpers", {}))
        if changed:
            raise InputError(
                f"{self.folder}: {changed[0]} has changed since this run was trained; put the old one back, or, where all that "
                "the run uses is as it was (a file counts as a whole, other plugins in it too), load it with `trust=True`"
            )

    def _source(self, task: int) -> Source:
        """Return a dataset with its mean and standard deviation, which take its images where they are not given."""
        self.take_plugins()
        if task not in self._sources:
            source = self.run.sources[task]
            whole = source if source.mean else store.load(source.name, self.data, self.run.images).source
            # Dictionaries can be pickled, and the mappings of our own datasets cannot.
            self._sources[task] = replace(whole, parts=dict(whole.parts), fingerprints=dict(whole.fingerprints))
        return self._sources[task]

    def training(self, source: Source) -> NDArray[Any]:
        """Return the features (N, ...) of a dataset's training split, which standardise others."""
        if source.name not in self._training:
            self._training[source.name] = store.native(source, "train", self.data)[0]
        return self._training[source.name]

    def _trained(self, node: Any, predictor: Predictor) -> list[TrainedModel]:
        """Return the network of a node's predictor; none where it is not one network, or a tensor of it was not kept."""
        if predictor.theta is None or predictor.theta.is_meta:
            return []
        name = {node.model: GLOBAL, node.received: GLOBAL, node.local_model: LOCAL}.get(predictor.model)
        name = predictor.model.name if isinstance(predictor.model, Bound) else name
        assert name is not None, "a predictor's model is one of its node's"
        network = self._nodes.networks[max(node.client, 0)][name]
        if len(predictor.theta) != network.parameters:  # of a source that was trusted
            raise InputError(
                f"{self.folder}: model '{network.name}' has {network.parameters} parameters now, and {len(predictor.theta)} "
                "were trained; put the old one back"
            )
        statistics = {key: node[prefix(name) + key] for key in network.statistics}
        gone = predictor.model == node.received  # with the round, in which training has changed them
        if statistics and (gone or any(value.is_meta for value in statistics.values())):
            return []
        source = self._source(max(node.client, 0) if self.run.multi_task else 0)
        return [TrainedModel(predictor.name, network.module(predictor.theta, statistics), source, self)]
