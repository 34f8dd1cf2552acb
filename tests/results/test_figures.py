"""Figures: the data behind each, the small print, and files that are not empty."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bayesfed.core.errors import InputError
from bayesfed.plan import paper_check, plan
from bayesfed.results import figure_panels, figures, plots
from bayesfed.results import study as join

PROJECT = Path(__file__).parents[2]


def study_of(lab):
    (study,) = join.studies(lab.plan)
    return study


def drawn(study, figure):
    return plots.draw(study, figure, figures.content(study, figure))


def series(data):
    """The curves of a figure: (row, column, curve) -> {(seed, round): percent}."""
    found: dict[tuple[str, str, str], dict[tuple[str, int], float]] = {}
    for row in data.curves.itertuples(index=False):
        found.setdefault((row.row, row.column, row.curve), {})[row.seed, row.round] = round(row.accuracy, 6)
    return found


def test_global_curves_in_panels(lab, stored):
    for seed, (method, alpha) in itertools.product(range(2), itertools.product(["FML", "HBFL"], ["100", "0.05"])):
        folder = lab.cell("heterogeneous", method, alpha=alpha, seed=seed)
        stored(folder, [0.1, 0.2 + seed / 10], [[0.5, 0.5]] * 10)
    stored(lab.cell("ablation", "HBFL plain mean"), [0.9, 0.9])
    data = figures.content(study_of(lab), lab.spec["figures"]["figure4"])
    assert data.rows == ["CIFAR10"]
    assert data.columns == ["IID", "Non-IID"]
    expected = {("0", 1): 10.0, ("0", 2): 20.0, ("1", 1): 10.0, ("1", 2): 30.0}
    assert series(data) == {
        ("CIFAR10", setting, method): expected for setting in ("IID", "Non-IID") for method in ("FML", "HBFL")
    }


@pytest.mark.parametrize(("lowest", "common"), [(0.5, True), (0.9, False)])
def test_panels_of_a_row_have_one_scale_unless_that_presses_curves_flat(lab, stored, lowest, common):
    stored(lab.cell("heterogeneous", "HBFL", alpha="100"), [lowest, 0.95])
    stored(lab.cell("heterogeneous", "HBFL", alpha="0.05"), [0.2, 0.8])
    iid, non_iid = drawn(study_of(lab), lab.spec["figures"]["figure4"]).axes[:2]
    assert (iid.get_ylim() == non_iid.get_ylim()) == common


@pytest.mark.parametrize(("first", "cut"), [(0.1, True), (0.6, False)])
def test_a_scale_does_without_a_first_rise_that_would_press_the_rest_flat(lab, stored, first, cut):
    """For all panels of a row, and the figure says so."""
    stored(lab.cell("heterogeneous", "HBFL", alpha="100"), [first, *np.linspace(0.8, 0.9, 39)])
    stored(lab.cell("heterogeneous", "HBFL", alpha="0.05"), [first, *np.linspace(0.7, 0.8, 39)])
    made = drawn(study_of(lab), lab.spec["figures"]["figure4"])
    for panel in made.axes[:2]:
        low, high = panel.get_ylim()
        assert (low > 60) == cut
        assert 90 < high < 100
    told = "A scale begins where its curves are after a twentieth of the rounds"
    assert any(told in " ".join(text.get_text().split()) for text in made.texts) == cut


def test_a_clients_curve_is_the_larger_of_its_models(lab, stored):
    stored(lab.cell("heterogeneous", "HBFL"), [0.1, 0.2], [[k / 10, 0.5] for k in range(10)])
    study = study_of(lab)
    five, six = (figures.content(study, lab.spec["figures"][f"figure{n}"]) for n in (5, 6))
    assert five.columns == [f"client {k}" for k in range(1, 6)]
    assert six.columns == [f"client {k}" for k in range(6, 11)]
    # The fake local model is 0.1 below the meme, and 0.999 on the full test set, which must not count.
    assert series(five)["CIFAR10, IID", "client 3", "HBFL"] == {("0", 1): 20.0, ("0", 2): 50.0}


def test_every_figure_takes_its_own_cells(lab, stored):
    for dataset, model in (("mnist", "mlp"), ("cifar100", "cnn2")):
        for alpha in ("100", "0.1"):
            stored(lab.cell("homogeneous", "FedProx", dataset, model=model, alpha=alpha), [0.3])
    for level, value in (("0.5", 0.5), ("0.9", 0.9)):
        stored(lab.cell("stragglers", "ABAVG", model="cnn2", stragglers=level), [value])
    both = ["cifar10", "cifar100"]
    for method in ("Independent", "FML", "HBFL"):
        stored(lab.cell("multitask", method, both), None, [[0.7], [0.3]])
    study, described = study_of(lab), lab.spec["figures"]
    third = figures.content(study, described["figure3"])
    assert (third.rows, third.columns) == (["MLP, MNIST", "CNN2, CIFAR100"], ["alpha = 100", "alpha = 0.1"])
    assert len(series(third)) == 4
    assert series(figures.content(study, described["figure8"])) == {("CIFAR10", "IID", "ABAVG"): {("0", 1): 50.0}}
    assert series(figures.content(study, described["figure9"])) == {("CIFAR10", "IID", "ABAVG"): {("0", 1): 90.0}}
    seventh = figures.content(study, described["figure7"])
    assert seventh.columns == ["client 1, CIFAR10, LeNet5", "client 2, CIFAR100, CNN1"]
    assert set(seventh.curves["curve"]) == {"Independent", "FML", "HBFL"}


def test_the_lines_drawn_are_means_over_seeds(lab, stored):
    for seed, value in enumerate([0.2, 0.4]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [value, 0.5], [[0.5]] * 10)
        stored(lab.cell("heterogeneous", "FML", seed=seed), [0.1, 0.1], [[0.5]] * 10)
    made = drawn(study_of(lab), lab.spec["figures"]["figure4"])
    lines = [sorted(map(float, line.get_ydata())) for line in made.axes[0].get_lines() if len(line.get_ydata())]
    assert sorted(lines) == [[10.0, 10.0], [30.0, 50.0]]
    bands = [band.get_paths()[0] for band in made.axes[0].collections]
    polygon = max(bands, key=lambda band: band.vertices[:, 1].max())
    assert polygon.vertices[:, 1].max() == pytest.approx(50.0)
    assert polygon.vertices[:, 1].min() == pytest.approx(30 - 200**0.5)
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["HBFL", "FML"]


def test_curves_of_a_panel_are_of_the_same_seeds(lab, stored):
    """Else a method would be ahead by the draw of its other seeds."""
    for seed, value in enumerate([0.2, 0.4]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [value, 0.5], [[0.5]] * 10)
    stored(lab.cell("heterogeneous", "FML"), [0.1, 0.1], [[0.5]] * 10)
    made = drawn(study_of(lab), lab.spec["figures"]["figure4"])
    lines = [sorted(map(float, line.get_ydata())) for line in made.axes[0].get_lines() if len(line.get_ydata())]
    assert sorted(lines) == [[10.0, 10.0], [20.0, 50.0]]
    assert not made.axes[0].collections  # one seed has no band
    small_print = " ".join(" ".join(text.get_text() for text in made.texts).split())
    assert "One seed. In a panel the seeds that most of its curves have; finished runs of others: 1." in small_print


def test_a_curve_of_another_seed_is_not_drawn_beside_those_of_the_seed_that_most_have() -> None:
    had = {"a": "01", "b": "02", "c": "0", "d": "3"}
    lines = [("", "", curve, seed, curve + seed) for curve, seeds in had.items() for seed in seeds]
    assert [run for *_, run in figures.of_shared_seeds(lines)] == ["a0", "b0", "c0"]
    assert len(figures.of_shared_seeds(line for line in lines if line[-1] in ("a1", "b2", "d3"))) == 3


def test_a_logarithmic_axis_has_plain_numbers(lab, stored):
    for alpha in ("0.01", "1", "100"):
        stored(lab.cell("homogeneous", "HBFL", alpha=alpha), [0.1, 0.2], [[0.5]] * 10)
    figure = {
        "title": "x",
        "experiment": "homogeneous",
        "accuracy": "global",
        "rows": [],
        "columns": [],
        "x": "alpha",
        "methods": ["HBFL"],
    }
    made = drawn(study_of(lab), figure)
    made.canvas.draw()
    assert {"0.01", "1", "100"} <= {label.get_text() for label in made.axes[0].get_xticklabels()}


@pytest.mark.parametrize(
    ("epochs", "told"),
    [(5, "100 rounds, local epochs 5, batch size 128"), (0, "100 rounds, batch size 128")],
)
def test_the_small_print_has_no_local_epochs_where_a_round_is_so_many_mini_batches(lab, stored, epochs, told):
    stored(lab.cell("heterogeneous", "HBFL", local_epochs=epochs), [0.1, 0.2], [[0.5]])
    study = study_of(lab)
    assert f"{told}, the paper's budget." in figures.footnote(
        study, figures.content(study, lab.spec["figures"]["figure4"])
    )


def test_the_small_print_tells_budget_data_and_missing_runs(lab, stored):
    lab.notice = "Digits, not the paper's cells."
    changes = ["rounds 2 (paper 100)", "lr 0.001 (paper 0.01)"]
    small = {"rounds": 2, "local_epochs": 1, "batch_size": 32, "changes": changes, "used": "digits"}
    stored(lab.cell("heterogeneous", "HBFL", **small), [0.1, 0.2], [[0.5]])
    lab.cell("heterogeneous", "FML", **small)
    made = drawn(study_of(lab), lab.spec["figures"]["figure4"])
    small_print = " ".join(" ".join(text.get_text() for text in made.texts).split())
    assert "Digits, not the paper's cells." in small_print
    assert "digits for CIFAR10, rounds 2 (paper 100), lr 0.001 (paper 0.01)" in small_print
    assert "One seed. 1 of 2 runs finished." in small_print
    assert made.axes[0].get_ylabel() == "digits for CIFAR10\naccuracy (%)"
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["HBFL", "FML (not run)"]


def test_files_are_written_for_every_figure_and_repeat_byte_for_byte(lab, stored, tmp_path):
    stored(lab.cell("heterogeneous", "HBFL"), [0.1, 0.2], [[0.5, 0.6]] * 10)
    stored(lab.cell("heterogeneous", "FML", "cifar100"), [0.1, 0.2], [[0.5, 0.6]] * 10)
    lab.spec["figures"] = {name: lab.spec["figures"][name] for name in ("figure4", "figure8")}
    written = plots.write(join.studies(lab.plan), tmp_path / "first")
    pictures = [path for path in written if path.suffix != ".csv"]
    assert {path.name for path in pictures} == {"figure4.png", "figure4.svg"}
    assert all(path.stat().st_size > 5000 for path in pictures)
    assert {path.read_bytes()[:4] for path in written if path.suffix == ".png"} == {b"\x89PNG"}
    for path, again in zip(written, plots.write(join.studies(lab.plan), tmp_path / "second"), strict=True):
        assert path.read_bytes() == again.read_bytes()


def test_a_dollar_in_a_label_is_a_dollar(lab, stored, tmp_path):
    """Not the start of a formula, which may be none."""
    stored(lab.cell("heterogeneous", "HBFL"), [0.5, 0.6])
    lab.notice = r"it cost $\q$"
    lab.spec["figures"] = {"figure4": lab.spec["figures"]["figure4"] | {"title": r"at $\zz$"}}
    written = [path.name for path in plots.write(join.studies(lab.plan), tmp_path)]
    assert written == ["figure4.png", "figure4.svg", "figures.csv"]


def test_a_figure_without_a_curve_is_not_drawn(lab, stored, tmp_path):
    """The list of figures has it, and an earlier picture of it goes."""
    stored(lab.cell("heterogeneous", "HBFL"), [0.1, 0.2])
    lab.spec["figures"] = {name: lab.spec["figures"][name] for name in ("figure3", "figure4")}
    (tmp_path / "hbfl").mkdir()
    (tmp_path / "hbfl/figure3.svg").touch()
    plots.write(join.studies(lab.plan), tmp_path)
    assert sorted(path.name for path in (tmp_path / "hbfl").iterdir()) == ["figure4.png", "figure4.svg"]
    with (tmp_path / "figures.csv").open(newline="") as file:
        listed = [(row["figure"], row["panels"], row["panels_asked"]) for row in csv.DictReader(file)]
    assert listed == [("figure3", "0", "0"), ("figure4", "1", "1")]


@pytest.mark.parametrize("name", ["pfedbayes-reduced", "hbfl-readings"])
def test_figures_of_experiments_that_a_config_leaves_out_are_empty(name, tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT)
    plan.write(Path(f"config/{name}.yaml"), tmp_path)
    for study in join.studies(tmp_path / "plan.json"):
        planned = {record.experiment for record in study.records}
        for figure in study.spec["figures"].values():
            assert figure["experiment"] in planned or figures.content(study, figure).records == []


def test_curves_along_any_axis(lab, stored):
    """A sweep of the learning rate: one curve a value, labelled with its axis where the paper has no label."""
    for lr, best in ((0.1, 0.5), (0.01, 0.7)):
        stored(lab.cell("homogeneous", "FedAvg", model="mlp", axes={"lr": lr}, alpha=f"{lr}"), [0.1, best], [[0.5]])
    figure = {
        "title": "A sweep", "experiment": "homogeneous", "accuracy": "global", "curves": "lr", "methods": ["FedAvg"],
        "rows": [], "columns": ["dataset"],
    }  # fmt: skip
    study = study_of(lab)
    found = figures.content(study, figure)
    assert found.names == ["0.1", "0.01"]
    assert series(found) == {
        ("", "CIFAR10", "0.1"): {("0", 1): 10.0, ("0", 2): 50.0},
        ("", "CIFAR10", "0.01"): {("0", 1): 10.0, ("0", 2): 70.0},
    }
    made = drawn(study, figure)
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["lr 0.1", "lr 0.01"]


def test_panels_without_runs_are_named_and_not_drawn(lab, stored):
    """A row without any by its own name; the axes of a hole's neighbours have their numbers."""
    stored(lab.cell("heterogeneous", "HBFL"), [0.1, 0.2], [[0.5]])
    stored(lab.cell("heterogeneous", "HBFL", "cifar100", alpha="0.05"), [0.1, 0.2], [[0.5]])
    for dataset in ("cifar10", "cifar100", "mnist"):
        for alpha in ("100", "0.05"):
            lab.cell("heterogeneous", "HBFL", dataset, alpha=alpha)
    study, figure = study_of(lab), lab.spec["figures"]["figure4"]
    made = drawn(study, figure)
    assert [axes.get_visible() for axes in made.axes] == [True, False, False, True]
    assert [axes.get_title() for axes in made.axes if axes.get_visible()] == ["IID", "Non-IID"]
    small_print = " ".join(" ".join(text.get_text() for text in made.texts).split())
    named = "No finished run: CIFAR10, Non-IID; CIFAR100, IID; MNIST."
    assert named in small_print
    assert figure_panels.bare(study, figure, figures.content(study, figure)) == named


def test_many_curves_have_their_names_at_their_ends(lab, stored):
    names = [f"method {number}" for number in range(figure_panels.MOST + 1)]
    lab.spec["methods"] = {name: {"name": "fedavg"} for name in names}
    for number, name in enumerate(names):
        stored(lab.cell("heterogeneous", name), [0.1, 0.5 + number / 1000], [[0.5]])
    study, figure = study_of(lab), lab.spec["figures"]["figure4"]
    (panel,) = drawn(study, {**figure, "methods": names}).axes
    heights = [text.get_position()[1] for text in panel.texts]
    assert [text.get_text() for text in panel.texts] == names
    assert all(below + 0.07 < above for below, above in itertools.pairwise(heights))
    assert not drawn(study, {**figure, "methods": names[1:]}).axes[0].texts


@pytest.mark.parametrize(
    ("places", "spread"),
    [
        ([], []),
        ([5.0, 1.0], [5, 1]),
        ([5.0, 5.0, 1.0], [4.5, 5.5, 1]),
        ([2.0, 2.5, 2.1], [1.2, 3.2, 2.2]),
        ([9.9, 9.8], [10, 9]),
        ([0.0, 0.1, 0.2], [0, 1, 2]),
    ],
)
def test_names_are_a_line_apart(places: list[float], spread: list[float]) -> None:
    assert figure_panels.spread(places, 1, 0, 10) == pytest.approx(spread)


def test_colours_belong_to_methods(lab):
    """More methods than colours share some, but nowhere that both are seen."""
    for name, experiment in lab.spec["experiments"].items():
        for method in experiment["axes"]["method"]:
            lab.cell(name, method, ["cifar10", "cifar100"] if name == "multitask" else "cifar10")
    study, methods = study_of(lab), lab.spec["methods"]
    assert len(methods) > figures.COLOURS
    whole = figures.places(study, "method", methods)
    assert set(whole.values()) == set(range(figures.COLOURS))
    for figure in lab.spec["figures"].values():
        palette = figures.colours(figures.places(study, "method", figure["methods"]))
        assert "HBFL" not in figure["methods"] or next(iter(palette)) == "HBFL"
        assert len(set(palette.values())) == len(palette)
        assert palette == {name: figures.colours(whole)[name] for name in palette}


def test_where_colours_cannot_be_shared_a_figure_counts_its_own(lab):
    lab.spec["methods"] |= {f"more {n}": {"name": "fedavg"} for n in range(3)}
    for method in lab.spec["methods"]:
        lab.cell("ablation", method)
    assert figures.places(study_of(lab), "method", ["FML", "more 2", "HBFL"]) == {"HBFL": 0, "FML": 1, "more 2": 2}


def test_a_changed_record_is_refused(lab, stored, tmp_path):
    folder = lab.cell("heterogeneous", "HBFL")
    stored(folder, [0.1, 0.2], [[0.5]])
    (folder / "metrics.csv").write_text("round,client\n1,0\n")
    with pytest.raises(InputError, match=r"metrics\.csv: not as the run wrote it"):
        plots.write(join.studies(lab.plan), tmp_path)


def test_the_small_print_counts_finished_and_diverged_runs(lab, stored):
    for seed in (0, 1):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [0.1, 0.2], [[0.5]])
    stored(lab.cell("heterogeneous", "FML", seed=1), [0.1, 0.2], [[0.5]])
    broke = {"round": 2, "client": "server", "tensor": "theta"}
    stored(lab.cell("heterogeneous", "FML"), [0.1, 0.2], [[0.5]], diverged=broke)
    lab.cell("heterogeneous", "HBFL", seed=2)
    study = study_of(lab)
    figure = lab.spec["figures"]["figure4"]
    small = figures.footnote(study, figures.content(study, figure))
    assert "One seed. In a panel the seeds that most of its curves have; finished runs of others: 1." in small
    of_hbfl = figures.content(study, {**figure, "methods": ["HBFL"]})
    assert "Line: mean over at most 2 seeds; band:" in figures.footnote(study, of_hbfl)
    assert "4 of 5 runs finished." in small
    assert "Diverged, left out where another seed has not: FML seed 0 in round 2." in small


def test_clients_of_a_run_are_one_value_of_their_seed(lab, stored):
    """So a band is over seeds alone."""
    for seed, values in enumerate([[0.2, 0.4], [0.6, 1.0]]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed, clients=2), [0.5], [[value] for value in values])
    figure = {**lab.spec["figures"]["figure4"], "accuracy": "client"}
    drawn = series(figures.content(study_of(lab), figure))
    assert drawn["CIFAR10", "IID", "HBFL"] == {("0", 1): pytest.approx(30.0), ("1", 1): pytest.approx(80.0)}


def test_a_diverged_seed_is_in_no_mean_of_others(lab, stored):
    """Tables leave it out, too; alone it is drawn as far as it came."""
    broke = {"round": 1, "client": "server", "tensor": "theta"}
    for method in ("HBFL", "FML"):
        stored(lab.cell("heterogeneous", method), [0.1], [[0.5]], diverged=broke)
    stored(lab.cell("heterogeneous", "HBFL", seed=1), [0.3, 0.4], [[0.5]])
    drawn = series(figures.content(study_of(lab), lab.spec["figures"]["figure4"]))
    assert drawn["CIFAR10", "IID", "HBFL"] == {("1", 1): 30.0, ("1", 2): 40.0}
    assert drawn["CIFAR10", "IID", "FML"] == {("0", 1): 10.0}


def test_the_small_print_counts_seeds_that_are_drawn(lab, stored):
    """Seed 2 of one method diverged, so that the others' is left out."""
    broke = {"round": 1, "client": "server", "tensor": "theta"}
    for seed in (0, 1, 2):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [0.3, 0.4], [[0.5]])
        stored(lab.cell("heterogeneous", "FML", seed=seed), [0.1], [[0.5]], diverged=broke if seed == 2 else None)
    study = study_of(lab)
    data = figures.content(study, lab.spec["figures"]["figure4"])
    assert "Line: mean over 2 seeds; band:" in figures.footnote(study, data)


def test_the_servers_model_on_a_clients_shard(lab, stored):
    stored(lab.cell("heterogeneous", "HBFL", clients=2), [0.5], [[0.9], [0.8]], on_shards=[[0.2], [0.4]])
    figure = {**lab.spec["figures"]["figure5"], "accuracy": "global_on_shard"}
    drawn = series(figures.content(study_of(lab), figure))
    assert [drawn["CIFAR10, IID", f"client {k}", "HBFL"] for k in (1, 2)] == [{("0", 1): 20.0}, {("0", 1): 40.0}]


def test_what_has_no_curve_says_why(lab, stored, tmp_path):
    stored(lab.cell("heterogeneous", "HBFL", clients=2), [0.5], [[], [0.8]], on_shards=[[0.2], [0.4]])
    stored(lab.cell("heterogeneous", "FML", clients=2), [0.5], on_shards=[[0.2], [0.4]])
    study, figure = study_of(lab), lab.spec["figures"]["figure5"]
    words = "Without a curve: HBFL, client 1 (never took part); FML, client 1, client 2 (no client predictors)."
    assert words in figures.footnote(study, figures.content(study, figure))
    lab.spec["figures"] = {
        "some": figure,
        "none": {**figure, "methods": ["FML"]},
    }
    plots.write(join.studies(lab.plan), tmp_path)
    some = (tmp_path / "hbfl/some.svg").read_text()
    assert "FML (no client predictors)" in some
    assert not (tmp_path / "hbfl/none.svg").exists()
    bare = figure_panels.bare(study, figure, figures.content(study, figure))
    assert "never took part or no client predictors: CIFAR10, IID, client 1" in bare.casefold().replace(
        "iid", "IID"
    ).replace("cifar10", "CIFAR10")


def test_one_accuracy_against_another(lab, stored):
    """A point a run: its best round, and the other accuracy of that round; a run without the other has none."""
    for seed, mean in enumerate([[0.3, 0.1, 0.2], [0.2, 0.2, 0.4], None]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed, clients_on_test="round"), [0.5, 0.8, 0.7], mean=mean)
    figure = {
        "title": "Both", "experiment": "heterogeneous", "accuracy": "global", "shows": {"against": "local", "label": "local accuracy (%)"},
        "rows": [], "columns": [], "methods": ["HBFL"],
    }  # fmt: skip
    (study,) = join.studies(lab.plan)
    paper_check.check_figure(study, figure)
    points = figures.content(study, figure).curves
    assert list(zip(points["round"], points["accuracy"], strict=True)) == [
        pytest.approx((10, 80)),
        pytest.approx((20, 80)),
    ]
    (axes,) = drawn(study, figure).axes
    assert axes.get_xlabel() == "local accuracy (%)"
    assert sorted(map(tuple, axes.collections[0].get_offsets().tolist())) == [
        pytest.approx((10, 80)),
        pytest.approx((20, 80)),
    ]
    for change, message in (
        ({"shows": {"against": "locl", "label": ""}}, "did you mean 'local'"),
        ({"x": "alpha"}, "no `x` beside it"),
    ):
        with pytest.raises(InputError, match=message):
            paper_check.check_figure(study, {**figure, **change})


@pytest.mark.parametrize(
    ("letters", "width", "columns"), [([5, 5, 5, 5], 4, 4), ([20, 30, 30, 25, 20, 15], 10, 4), ([90, 90], 4, 1)]
)
def test_a_legend_fits(letters: list[int], width: float, columns: int) -> None:
    """In columns as matplotlib fills them: the first ones take the odd entries."""
    assert plots.fitting(["x" * count for count in letters], width) == columns


def test_no_legend_is_cut_off(lab, stored):
    names = [f"a method with a name, {number}" for number in range(6)]
    lab.spec["methods"] = {name: {"name": "fedavg"} for name in names}
    for name in names:
        stored(lab.cell("heterogeneous", name), [0.1, 0.2], [[0.5]])
    made = drawn(study_of(lab), {**lab.spec["figures"]["figure4"], "methods": names})
    renderer = FigureCanvasAgg(made).get_renderer()
    (legend,) = made.legends
    assert legend.get_window_extent(renderer).x1 < made.bbox.x1
