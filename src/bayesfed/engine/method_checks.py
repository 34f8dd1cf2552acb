"""Checks of what a method gives against the contract (`bayesfed.methods.base`): one of a user's own may give anything."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayesfed.core.errors import InputError, nearest
from bayesfed.methods.method import Method, Update
from bayesfed.methods.node import GLOBAL, Phase, State
from bayesfed.methods.predictors import Predictor
from bayesfed.runs.summary import COMMUNICATION, COMPUTATION, PASSES

NAME = re.compile(r'[^,"\r\n]+')  # of a predictor, and of what is logged
MEASURED = ("test_", "shard_", "epoch_shard_", "validation_", "reliability_", PASSES)  # how metrics of predictors begin
ROWS = ("server", COMMUNICATION, COMPUTATION)  # models of rows of metrics.csv that are of no predictor
SETS = {"test", "shard"}
TOLERANCE = 0.05  # of a sum of probabilities


def check_parameters(method: Method) -> None:
    """Raise InputError where a part of the method takes other arguments than the engine gives."""
    for part, ours in vars(Method).items():
        if part.startswith("_") or not inspect.isfunction(ours):
            continue
        if part == "step" and type(method).phases is not Method.phases:
            continue  # its phases say what is called
        _, *wanted = inspect.signature(ours).parameters
        found = inspect.signature(getattr(method, part))
        try:
            found.bind(*wanted)
        except TypeError:
            raise InputError(
                f"method '{method.name}': {part} takes ({', '.join(found.parameters)}) beside self; expected ({', '.join(wanted)})"
            ) from None


def state(method: Method, part: str, given: object) -> State:
    """Named tensors, as `part` of the method gave them; raises InputError for anything else."""
    if isinstance(given, dict):
        others = [name for name, one in given.items() if not isinstance(one, Tensor)]
        if not others:
            return given
        kind = type(given[others[0]]).__name__
        raise InputError(f"method '{method.name}': {part} gave '{others[0]}' as a {kind}; expected a tensor")
    raise refused(method, part, given, "a dict of names to tensors, {} where there are none")


def check_message(method: Method, message: State, versions: Mapping[str, int]) -> None:
    """Raise InputError where `start` has changed a tensor of its message, which may be the server's own."""
    if changed := [name for name, tensor in message.items() if tensor._version != versions[name]]:
        raise InputError(
            f"method '{method.name}': start changes '{changed[0]}' of its message in place, which other clients have, too; clone "
            "it first"
        )


def phases(method: Method, given: object) -> Sequence[Phase]:
    """Check a client's phases; raise InputError for anything else, and for mini-batches of another size than the
    run's where they are counted.
    """
    for one in (found := list_of_phases(method, "phases", given)):
        if one.batch_size and (one.counted or one.batches):
            raise InputError(
                f"method '{method.name}': phases gave one with batch_size {one.batch_size}; a client's phase may have its own "
                "with counted=False and epochs, and takes the run's else"
            )
    return found


def list_of_phases(method: Method, part: str, given: object) -> Sequence[Phase]:
    """Return phases, as `part` of the method gave them; raise InputError for anything else."""
    if not (isinstance(given, Sequence) and all(isinstance(one, Phase) for one in given)):
        raise refused(method, part, given, "a list of phases, [] where there are none")
    return given


def diagnostics(method: Method, given: object) -> Mapping[str, Tensor]:
    """Check what `aggregate` gave to log; raise InputError where that is not what the contract says."""
    if isinstance(given, Mapping) and all(isinstance(one, Tensor) and not one.ndim for one in given.values()):
        for name in given:
            check_name(method, name)
            if name.startswith(MEASURED):
                raise InputError(
                    f"method '{method.name}': aggregate logs '{name}', which begins as a metric does; rename it"
                )
        return given
    raise refused(method, "aggregate", given, "a mapping of names to scalar tensors, {} where there is nothing to log")


def unlike(updates: Sequence[Update], shapes: Mapping[str, Sequence[int]]) -> str:
    """Describe the tensor of a client whose shape is not that of the server's of that name, or of the first client's;
    "" if there is none.
    """
    expected = dict(shapes)
    for update in updates:
        for name, tensor in update.values.items():
            if tensor.shape != expected.setdefault(name, tensor.shape):
                return (
                    f"client {update.client}'s finish gave '{name}' of the shape {tuple(tensor.shape)}; expected "
                    f"{tuple(expected[name])}"
                )
    return ""


def server_predictors(method: Method, given: object) -> Sequence[Predictor]:
    """Check what the server predicts with; raise InputError if nothing of it is `global`, or what `predictive` names."""
    found = predictors(method, "server_predictors", given)
    known = [predictor.name for predictor in found]
    if found and GLOBAL not in known:
        names = ", ".join(f"'{name}'" for name in known)
        raise InputError(
            f"method '{method.name}': server_predictors gave {names}; name the one that stands for the method '{GLOBAL}'"
        )
    if found and method.predictive and method.predictive not in known:
        raise InputError(
            f"method '{method.name}': its `predictive` is '{method.predictive}'; {nearest(method.predictive, known)}"
        )
    return found


def client_predictors(method: Method, given: object) -> Sequence[Predictor]:
    """Check what a client predicts with; raise InputError for one that has the name of the server's, and for an average over
    weight samples that is not tested where clients are compared.
    """
    found = predictors(method, "client_predictors", given)
    if GLOBAL in [predictor.name for predictor in found]:
        raise InputError(
            f"method '{method.name}': a client's predictor is named '{GLOBAL}', as the server's is; name it otherwise"
        )
    for predictor in found:
        if predictor.sampled and "shard" not in predictor.sets:
            raise InputError(
                f"method '{method.name}': a client's predictor '{predictor.name}' has the sets {predictor.sets!r}; clients are "
                "compared on their own test images: give ('shard',)"
            )
    return found


def predictors(method: Method, part: str, given: object) -> Sequence[Predictor]:
    """Check a list of predictors; raise InputError for anything else."""
    if not (isinstance(given, Sequence) and all(isinstance(one, Predictor) for one in given)):
        raise refused(method, part, given, "a list of predictors, [] where there are none")
    names = [predictor.name for predictor in given]
    for number, predictor in enumerate(given):
        check_name(method, predictor.name)
        if predictor.name in ROWS:
            raise InputError(
                f"method '{method.name}': a predictor is named '{predictor.name}', as what else is measured; rename it"
            )
        if predictor.name in names[:number]:
            raise InputError(f"method '{method.name}': {part} gave two predictors named '{predictor.name}'; rename one")
        if not predictor.sets or not set(predictor.sets) <= SETS:
            raise InputError(
                f"method '{method.name}': predictor '{predictor.name}' has the sets {predictor.sets!r}; expected some of "
                f"{', '.join(sorted(SETS))}"
            )
    return given


def check_name(method: Method, name: object) -> None:
    """Raise InputError for the name of a predictor, or of what is logged, that cannot be in metrics.csv."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise InputError(
            f"method '{method.name}': {name!r} names a predictor or what is logged; expected a text without commas, quotes "
            "and line ends"
        )


def check_shape(method: Method, name: str, given: Tensor, n: int, classes: int) -> None:
    """Raise InputError where a predictor of that name gave n images another shape than one row an image, one column a
    class."""
    if given.shape != (n, classes):
        raise InputError(
            f"method '{method.name}': predictor '{name}' gave a tensor {tuple(given.shape)} for {n} images of {classes} "
            f"classes; expected log probabilities ({n}, {classes})"
        )


def off_one(log_probabilities: Tensor) -> Tensor:
    """Return how far the probabilities (n, classes) of an image are from adding up to 1 at most, a tensor (); 0 for
    NaN.
    """
    return (log_probabilities.exp().sum(-1) - 1).abs().nan_to_num(0.0).amax()


def check_predictions(method: Method, any_predictor: bool, off: Sequence[tuple[str, Tensor]]) -> None:
    """Raise InputError where a round had no predictor, or one whose probabilities do not add up to 1: names, and
    `off_one`."""
    if not any_predictor:
        raise InputError(
            f"method '{method.name}': neither its server nor its clients predict anything; define server_predictors"
        )
    values = torch.stack([by for _, by in off]).tolist() if off else []
    for (name, _), by in zip(off, values, strict=True):
        if by > TOLERANCE:
            raise InputError(
                f"method '{method.name}': predictor '{name}' gives no log probabilities, their exponentials do not add up to 1; "
                "take log_softmax of its logits"
            )


def refused(method: Method, part: str, given: object, expected: str) -> InputError:
    """Return the error for what is not as the contract says."""
    found = " ".join(repr(given).split())
    return InputError(f"method '{method.name}': {part} gave {found:.80}; expected {expected}")


def check_messages(method: Method, before: Tensor, now: Tensor) -> None:
    """Raise InputError where `message` has drawn from the server's generator, whose states are given: who is sent what would
    depend on the order of the clients."""
    if not torch.equal(before, now):
        raise InputError(
            f"method '{method.name}': message drew from the server's generator, and clients come in any order; draw in "
            "init_server or aggregate and keep it in the state, or in the client's start"
        )
