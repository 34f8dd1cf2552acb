"""CUDA graphs played on a CPU: what a step does is recorded operator by operator, and replayed without its Python.

So a step that a GPU could not record, or that leans on Python between its calls, is found without one. The rules of
torch's own graphs, which break a run when they are broken, are kept by assertions.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Stream:
    """A stream; `workspaces` counts how often the end of a graph has freed what cuBLAS had there (torch 2.13)."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.priority = priority
        self.workspaces = 0
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1

    def wait_stream(self, other: "Stream") -> None:
        pass


class Pool:
    """A pool of memory, and how many graphs it has and has had."""

    def __init__(self) -> None:
        self.graphs = self.ever = 0


class Operators(TorchDispatchMode):
    """Notes every operator with its arguments and results, while they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.spoilt = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.spoilt = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Graph:
    """A recording; as torch's, it is gone when nothing refers to it."""

    def __init__(self, cuda: "FakeCuda") -> None:
        self.cuda, self.generators = cuda, list[torch.Generator]()

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def capture_begin(self, pool: Pool, capture_error_mode: str) -> None:
        assert self.generators, "noise would not follow the generator"
        assert not gc.isenabled(), "an earlier graph that is freed now spoils the recording"
        assert not pool.ever or pool.graphs, "torch refuses a pool whose last graph has gone"
        self.pool, self.stream = pool, self.cuda.current
        assert self.stream.waits, "the worker's own work is waited for"
        pool.graphs, pool.ever = pool.graphs + 1, pool.ever + 1
        self.workspaces = self.stream.workspaces
        self.cuda.recordings += 1
        self.cuda.late += self.cuda.replaying
        self.operators = Operators()
        self.operators.__enter__()

    def capture_end(self) -> None:
        self.operators.__exit__(None, None, None)
        if self.operators.spoilt:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    @torch.no_grad()
    def replay(self) -> None:
        self.cuda.replaying = True
        assert self.stream is self.cuda.current, "replayed on another worker"
        assert self.workspaces == self.stream.workspaces, "its workspace was freed with another graph"
        for func, args, kwargs, result in self.operators.calls:
            for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def __del__(self) -> None:
        self.pool.graphs -= 1
        self.stream.workspaces += 1


def refuse(what: str) -> Callable[..., None]:
    """A function that must not be called."""

    def called(*args: object) -> None:
        raise AssertionError(f"{what} holds up every worker")

    return called


class FakeCuda:
    """What stands in for torch.cuda."""

    def __init__(self) -> None:
        self.recordings = self.late = 0  # late: after the first replay
        self.replaying = False
        self.default = self.current = Stream()

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take torch.cuda's place in a test."""
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", Pool)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(self))
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, refuse(name))
