"""Every executor leaves behind what the eager one does, for every method, and so does every number of threads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.playing import ALL_STEPS, convolutions, federation, play, tensors

from bayesfed import methods
from bayesfed.core.errors import InputError
from bayesfed.engine import gpu_sharing
from bayesfed.engine.batches import CHUNK, Mixer
from bayesfed.engine.executors import EXECUTORS, EagerExecutor, Job, cpu_worker, cuda_worker, stacked
from bayesfed.engine.executors import cuda_graphs as graphs_module
from bayesfed.engine.executors.base import Result
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.methods import fedgvi
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.node import Batch, Learner, Node, Phase, State

Make = Callable[..., dict[str, Any]]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
NAMES = [*sorted(methods.ours()), "toy", "toy_phases", "toy_message", "toy_server"]
# Largest difference to eager in the parameters of two rounds, relative to their norm. Batches that are filled up
# are summed in another order, which training then carries on.
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2}


def assert_same(found: Progress, expected: Progress, bound: float) -> None:
    for name, tensor in tensors(expected).items():
        difference = (tensors(found)[name] - tensor).double().norm() / tensor.double().norm().clamp(min=1e-12)
        assert difference <= bound, f"{name} differs by {float(difference):.1e}"
    assert [(r.round, r.client, r.model, r.metric) for r in found.history] == [
        (r.round, r.client, r.model, r.metric) for r in expected.history
    ]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def workers(count: int) -> Iterator[None]:
    """So many workers: for every client, or fewer than clients and than kinds of networks, so that they are built anew.
    Clients are stacked however uneven they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs_module, "worker_count", lambda compute: count)
        patch.setattr(stacked, "RAGGED", 0.0)
        patch.setattr(cuda_worker, "MOST_BUFFERS", 1 if count == 2 else 8)
        yield


def on(executor: str, of: Federation, rounds: int = 2) -> Progress:
    """So many rounds. Clients side by side need two threads; operators of the others do with one, since two tests share two
    cores, and threads that wait for each other then take many times as long."""
    torch.set_num_threads(2 if executor == "threads" else 1)
    try:
        return play(of, rounds, executor=executor)
    finally:
        torch.set_num_threads(1)


def assert_executors_agree(
    make: Callable[[torch.dtype], Federation], device: str, casts: Sequence[torch.dtype] = tuple(BOUNDS)
) -> None:
    """Every executor leaves what the eager one does: two rounds in the highest precision, one in each of the others.

    How many workers there are is a question for recorded graphs alone and none of precision, and a CPU has no graphs: it
    goes through their workers in the highest precision, through two of them where all precisions are asked for. Stacks,
    whose tracing takes seconds, have a test of their own.
    """
    every = EXECUTORS.keys() - ({"eager"} if device == "cuda" else {"eager", "stacked"})
    for cast in casts:
        highest = cast == torch.float64
        of, rounds = make(cast), 2 if highest else 1
        eager = play(of, rounds)
        with workers(gpu_sharing.WORKERS):
            for other in every if highest or device == "cuda" else every - {"graphs"}:
                assert_same(on(other, of, rounds), eager, BOUNDS[cast])
        if highest and len(casts) > 1:
            with workers(2):
                assert_same(on("graphs", of, rounds), eager, BOUNDS[cast])


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("name", NAMES)
def test_every_executor_is_eager_to_rounding(
    name: str, device: str, mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uneven shards (alpha 0.3), stragglers, mixed networks, batches smaller than the rest. On a CPU convolutions for
    methods alone that have all kinds of steps between them, and the lower precisions for two of these."""
    monkeypatch.setattr(fedgvi, "SAMPLES", 5)
    whole = device == "cuda" or name in ALL_STEPS
    casts = tuple(BOUNDS) if device == "cuda" or name in ("hbfl", "toy_phases") else (torch.float64,)
    changes = {"partition": {"alpha": 0.3, "clients": 4}, "stragglers": 0.5, "local_epochs": 2, "batch_size": 24}
    changes |= convolutions(name) if whole else {}
    assert_executors_agree(lambda cast: federation(mapping(name, **changes), data_dir, cast, device), device, casts)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "model"), [("fola", "mlp"), ("fola", "lenet5"), ("fola", "smooth"), ("fedcurv", "lenet5")]
)
def test_every_executor_squares_single_images(name: str, model: str, device: str, mapping: Make, data_dir: Any) -> None:
    """Of layers, convolutions and a module, in batches that are filled up, too.

    On a CPU the lower precisions for the module.
    """
    changes = {"partition": {"alpha": 0.3, "clients": 4}, "batch_size": 24, "models": {"global": model}}
    asked = mapping({"name": name, "squares": "images"}, **changes)
    casts = tuple(BOUNDS) if device == "cuda" or model == "smooth" else (torch.float64,)
    assert_executors_agree(lambda cast: federation(asked, data_dir, cast, device), device, casts)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedbe", "distribution": "dirichlet", "sharpen": 1.0},
        {"name": "fedppd_distill", "distribution": "gaussian", "floor": 1e-8},
        {"name": "fedswag", "rank": 2},
        {"name": "pfedgp", "embedding": "unit"},
    ],
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_every_executor_serves_options(method: dict[str, Any], device: str, mapping: Make, data_dir: Any) -> None:
    """Those whose steps or hooks are others than by default."""
    changes = {"partition": {"alpha": 0.3, "clients": 4}, "stragglers": 0.5, "local_epochs": 3, "batch_size": 24}
    asked = mapping(method, **changes)
    assert_executors_agree(lambda cast: federation(asked, data_dir, cast, device), device, [torch.float64])


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedlap", "proximal": "norm"},
        {"name": "bayesadmm", "server": "mean"},
        {"name": "fedgvi", "alpha": 1.0, "delta": 0.0},
        {"name": "fedivon", "prior": "server"},
        {"name": "gaussian", "inference": "bbb", "layers": 1},
        {"name": "gaussian", "personal": [1.0]},
        {"name": "fedep", "covariance": "laplace"},
        {"name": "fedep", "covariance": "mcmc"},
        {"name": "fedep", "cavity": "sep"},
    ],
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_every_executor_serves_options_of_gaussians(
    method: dict[str, Any], device: str, mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose steps or hooks are others than by default, with the smallest network: layers are no matter of theirs."""
    monkeypatch.setattr(fedgvi, "SAMPLES", 5)
    changes = {"partition": {"alpha": 0.3, "clients": 4}, "stragglers": 0.5, "local_epochs": 2, "batch_size": 24}
    asked = mapping(method, **changes, models={"global": "softmax"})
    assert_executors_agree(lambda cast: federation(asked, data_dir, cast, device), device, [torch.float64])


@pytest.mark.parametrize("name", ["hbfl", "fml", "independent"])
def test_every_executor_serves_several_tasks(name: str, device: str, mapping: Make, data_dir: Any) -> None:
    several = {
        "dataset": ["few", "few-parity"], "partition": {"scheme": "whole", "clients": 2},
        "models": {"global": "convolutions", "local": ["lenet5", "lenet5"]},
    }  # fmt: skip
    method = {"name": name} if name == "independent" else {"name": name, "evaluate": "epoch"}
    asked = mapping(method, **several)
    assert_executors_agree(lambda cast: federation(asked, data_dir, cast, device), device, [torch.float64])


def test_threads_change_nothing(mapping: Make, data_dir: Any) -> None:
    """With no more threads than clients every operator has one thread, and results are the same to the bit."""
    of = federation(mapping("hbfl", **convolutions("hbfl")), data_dir, torch.float32)
    eager = tensors(play(of, 2))
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            found = tensors(play(of, 2, executor="threads"))
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(1)
        assert all(torch.equal(found[name], tensor) for name, tensor in eager.items() if not name.startswith("server"))
        assert all(torch.allclose(found[name], tensor) for name, tensor in eager.items())


def test_results_come_for_every_client_and_the_one_with_most_work_starts_first(mapping: Make, data_dir: Any) -> None:
    models = {"global": "mlp", "local": ["mlp", "lenet5", "mlp", "lenet5"]}
    of = federation(mapping("fml", partition={"alpha": 0.3, "clients": 4}, models=models), data_dir, torch.float32)
    begun: list[int] = []

    class Noting(EagerExecutor):
        def run(
            self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
        ) -> Iterator[Result]:
            begun.extend(clients)
            return super().run(clients, begin, end)

    trainer = Trainer(of, "eager")
    trainer.executor = Noting(of)
    trainer.play(begin(of))
    work = [len(of.shards[k].train) * sum(model.operations for model in of.networks[k].values()) for k in begun]
    assert sorted(begun) == [0, 1, 2, 3]
    assert work == sorted(work, reverse=True)
    assert begun != sorted(begun, key=lambda k: -len(of.shards[k].train))


class Noisy(FedAvg):
    """Draws when a round begins, and in each step."""

    def start(self, c: Node, message: State) -> State:
        state = super().start(c, message)
        state["theta"].add_(0.01 * c.noise(state["theta"]))
        return state

    def step(self, c: Learner, batch: Batch) -> None:
        c["theta"].add_(0.01 * c.noise(c["theta"]))
        super().step(c, batch)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_noise_goes_on_from_what_was_drawn_before_the_steps(executor: str, mapping: Make, data_dir: Any) -> None:
    of = federation(mapping("fedavg", rounds=1), data_dir)
    of.method = Noisy(FedAvg.Options())
    assert_same(on(executor, of, 1), on("eager", of, 1), BOUNDS[torch.float64])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_message_that_draws_is_refused(executor: str, mapping: Make, data_dir: Any) -> None:
    of = federation(mapping("fedavg", rounds=1), data_dir)
    of.method.message = lambda server, client: {"theta": server["theta"] + server.noise(server["theta"])}  # type: ignore[method-assign]
    with pytest.raises(
        InputError, match="'fedavg': message drew from the server's generator, and clients come in any order"
    ):
        on(executor, of, 1)


def test_states_of_many_shapes_do_not_fill_the_memory(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_worker, "MEMORY", 1000)
    worker = cpu_worker.CpuWorker(federation(mapping(), data_dir))
    for entries in range(50, 60):
        node = SimpleNamespace(state={"theta": torch.ones(entries)}, n=torch.ones(()), generator=torch.Generator(), client=0, round=1,
                               rounds=1, learner=lambda: SimpleNamespace())  # fmt: skip
        worker.load(node, ())  # type: ignore[arg-type]
        assert torch.equal(node.state["theta"], torch.ones(entries))
        assert sum(buffers.state["theta"].nbytes for buffers in worker.buffers.values()) <= 1000


def test_chunks_hold_each_image_once_an_epoch(mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHUNK, "cpu", 70)  # two batches of 32
    of = federation(mapping(partition={"alpha": 100.0, "clients": 2}), data_dir, torch.float64)
    shard = of.shards[0]
    chunks = list(Mixer(of, of.node(0, 1)).epoch(shard))
    assert [len(chunk.y) for chunk in chunks[:-1]] == [64] * (len(chunks) - 1)
    assert [chunk.ends_epoch for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    seen = torch.cat([chunk.x for chunk in chunks]).flatten(1).sum(1).sort().values
    torch.testing.assert_close(seen, shard.train_images.plain(shard.train).flatten(1).sum(1).sort().values)
    limited = list(Mixer(of, of.node(0, 1)).epoch(shard, 96))
    assert [len(chunk.y) for chunk in limited] == [64, 32]


def test_a_filled_up_batch_has_the_mean_of_its_images() -> None:
    values = torch.tensor([1.0, 5.0, 9.0, 9.0])
    batch = Batch(values, values, torch.tensor([0.5, 0.5, 0.0, 0.0]))
    assert (batch.mean(values), batch.size) == (3.0, 2.0)
    whole = Batch(values, values)
    assert (whole.mean(values), whole.size) == (6.0, 4.0)


@pytest.mark.usefixtures("toys")
def test_a_step_sees_a_learner_and_may_not_put_in_new_tensors(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("toy"), data_dir, torch.float32)

    def check(c: Learner, batch: Batch) -> None:
        assert not isinstance(c, Node)
        assert not hasattr(c, "round")

    monkeypatch.setattr(of.method, "step", check)
    play(of, 1)

    def rebind(c: Node) -> None:
        c["theta"] = c["theta"].clone()

    monkeypatch.setattr(of.method, "phases", lambda c: [Phase(check, epochs=1, epoch_end=rebind)])
    with pytest.raises(TypeError, match="item assignment"):
        play(of, 1, executor="graphs")


@pytest.mark.usefixtures("toys")
def test_a_phase_on_the_servers_images_needs_some(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("toy"), data_dir, torch.float32)
    monkeypatch.setattr(of.method, "phases", lambda c: [Phase(of.method.step, batches=3, data="server")])
    for executor in EXECUTORS:
        with pytest.raises(InputError, match="server_images: method 'toy' trains on the server's images"):
            play(of, 1, executor=executor)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_image_is_left_out_of_training_alone(
    executor: str, mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a network normalises over mini-batches, and an epoch's last one would be of one image."""
    iid = {"scheme": "iid", "clients": 2, "images_each": 57, "server": 0, "min_test": 0}
    changes = {"models": {"global": "normalised"}, "partition": iid, "batch_size": 28}
    of = federation(mapping(**changes), data_dir, torch.float32)

    def count(c: Learner, batch: Batch) -> None:
        c["theta"][0].add_(batch.size)

    for evaluates, images in ((False, 56), (True, 57)):
        phase = Phase(count, epochs=1, evaluates=evaluates)
        monkeypatch.setattr(of.method, "phases", lambda c, phase=phase: [phase])
        start = begin(of)
        found = play(of, 1, start, executor).server["theta"] - start.server["theta"]
        assert found[0].item() == pytest.approx(images)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_single_image_cannot_be_normalised_over(executor: str, mapping: Make, data_dir: Any) -> None:
    method = {"name": "perfedavg", "adapt": "test"}
    of = federation(mapping(method, models={"global": "normalised"}), data_dir, torch.float32)
    of.shards[2].test = of.shards[2].test[:1]
    with pytest.raises(
        InputError, match=r"partition\.min_test: a network that normalises .* a single image; set it to 2"
    ):
        play(of, 1, executor=executor)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("name", ["fedavg", "hbfl", "fml", "pfedbayes"])
def test_every_executor_trains_modules(name: str, device: str, mapping: Make, data_dir: Any) -> None:
    """Batch normalisation and dropout in one network, group normalisation and noise in another; last batches of one.

    On a CPU the lower precisions for HBFL alone."""
    changes: dict[str, Any] = {
        "partition": {"alpha": 0.3, "clients": 4},
        "local_epochs": 2,
        "models": {"global": "residual"},
    }
    if methods.get(name).local_models:
        changes["models"]["local"] = ["residual", "grouped", "lenet5", "grouped"]
    sizes = [len(federation(mapping(name, **changes), data_dir).shards[k].train) for k in range(4)]
    changes["batch_size"] = max(sizes) - 1  # its second batch would be of one image
    assert any(
        key.startswith("server/model:norm") for key in tensors(play(federation(mapping(name, **changes), data_dir), 1))
    )
    casts = tuple(BOUNDS) if device == "cuda" or name == "hbfl" else (torch.float64,)
    assert_executors_agree(lambda cast: federation(mapping(name, **changes), data_dir, cast, device), device, casts)


@pytest.mark.usefixtures("modules")
def test_statistics_are_averaged_by_the_weights_of_the_clients(mapping: Make, data_dir: Any) -> None:
    of = federation(mapping(models={"global": "residual"}), data_dir)
    sent: dict[int, Any] = {}

    class Noting(EagerExecutor):
        def run(
            self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
        ) -> Iterator[Result]:
            def noting(job: Job) -> Result:
                sent[job.node.client] = job.node["model:norm.running_mean"].clone()
                return end(job)

            return super().run(clients, begin, noting)

    trainer = Trainer(of, "eager")
    trainer.executor = Noting(of)
    after = trainer.play(begin(of))
    n = [len(of.shards[k].train) for k in range(4)]
    expected = sum(count / sum(n) * sent[k] for k, count in enumerate(n))
    torch.testing.assert_close(after.server["model:norm.running_mean"], expected, rtol=0, atol=1e-12)
