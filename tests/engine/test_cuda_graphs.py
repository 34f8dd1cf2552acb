"""Recorded steps, as far as graphs played on a CPU can tell."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from helpers.fake_cuda import FakeCuda
from helpers.playing import ALL_STEPS, convolutions, federation, play, tensors

from bayesfed import methods
from bayesfed.core.errors import InputError
from bayesfed.engine.device import Compute
from bayesfed.engine.executors import GraphExecutor, cuda_worker
from bayesfed.engine.executors import cuda_graphs as graphs_module
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.methods.node import Batch, Learner, Phase
from bayesfed.models import convolution, network
from benchmarks.common import starter

Make = Callable[..., dict[str, Any]]
NAMES = [*sorted(methods.ours()), "toy", "toy_phases", "toy_message", "toy_server"]
CURVED: list[dict[str, Any]] = [{"name": "perfedavg", "order": order} for order in ("hf", "exact")]
UNEVEN = {"partition": {"alpha": 0.3, "clients": 4}, "stragglers": 0.5, "local_epochs": 2, "batch_size": 64}


@pytest.fixture(autouse=True)
def without_a_cpu_s_own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """No replay can reach oneDNN's memory, and both sides are to give the same bits."""
    monkeypatch.setattr(convolution, "OWN_WAYS", set[str]())


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The executor records on a CPU."""
    fake = FakeCuda()
    fake.stand_in(monkeypatch)
    monkeypatch.setattr(cuda_worker, "recorder_of", cuda_worker.Recorder)
    return fake


@pytest.fixture
def uneven(mapping: Make, data_dir: Any) -> Callable[..., Federation]:
    """A function that gives a federation with uneven shards, stragglers and mixed networks."""
    return lambda name, **changes: federation(mapping(name, **(UNEVEN | changes)), data_dir, torch.float32)


def assert_equal(found: Progress, expected: Progress) -> None:
    """To the last bit."""
    assert tensors(found).keys() == tensors(expected).keys()
    assert [key for key, tensor in tensors(expected).items() if not torch.equal(tensors(found)[key], tensor)] == []
    assert found.history == expected.history


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("method", [*NAMES, *CURVED], ids=str)
def test_recorded_steps_equal_unrecorded_ones(
    method: str | dict[str, Any], uneven: Callable[..., Federation], request: pytest.FixtureRequest
) -> None:
    """With convolutions for methods that have all kinds of steps between them, and for Hessians."""
    name = method if isinstance(method, str) else method["name"]
    of = uneven(method, local_epochs=1, **(convolutions(name) if method in (*ALL_STEPS, *CURVED) else {}))
    unrecorded = play(of, 2, executor="graphs")
    fake: FakeCuda = request.getfixturevalue("cuda")
    assert_equal(play(of, 2, executor="graphs"), unrecorded)
    assert fake.recordings


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_images_may_lie_either_way(
    layout: torch.memory_format, mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("hbfl", **UNEVEN, **convolutions("hbfl")), data_dir, torch.float64)
    expected = tensors(play(of, 1, executor="graphs"))
    seen = []
    forward = convolution.forward

    def noted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(x.is_contiguous(memory_format=layout))
        return forward(x, *rest)

    monkeypatch.setattr(network, "layout_for", lambda device, dtype: layout)
    monkeypatch.setattr(convolution, "forward", noted)
    found = tensors(play(of, 1, executor="graphs"))
    assert seen
    assert all(seen)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-9)


def test_evicted_recordings_leave_the_rest_alone(
    uneven: Callable[..., Federation], cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, each with room for one of three kinds of networks: recordings go, with their pool, and others come."""
    of = uneven("hbfl")
    whole = play(of, 2, executor="graphs")
    recorded = cuda.recordings
    monkeypatch.setattr(graphs_module, "worker_count", lambda compute: 2)
    monkeypatch.setattr(cuda_worker, "MOST_BUFFERS", 1)
    assert_equal(play(of, 2, executor="graphs"), whole)
    assert cuda.recordings > 2 * recorded


@pytest.mark.parametrize("workers", [2, 16])
def test_all_is_recorded_at_the_start(
    workers: int, uneven: Callable[..., Federation], cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stragglers change the order of clients, and with it their workers and the sizes of last batches there."""
    monkeypatch.setattr(graphs_module, "worker_count", lambda compute: workers)
    monkeypatch.setattr(cuda_worker, "TAIL", 4)  # so that hardly two clients have a last batch of the same form
    play(uneven("hbfl", rounds=4), 4, executor="graphs")
    assert cuda.recordings
    assert cuda.late == 0


def test_the_largest_client_comes_first(uneven: Callable[..., Federation], cuda: FakeCuda) -> None:
    """Its worker's stream has priority over all others, in every round."""
    of = uneven("hbfl", stragglers=0.0)
    trainer, progress, first = Trainer(of, "graphs"), begin(of), []
    executor = cast(GraphExecutor, trainer.executor)
    idle_worker = executor.idle_worker

    def noted(client: int, busy: list[Any]) -> Any:
        worker = idle_worker(client, busy)
        if not busy:
            first.append((client, worker.recorder.stream.priority))
        return worker

    executor.idle_worker = noted  # type: ignore[method-assign]
    for _ in range(3):
        progress = trainer.play(progress)
    largest = max(range(of.clients), key=lambda k: len(of.shards[k].train))
    assert first == [(largest, -1)] * 3
    assert [worker.recorder.stream.priority for worker in executor.workers if worker.recorder] == [-1, 0, 0, 0]


def test_the_device_works_while_the_host_begins_the_next_client(
    uneven: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is all queued by then keeps its worker until all have begun: side by side, not one behind another."""
    heard = list[str]()
    load, step = cuda_worker.CudaWorker.load, cuda_worker.CudaWorker.step

    def loaded(worker: cuda_worker.CudaWorker, job: Any) -> None:
        heard.append(f"client on {id(worker)}")
        load(worker, job)

    def stepped(worker: cuda_worker.CudaWorker, *of: Any) -> None:
        heard.append("step")
        step(worker, *of)

    monkeypatch.setattr(cuda_worker.CudaWorker, "load", loaded)
    monkeypatch.setattr(cuda_worker.CudaWorker, "step", stepped)
    of = uneven("fedavg")
    play(of, 1, executor="graphs")
    begun = [place for place, what in enumerate(heard) if what.startswith("client")]
    assert all(heard[place + 1] == "step" for place in begun)
    assert len({heard[place] for place in begun}) == len(begun) == of.clients


def test_a_checkpoints_order_of_names_needs_no_new_recordings(
    uneven: Callable[..., Federation], cuda: FakeCuda
) -> None:
    of = uneven("hbfl", partition={"alpha": 1.0, "clients": 4}, stragglers=0.0)
    trainer = Trainer(of, "graphs")
    progress = trainer.play(begin(of))
    recorded = cuda.recordings
    for client, state in progress.clients.items():
        assert list(state) != sorted(state)
        progress.clients |= {client: dict(sorted(state.items()))}
    trainer.play(progress)
    assert cuda.recordings == recorded


def test_a_worker_forgets_the_labels_of_the_client_before(uneven: Callable[..., Federation]) -> None:
    """A recording, and a batch that is filled up, read them: they may be classes that the next client does not have."""
    of = uneven("fedavg")
    worker = cuda_worker.CudaWorker(of, ahead=False)
    worker.y.fill_(99)
    worker.index.fill_(99)
    worker.prepare(starter(of)(1))
    assert not worker.y.any()
    assert not worker.index.any()


@pytest.mark.usefixtures("toys")
def test_steps_made_anew_in_every_round_are_refused(
    uneven: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = uneven("toy", rounds=cuda_worker.STEPS + 1)
    step = of.method.step
    monkeypatch.setattr(of.method, "phases", lambda c: [Phase(lambda c, batch: step(c, batch), epochs=1)])
    with pytest.raises(
        InputError, match="method 'toy': its phases have had more than 16 different steps; give methods"
    ):
        play(of, cuda_worker.STEPS + 1, executor="graphs")


@pytest.mark.usefixtures("toys", "cuda")
def test_a_step_that_waits_for_a_value_is_named(
    uneven: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = uneven("toy")
    step = type(of.method).step

    def waiting(method: Any, c: Learner, batch: Batch) -> None:
        float(batch.x.sum())
        step(method, c, batch)

    monkeypatch.setattr(type(of.method), "step", waiting)
    with pytest.raises(
        InputError,
        match=r"method 'toy': a step cannot be recorded as a CUDA graph \(CUDA error: .* capturing\); leave out .* --executor eager$",
    ):
        play(of, 1, executor="graphs")


def test_workers_follow_from_memory_and_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=24 * 2**30))
    assert graphs_module.worker_count(Compute(torch.device("cuda"))) == 16
    assert graphs_module.worker_count(Compute(torch.device("cuda"), slots=3)) == 7
    assert graphs_module.worker_count(Compute(torch.device("cpu"), slots=3)) == 16
