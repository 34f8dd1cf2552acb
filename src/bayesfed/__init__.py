"""bayesfed: check what four papers claim for Bayesian federated learning, by one pipeline.

In Python: `Run` describes a run, `train` trains it, `load_run` gives a finished one, `@register` adds a method of your own
(docs/reference/python.md). All names load what they need when they are first used: the workflow imports this without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesfed import methods as methods
    from bayesfed.core.errors import InputError as InputError
    from bayesfed.core.options import option as option
    from bayesfed.data.fetch import fetch as fetch
    from bayesfed.data.schemes import IID as IID
    from bayesfed.data.schemes import ClassesApart as ClassesApart
    from bayesfed.data.schemes import Dirichlet as Dirichlet
    from bayesfed.data.schemes import DirichletClient as DirichletClient
    from bayesfed.data.schemes import DirichletFloor as DirichletFloor
    from bayesfed.data.schemes import Given as Given
    from bayesfed.data.schemes import Labels5 as Labels5
    from bayesfed.data.schemes import NoiseSkew as NoiseSkew
    from bayesfed.data.schemes import QuantitySkew as QuantitySkew
    from bayesfed.data.schemes import RotationSkew as RotationSkew
    from bayesfed.data.schemes import Shards as Shards
    from bayesfed.data.schemes import TwoClasses as TwoClasses
    from bayesfed.data.schemes import TwoLevel as TwoLevel
    from bayesfed.data.schemes import Whole as Whole
    from bayesfed.engine.loaded import LoadedRun as LoadedRun
    from bayesfed.engine.loaded import TrainedModel as TrainedModel
    from bayesfed.engine.loaded import load_run as load_run
    from bayesfed.engine.loaded import train as train
    from bayesfed.methods.base import Batch as Batch
    from bayesfed.methods.base import Learner as Learner
    from bayesfed.methods.base import Method as Method
    from bayesfed.methods.base import Node as Node
    from bayesfed.methods.base import Phase as Phase
    from bayesfed.methods.base import Predictor as Predictor
    from bayesfed.methods.base import State as State
    from bayesfed.methods.base import Update as Update
    from bayesfed.methods.base import shares as shares
    from bayesfed.methods.base import softmax_average as softmax_average
    from bayesfed.methods.base import softmax_of as softmax_of
    from bayesfed.methods.base import stacked as stacked
    from bayesfed.methods.registered import register as register
    from bayesfed.methods.steps import SGD as SGD
    from bayesfed.methods.steps import Adam as Adam
    from bayesfed.methods.steps import ce_gradient as ce_gradient
    from bayesfed.methods.steps import cross_entropy as cross_entropy
    from bayesfed.methods.steps import grad as grad
    from bayesfed.methods.steps import leaves as leaves
    from bayesfed.report.compare import compare as compare
    from bayesfed.results.paper import Paper as Paper
    from bayesfed.results.paper import paper as paper
    from bayesfed.runs.described import Run as Run
    from bayesfed.runs.names import list_datasets as list_datasets
    from bayesfed.runs.names import list_methods as list_methods
    from bayesfed.runs.names import list_models as list_models
    from bayesfed.runs.names import list_partitions as list_partitions

PLACES = {
    "core.errors": ("InputError",),
    "core.options": ("option",),
    "data.schemes": (
        "ClassesApart", "Dirichlet", "DirichletClient", "DirichletFloor", "Given", "IID", "Labels5", "NoiseSkew",
        "QuantitySkew", "RotationSkew", "Shards", "TwoClasses", "TwoLevel", "Whole",
    ),
    "data.fetch": ("fetch",),
    "engine.loaded": ("LoadedRun", "TrainedModel", "load_run", "train"),
    "methods.base": (
        "Batch", "Learner", "Method", "Node", "Phase", "Predictor", "State", "Update", "shares", "softmax_average", "softmax_of",
        "stacked",
    ),
    "methods.registered": ("register",),
    "methods.steps": ("SGD", "Adam", "ce_gradient", "cross_entropy", "grad", "leaves"),
    "report.compare": ("compare",),
    "results.paper": ("Paper", "paper"),
    "runs.described": ("Run",),
    "runs.names": ("list_datasets", "list_methods", "list_models", "list_partitions"),
}  # fmt: skip
PLACE_OF = {name: place for place, names in PLACES.items() for name in names}

__all__ = sorted([*PLACE_OF, "methods"])
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: the workflow imports this without torch."""
    if name == "methods":
        return importlib.import_module("bayesfed.methods")
    if name not in PLACE_OF:
        raise AttributeError(f"module 'bayesfed' has no attribute '{name}'")
    return getattr(importlib.import_module(f"bayesfed.{PLACE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
