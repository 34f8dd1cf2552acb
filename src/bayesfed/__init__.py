"""bayesfed: check what four papers claim for Bayesian federated learning, by one pipeline.

In Python: `bayesfed.train(run, out)` trains a run, `bayesfed.load_run(folder)` gives a finished one (`engine/loaded.py`).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesfed.engine.loaded import LoadedRun, TrainedModel, load_run, train

__all__ = ["LoadedRun", "TrainedModel", "load_run", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a name of `engine/loaded.py` when it is first asked for: the workflow imports this without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'bayesfed' has no attribute '{name}'")
    from bayesfed.engine import loaded

    return getattr(loaded, name)
