"""Checks that the parts of a run file fit each other: datasets, networks, method and labelling."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from bayesfed import models
from bayesfed.core import options
from bayesfed.core.errors import InputError, UnfitImages
from bayesfed.data.prepare import COLOUR, GREY
from bayesfed.data.source import Source
from bayesfed.methods.method import Ground, Method
from bayesfed.models.module import ModuleNetwork

if TYPE_CHECKING:
    from bayesfed.runs.spec import Active, Run


def check_fit(run: Run, method: type[Method]) -> None:
    """Refuse what is impossible together: datasets, images for the server, networks, the method and labelling."""
    if (
        run.multi_task
        and not run.shares_convolutions
        and len({(one.classes, one.seen_shape) for one in run.sources}) > 1
    ):
        raise InputError(
            f"models.global: tasks with other classes share only '{models.CONVOLUTIONS}', found '{run.global_model}'"
        )
    if method.unaugmented and (drawn := {one.augment for one in run.sources} - {"none"}):
        raise InputError(f"images.augment: {method.label} is for images as they are, found '{min(drawn)}'; set none")
    check_server_images(run)
    travels, source = check_networks(run), run.sources[0]
    ground = Ground(
        sizes=travels.sizes if travels else [],
        pixels=math.prod(source.seen_shape),
        classes=source.classes,
        clients=run.partition.clients,
        rounds=run.budget.rounds,
        batches=run.budget.local_batches,
        participation=run.budget.participation,
        min_test=run.partition.min_test,
        batchwise=travels is not None and travels.batchwise,
        random=travels is not None and travels.random,
    )
    if why := run.build_method().unfit(ground):
        wrong = f"method '{run.method}': unfit gave {why!r}; expected why in words, or \"\""
        raise InputError(why if isinstance(why, str) else wrong)
    if run.active:
        check_active(run, run.active, method)
    if run.multi_task and run.budget.validation and len(set(run.datasets)) < len(run.datasets):
        raise InputError(
            "validation: clients that hold the same dataset whole would train on each other's validation images; name each "
            "dataset once"
        )
    if run.budget.patience and not run.budget.validation:
        raise InputError(
            "patience: it counts rounds without a better validation accuracy; give a share for validation, too"
        )
    if run.budget.label_noise_kind != "symmetric" and not run.budget.label_noise:
        raise InputError("label_noise_kind: no label is wrong; give a share for label_noise, too")


def check_server_images(run: Run) -> None:
    """Refuse images for the server that nobody has to give."""
    aside, key = run.partition.aside, f"method '{run.method}': server_images"
    needed = options.check(options.plain(run.build_method().server_images()), int, options.Bounds(low=0), key)
    if aside is not None and run.budget.server_images:
        raise InputError(
            f"server_images: {run.budget.server_images}, but the partition sets aside {aside} images; leave it out"
        )
    if aside is not None and needed > aside:
        raise InputError(f"partition.server: {aside} images, but method '{run.method}' needs {needed}")
    if run.multi_task and (count := max(run.budget.server_images, needed)):
        raise InputError(f"server_images: {count} images for the server need clients with a common dataset")


def check_networks(run: Run) -> models.AnyNetwork | None:
    """Refuse networks that do not fit the images, and shared convolutions that are not alike; gives the one that travels,
    None where only convolutions do."""
    travels: models.AnyNetwork | None = None
    pretrained = {run.other_models.get(key, run.global_model): key for key, _ in run.weights}
    if models.CONVOLUTIONS in pretrained:
        raise InputError("weights.global: no whole network is shared here, and only such ones start from a file")
    whole = [] if run.shares_convolutions else [run.global_model]
    shared: list[int] = []  # parameters of each local model's convolutions
    sources, networks = run.sources, dict[tuple[str, int], models.AnyNetwork]()
    # Clients without models of their own are alike.
    for k in range(run.partition.clients if run.multi_task or run.local_models else 1):
        task, own = k if run.multi_task else 0, run.local_models[k : k + 1]
        for name in dict.fromkeys([*whole, *own, *run.other_models.values()]):
            if (name, task) not in networks:
                with a_way_out(sources[task], functools.partial(run.build_model, name)):
                    networks[name, task] = run.build_model(name, sources[task])
                check_network(networks[name, task], run, pretrained.get(name))
            if name in whole:
                travels = networks[name, task]
            if name in own:
                shared.append(networks[name, task].convolution_parameters)
    if run.shares_convolutions and (len(set(shared)) > 1 or 0 in shared):
        found = ", ".join(f"{name} {count}" for name, count in zip(run.local_models, shared, strict=True))
        raise InputError(f"models.local: shared convolutions must have the same shapes, found parameters: {found}")
    return travels


def check_network(network: models.AnyNetwork, run: Run, pretrained: str | None) -> None:
    """Refuse a network that cannot start from a file, or that the run's mini-batches are too small for.

    `pretrained`: the key under `weights` that names its file, if any.
    """
    if isinstance(network, ModuleNetwork):
        check_outputs(network, run)
    elif pretrained:
        raise InputError(
            f"weights.{pretrained}: '{network.name}' is no torch.nn.Module, and only such ones start from a file"
        )
    fewest = [("batch_size", run.budget.batch_size), ("partition.min_train", run.partition.min_train)]
    fewest += [("active.start", run.active.start)] if run.active else []
    for key, value in fewest:
        if network.batchwise and value < 2:
            raise InputError(f"{key}: model '{network.name}' normalises over a mini-batch; take 2 or more, not {value}")


def check_outputs(network: ModuleNetwork, run: Run) -> None:
    """Refuse a module that gives probabilities where logits are wanted, or does not take the run's mini-batches."""
    if network.probabilities and type(run.build_method()).outputs is Method.outputs:
        raise InputError(
            f"model '{network.name}': in {network.probabilities} its outputs are probabilities, none below 0 and of sum 1 for "
            "each image; give logits: leave the softmax at its end out"
        )
    network.try_batch(run.budget.batch_size)


def check_active(run: Run, active: Active, method: type[Method]) -> None:
    """Refuse labelling by what the method does not have, and labelling that never happens."""
    judged = method.server_predictors is not Method.server_predictors and not run.shares_convolutions
    if active.by == "entropy" and not judged:
        raise InputError(f"active.by: method '{run.method}' has no global model to judge images; take 'random'")
    if active.every >= run.budget.rounds:
        raise InputError(f"active.every: {active.every} of {run.budget.rounds} rounds; no more would ever be labelled")


def server_images(run: Run) -> tuple[int, str]:
    """Return how many training images the server wants, and, for a message, who says so."""
    own, of_method = run.budget.server_images, run.build_method().server_images()
    if own >= of_method:
        return own, f"server_images: {own} for the server"
    options = vars(run.build_method().options).items()
    named = " or ".join(f"`{name}`" for name, value in options if value == of_method and value is not True)
    return (
        of_method,
        f"method '{run.method}' has {of_method} images for the server, by its option {named or 'for them'}",
    )


def check_counts(run: Run) -> None:
    """Refuse what the datasets have too few images for, as far as their numbers tell: what labels or sampling decide is
    known when the images are dealt. Nothing is known of a dataset that is still to be fetched."""
    most = [one.train + one.test * run.partition.pooled for one in run.sources]
    if not all(most):
        return
    images, told = max(most), f"dataset '{run.datasets[0]}' has {max(most)} for training"
    run.partition.check_room(run.sources[0].train, run.sources[0].test)
    aside, asked = server_images(run)
    if run.partition.aside is None and 2 * aside > images:
        raise InputError(f"{asked}, but {told}, and at most half may leave the clients")
    if run.active and run.active.start >= run.partition.largest(images):
        raise InputError(
            f"active.start: no client has more than {run.active.start} images ({told}); nothing would be left to label"
        )


@contextlib.contextmanager
def a_way_out(dataset: Source, build: Callable[[Source], object]) -> Iterator[None]:
    """End what a network says inside about the images of a dataset with what can be done.

    `build`: the network for a dataset's images, by which it is tried whether others in number of channels would do.
    """
    try:
        yield
    except UnfitImages as error:
        if dataset.shape:
            told = f"dataset '{dataset.name}' has features of the shape {dataset.shape}; take another network"
            raise InputError(f"{error}; {told}") from None
        raise InputError(f"{error}; images of dataset '{dataset.name}' {remedy(dataset, build)}") from None


def remedy(dataset: Source, build: Callable[[Source], object]) -> str:
    """Return what can be done about a dataset's images that a network does not take."""
    channels = dataset.seen_channels
    have = f"{channels} channel{'s' if channels > 1 else ''}"
    other = {GREY: COLOUR, COLOUR: GREY}.get(channels)
    with contextlib.suppress(InputError):
        if other:
            build(replace(dataset, channels_to=other))
            does = "repeats grey" if other == COLOUR else "takes the luma"
            return f"have {have}, and the network takes {other}: set `images: {{channels: {other}}}` in the run, which {does}"
    if dataset.side == 32:
        return f"are {dataset.side}x{dataset.side} with {have}"
    place = "" if dataset.folder is None else ", or `prepare: resize` in its dataset.yaml"
    return (
        f"are {dataset.side}x{dataset.side} with {have}: where their size is the reason, set `images: {{prepare: resize}}` in "
        f"the run{place} (or `pad`, both to 32x32; `{{resize: SIDE}}` to another side)"
    )
