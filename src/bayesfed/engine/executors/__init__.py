"""Ways to run the steps of many clients; a method's file serves all of them."""

from __future__ import annotations

from bayesfed.engine.executors.base import Executor, Job, run_plainly
from bayesfed.engine.executors.cuda_graphs import GraphExecutor
from bayesfed.engine.executors.eager import EagerExecutor
from bayesfed.engine.executors.stacked import StackedExecutor
from bayesfed.engine.executors.threads import ThreadExecutor

__all__ = [
    "DEFAULT",
    "EXECUTORS",
    "EagerExecutor",
    "Executor",
    "GraphExecutor",
    "Job",
    "StackedExecutor",
    "ThreadExecutor",
    "run_plainly",
]

EXECUTORS: dict[str, type[Executor]] = {
    one.name: one for one in (EagerExecutor, ThreadExecutor, GraphExecutor, StackedExecutor)
}
DEFAULT = {"cpu": ThreadExecutor.name, "cuda": GraphExecutor.name}  # by device
