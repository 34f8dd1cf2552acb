"""The benchmarks' own arithmetic, and the pages' numbers, which must be theirs. No times are asserted."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import calibration_bins, headline, pages
from analyses.hbfl import assumptions_figure, class_bias, finished_runs, sampled_partitions, shard_sizes
from bayesfed.data.schemes import Partition
from bayesfed.engine.batches import Mixer
from bayesfed.models import convolution, network
from bayesfed.results.paired import signed
from bayesfed.results.run_records import RunRecord
from benchmarks import augment, common, cores, kernels


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda path: path.name)
def test_pages_are_what_the_commands_write(page: Path) -> None:
    """After a benchmark, a change of options or commands, or a run in results/paper and `make report CONFIG=paper`:
    `python -m analyses.pages`."""
    assert pages.written(page) == page.read_text(encoding="utf-8")


def test_the_headline_is_of_the_records() -> None:
    """HBFL on CIFAR-10 at Dirichlet alpha 0.05, counted by hand from its rows."""
    line = headline.of_hbfl("0.05")
    (cell,) = (row for row in headline.rows("hbfl", "claims", line.claim) if row["dataset"] != "all")
    assert cell["difference"].startswith("-")
    assert headline.judged(line) == (f"**contradicted** 0/{cell['of']}", float(cell["difference"]))
    row = next(one for one in headline.table_of_claims().splitlines() if "CIFAR-10, α = 0.05" in one)
    assert f": {signed(float(cell['difference']), 2)} |" in row
    assert "(FML): +11.43 |" in row


def test_a_page_without_its_marker_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# No marker\n")
    monkeypatch.setitem(pages.BLOCKS, page, {"headline": headline.table_of_claims})
    with pytest.raises(ValueError, match="no place for headline"):
        pages.written(page)


def test_a_table_keeps_the_rows_of_other_hardware(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    common.write(table, [{"speed": 1, "hardware": "a"}, {"speed": 2, "hardware": "a"}])
    common.write(table, [{"speed": 3, "threads": 2, "hardware": "b"}])
    common.write(table, [{"speed": 4, "threads": 2, "hardware": "a"}])
    assert table.read_text() == "speed,threads,hardware\n3,2,b\n4,2,a\n"


def test_a_process_of_the_benchmark_of_cores_does_a_round_when_asked() -> None:
    """The process is the same for both loops, so that the barest one needs none here."""
    block, end = cores.processes(cores.engine, ("784-8", 500, "fp32"), 1, 1)
    bare = cores.bare("784-8", 500, "fp32")
    for _ in range(2):
        block()  # EOFError where the process has failed
        bare()
    end()


def test_kernels_are_operators_that_are_no_views() -> None:
    images = torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = torch.zeros(5, 3, 3, 3, requires_grad=True), torch.zeros(5, requires_grad=True)
    with kernels.Counter() as forward:
        y = torch.conv2d(images, weight, bias)
    assert forward.kernels == 3  # the weights' copy, the convolution, the bias
    with kernels.Counter() as backward:
        torch.autograd.grad(y, (images, weight, bias), torch.zeros_like(y))
    assert backward.kernels == 1 + 4  # the zeros; the weights' copy and three gradients
    with kernels.Counter() as views:
        torch.zeros(4).view(2, 2).t()[0].detach()
    assert (views.kernels, views.random) == (1, 0)
    with kernels.Counter() as noise:
        torch.randn(3).add_(1)
    assert (noise.kernels, noise.random) == (2, 1)


@pytest.mark.parametrize(("method", "model"), [("hbfl", "cnn2"), ("fedavg", "mlp")])
def test_the_table_of_kernels_is_todays(method: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a change of code or of torch makes another number: `python -m benchmarks.kernels`, and look at the
    difference."""
    patched = (
        (network, "layout_for"),
        (convolution, "OWN_WAYS"),
        (convolution, "in_one_call"),
        (torch, "cudnn_convolution_relu"),
    )
    for module, name in patched:
        monkeypatch.setattr(module, name, getattr(module, name))  # as they are, when the test is over
    counts = ["fp32"]  # and on CPUs whose oneDNN has the one call that stands for a GPU's in bf16, that
    counts += ["bf16"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
    rows = "version == 'now' and method == @method and model == @model and precision in @counts"
    table = pd.read_csv(kernels.PATH).query(rows)
    for precision, counted in zip(table.precision, table.kernels, strict=True):
        assert kernels.step_of(method, model, precision).kernels == counted


def test_every_benchmark_is_one_of_make_bench_or_says_why_not() -> None:
    run = (common.HERE / "__main__.py").read_text()
    for file in common.HERE.glob("*.py"):
        named = f'"{file.stem}"' in run or f"`benchmarks.{file.stem}`" in run
        assert named or file.stem in ("common", "__init__", "__main__")


def test_the_benchmark_of_augmentation_prepares_and_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "TURNS", 1)
    row = augment.measure("fp32", 70)
    assert all(float(row[f"{name}_microseconds"]) > 0 for name in (*augment.AUGMENTATIONS, "step"))
    assert float(row["fola_over_step"]) > 0
    of = augment.one_client("fola", "fp32", 70)
    assert of.networks[0]["global"].parameters == 878_538
    assert [chunk.x.shape for chunk in Mixer(of, of.node(0, 1)).epoch(of.shards[0])] == [(70, 3, 32, 32)]


def test_errors_of_bins_are_those_of_the_record() -> None:
    """With the record's own bins; with fewer, ECE is never larger."""
    folder = next(Path("results/paper/runs/cifar10").glob("shards*/fedppd/seed~0-*"))
    found, of_record = calibration_bins.errors(calibration_bins.bins(folder)), RunRecord(folder).measured()
    for name in ("ece", "mce"):
        assert found[name.upper()] == pytest.approx(100 * of_record[name][200], abs=1e-3)
    assert found["ECE, 5 bins"] <= found["ECE"]


def test_the_judge_of_a_draw_knows_which_classes_a_client_has() -> None:
    train, test = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 2])
    partition = Partition(np.arange(6), np.array([0, 4, 6]), np.arange(5), np.array([0, 3, 5]))
    evens = np.log(np.full((5, 3), 1 / 3))
    # The first client has class 0 three times in four, so two of its three images are right; the second has 1 and 2 alike:
    # the first.
    assert sampled_partitions.judged(evens, train, test, partition) == pytest.approx((2 / 3 + 1 / 2) / 2)
    sure_of_2 = np.log(np.array([[0.1, 0.1, 0.8]] * 5))
    # Of class 2 the first client has none, so there its shares still decide.
    assert sampled_partitions.judged(sure_of_2, train, test, partition) == pytest.approx((2 / 3 + 1 / 2) / 2)
    found = sampled_partitions.row(evens, train, test, partition)
    assert found["largest_percent"] == pytest.approx(400 / 6)
    assert found["classes"] == pytest.approx((4 * 16 / 10 + 2 * 2) / 6)


def test_a_sampled_partition_is_ranked_among_many() -> None:
    many = pd.DataFrame(
        {"largest_percent": [10.0, 20, 30, 40], "classes": [1.0, 2, 3, 4], "judged_percent": [90.0, 80, 70, 60]}
    )
    named = pd.DataFrame({"largest_percent": [25.0], "classes": [1.5], "judged_percent": [95.0]}, index=["seed 0"])
    found = sampled_partitions.table(many, named)
    assert found.loc["50 % of 4 sampled partitions are below", "largest_percent"] == 25
    assert list(found.loc["seed 0", list(sampled_partitions.COLUMNS.values())]) == [50, 25, 100]


def test_sizes_of_shards_are_found_again_from_accuracies() -> None:
    assert shard_sizes.fits(955, 45.03)  # 430 of 955
    assert not shard_sizes.fits(1000, 45.03)
    random = np.random.default_rng(0)
    rule = shard_sizes.RULES["classes cut at floor(cumsum(p) n): our default"]
    draws_of_rule = np.array([rule(random.dirichlet(np.full(3, 100.0), 5), 200, random) for _ in range(500)])
    sizes = draws_of_rule[0]
    assert sizes.sum() == 1000
    printed = [[round(100 * m / n, 2) for m in (n // 3, n // 2, n - 1)] for n in sizes.tolist()]
    found = shard_sizes.row(draws_of_rule, printed)
    assert found["sets"] == 1
    assert found["sizes"] == " ".join(map(str, sizes))
    equal = np.full((500, 3), 400)
    assert shard_sizes.row(equal, printed) == {"sets": 0}


SHARES = np.log([0.1, 0.2, 0.3, 0.4])  # of classes, as clients may hold them


def test_a_model_whose_classes_are_out_of_balance_is_brought_back() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), [100, 300, 200, 400])
    clean = (random.normal(size=(1000, 4)) + 4 * np.eye(4)[labels]).astype(np.float32)
    tilted = clean + np.array([0, -9, 0, 2], np.float32)
    found = class_bias.row(tilted, labels, SHARES)
    assert found["classes_below_5"] == 1
    assert found["all"] < 75
    assert found["all_in_balance"] == pytest.approx(100 * (clean.argmax(1) == labels).mean(), abs=0.5)
    counts = np.bincount(labels)
    assert np.bincount((tilted + class_bias.balancing(tilted, counts)).argmax(1)) == pytest.approx(counts, abs=2)


def test_classes_whose_logits_hardly_vary_are_brought_into_balance() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(4000) % 4
    logits = (random.normal(size=(4000, 4)) * [2, 2, 0.1, 0.1] + np.eye(4)[labels] * [2, 2, 0.1, 0.1]).astype(
        np.float32
    )
    logits += np.array([0, 0, -9, -30], np.float32)
    counts = np.bincount(labels)
    assert np.bincount((logits + class_bias.balancing(logits, counts)).argmax(1)) == pytest.approx(counts, abs=20)


def test_what_balance_takes_from_classes_is_what_their_shares_gave_them() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(4000) % 4
    clean = (random.normal(size=(4000, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    found = class_bias.row((clean + 1.5 * SHARES).astype(np.float32), labels, SHARES)
    assert found["by_shares"] == pytest.approx(1, abs=0.01)
    assert found["slope"] == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize(("average", "weights"), [("weighted", [0.75, 0.25]), ("uniform", [0.5, 0.5])])
def test_clients_shares_are_averaged_as_the_method_averages_clients(average: str, weights: list[float]) -> None:
    labels = [np.array([0, 0, 0, 0, 0, 1]), np.array([1, 1])]
    run = SimpleNamespace(partition=SimpleNamespace(clients=2), options=SimpleNamespace(average=average))
    loaded = SimpleNamespace(run=run, images=lambda split, client: (None, labels[client]))
    expected = np.array(weights) @ np.log([[6 / 8, 2 / 8], [1 / 4, 3 / 4]])
    assert class_bias.mean_log_shares(loaded, 2) == pytest.approx(expected)  # type: ignore[arg-type]


def test_logits_that_lie_far_from_0_are_lost_in_bf16() -> None:
    labels = np.arange(1000) % 4
    near = (np.random.default_rng(0).normal(size=(1000, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    at_0, at_500 = class_bias.row(near, labels, SHARES), class_bias.row(near - 500, labels, SHARES)
    assert (at_0["mean_logit"], at_500["mean_logit"]) == (pytest.approx(0.5, abs=0.1), pytest.approx(-499.5, abs=0.1))
    assert at_0["logits_in_bf16"] == pytest.approx(at_0["all"], abs=0.3)
    assert at_500["all"] == pytest.approx(at_0["all"], abs=0.3)
    assert at_500["logits_in_bf16"] < at_0["all"] - 3


def test_two_runs_are_compared_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = {"first": [0.5] * 20, "second": [0.4] * 12 + [0.6] * 8}
    clients = {"first": ([0.9, 0.7], [0.8, 0.6]), "second": ([0.8, 0.7], [0.8, 0.7])}
    names = ("accuracy_best", "accuracy_last5")

    def record(folder: Path) -> SimpleNamespace:
        summary = {"clients": dict(zip(names, clients[folder.name], strict=True))}
        return SimpleNamespace(curves={"global": dict(enumerate(curves[folder.name], 1))}, summary=summary)

    monkeypatch.setattr(finished_runs, "RunRecord", record)
    assert list(finished_runs.compared(Path("first"), Path("second")).values()) == [
        "+10.0",
        "-6.0",
        "12 of 20",
        "14",
        "+5.0",
        "1 of 2",
        "-5.0",
        "0 of 2",
    ]


def test_clients_stand_beside_print_and_curves_along_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = {round: 0.3 + 0.2 * (round % 2) for round in range(1, 13)}  # 50 % in odd rounds, 30 in even ones
    summary = {"clients": {"accuracy_best": [0.9] * 10}, "test_images": [21] * 9 + [20]}
    record = SimpleNamespace(curves={"global": curve}, summary=summary)
    monkeypatch.setattr(finished_runs, "RunRecord", lambda folder: record)
    methods = {"HBFL": Path("hbfl"), "FML": Path("fml")}
    monkeypatch.setattr(finished_runs, "finished", lambda: {("CIFAR-10, Non-IID", "seed 0"): methods})
    first, _ = finished_runs.along()
    reached = {"round 10": "38.0", "round 20": "", "round 40": "", "round 100": ""}
    late = {"best less last": "12.0", "from round to round, late": "20.0"}
    assert first == {"": "HBFL, CIFAR-10, Non-IID, seed 0"} | reached | late
    *each, mean, many = finished_runs.clients("CIFAR-10")
    assert [row["seed 0: test images"] for row in each] == [*["21"] * 9, "20"]
    away = [float(row["seed 0: HBFL less the published"]) for row in each]
    assert float(mean["seed 0: HBFL less the published"]) == pytest.approx(sum(away) / 10, abs=0.1)
    assert float(many["seed 0: HBFL less the published"]) == pytest.approx(sum(away[:9]) / 9, abs=0.1)


def test_readings_are_drawn_the_best_first_in_each_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached = {
        "seed 97": {"FML": 0.544, "FML, no momentum": 0.383, "HBFL": 0.488, "HBFL SGD": 0.622, "FedAvg": 0.628},
        "seed 98": {"FML": 0.6, "HBFL": 0.5},
    }
    folders = {seed: {name: Path(seed, name) for name in methods} for seed, methods in reached.items()}
    monkeypatch.setattr(finished_runs, "searched", lambda: folders)

    def record(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(summary={"global": {"accuracy_last5": reached[str(folder.parent)][folder.name]}})

    monkeypatch.setattr(assumptions_figure, "RunRecord", record)
    found = assumptions_figure.assumptions()
    assert list(found.index) == ["HBFL SGD", "HBFL", "FML", "FML, no momentum", "FedAvg"]
    assert found.loc["FML"].tolist() == pytest.approx([54.4, 60])
    assert found["seed 98"].count() == 2
    assumptions_figure.draw(found, tmp_path / "made.png")
    assert (tmp_path / "made.png").stat().st_size > 10_000
