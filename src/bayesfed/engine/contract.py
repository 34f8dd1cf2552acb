"""What a method gave, held against the contract (`bayesfed.methods.base`): one of a user's own may give anything."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bayesfed.errors import InputError
from bayesfed.methods.base import GLOBAL, Method, Predictor, State


def state(method: Method, part: str, given: object) -> State:
    """Named tensors, as `part` of the method gave them; raises InputError for anything else."""
    if isinstance(given, dict) and all(isinstance(one, Tensor) for one in given.values()):
        return given
    raise refused(method, part, given, "a dict of names to tensors, {} where there are none")


def diagnostics(method: Method, given: object) -> Mapping[str, Tensor]:
    """What `aggregate` gave to log; raises InputError where that is not what the contract says."""
    if isinstance(given, Mapping) and all(isinstance(one, Tensor) and not one.ndim for one in given.values()):
        return given
    raise refused(method, "aggregate", given, "a mapping of names to tensors (), {} where there is nothing to log")


def server_predictors(method: Method, given: object) -> Sequence[Predictor]:
    """What the server predicts with; raises InputError where nothing of it stands for the method."""
    found = predictors(method, "server_predictors", given)
    if found and GLOBAL not in [predictor.name for predictor in found]:
        names = ", ".join(f"'{predictor.name}'" for predictor in found)
        raise InputError(
            f"method '{method.name}': server_predictors gave {names}; name the one that stands for the method '{GLOBAL}'"
        )
    return found


def client_predictors(method: Method, given: object) -> Sequence[Predictor]:
    """What a client predicts with; raises InputError for one that has the name of the server's."""
    found = predictors(method, "client_predictors", given)
    if GLOBAL in [predictor.name for predictor in found]:
        raise InputError(
            f"method '{method.name}': a client's predictor is named '{GLOBAL}', as the server's is; name it otherwise"
        )
    return found


def predictors(method: Method, part: str, given: object) -> Sequence[Predictor]:
    """A list of predictors; raises InputError for anything else."""
    if isinstance(given, Sequence) and all(isinstance(one, Predictor) for one in given):
        return given
    raise refused(method, part, given, "a list of predictors, [] where there are none")


def refused(method: Method, part: str, given: object, expected: str) -> InputError:
    """The error for what is not as the contract says."""
    found = " ".join(repr(given).split())
    return InputError(f"method '{method.name}': {part} gave {found:.80}; expected {expected}")


def shared_generators() -> list[bytes]:
    """The states of the generators that a process shares. No seed of a run sets them, so nothing in a round may draw from
    them: for each there is one of its node (`Learner.noise`)."""
    of_numpy = np.random.get_state(legacy=False)
    words, place = of_numpy["state"]["key"].tobytes(), (of_numpy["state"]["pos"], of_numpy["has_gauss"])
    on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    of_torch = [generator.get_state().numpy().tobytes() for generator in (torch.default_generator, *on_devices)]
    return [repr(random.getstate()).encode(), words + repr(place).encode(), *of_torch]


def check_draws(method: Method, before: list[bytes]) -> None:
    """Raise InputError where a round has drawn from a generator that the process shares, whose states were `before`."""
    for owner, then, now in zip(
        ("Python", "numpy", *["torch"] * len(before)), before, shared_generators(), strict=False
    ):
        if then != now:
            raise InputError(
                f"method '{method.name}': a round drew from {owner}'s own generator, which no seed of a run sets; draw by "
                f"c.noise(like), or from c.generator"
            )
