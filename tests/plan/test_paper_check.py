"""Mistakes in what a paper makes of its runs: each is named at planning, before any run, with the nearest valid name."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayesfed.core.errors import InputError
from bayesfed.plan import plan

PAPERS = Path(__file__).parents[2] / "config/papers"

Spec = dict[str, Any]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real paper and a config of it, in a working folder of its own."""
    shutil.copytree(PAPERS, tmp_path / plan.PAPERS)
    monkeypatch.chdir(tmp_path)
    path = Path("config", "mine.yaml")
    path.write_text(yaml.safe_dump({"name": "mine", "papers": ["hbfl"], "seeds": [0]}))
    return path


def claim(spec: Spec, **change: Any) -> None:
    """Change the first claim."""
    spec["claims"][0].update(change)


def of_kind(spec: Spec, kind: str, **change: Any) -> None:
    """Change the first claim of a kind."""
    next(one for one in spec["claims"] if one["kind"] == kind).update(change)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda s: s["tables"]["table1"].update(metric="global_acuracy_best"),
         "hbfl.yaml, table1: unknown metric 'global_acuracy_best'; did you mean 'global_accuracy_best'?"),
        (lambda s: s["tables"]["table1"]["columns"].append({"method": "FedAvgg"}),
         "hbfl.yaml, table1: no cell has method 'FedAvgg'"),
        (lambda s: s["tables"]["table4"].update(metric="nonsense"), "hbfl.yaml, table4: unknown metric 'nonsense'"),
        (lambda s: s["tables"].update(runs=s["tables"]["table1"]),
         "hbfl.yaml: a table cannot be called 'runs', which has another use; rename it"),
        (lambda s: s["experiments"]["heterogeneous"].update(full_names=["method.lrr"]),
         "hbfl.yaml, heterogeneous, full_names: no axis is named 'method.lrr'"),
        (lambda s: s["tables"]["table1"].update(experiment="heterogenous"),
         "hbfl.yaml, table1: no experiment is named 'heterogenous'; did you mean 'heterogeneous'?"),
        (lambda s: s["tables"]["table1"]["rows"].update(setting=["IID", "Non-IDD"]),
         "hbfl.yaml, table1: no cell has setting 'Non-IDD'; did you mean 'Non-IID'?"),
        (lambda s: s["tables"]["table1"]["rows"].update(datset=["cifar10"]),
         "hbfl.yaml, table1: no field 'datset' of a cell; did you mean 'dataset'?"),
        (lambda s: s["tables"]["table4"]["columns"].append({"client": 0, "dataset": "cifar100"}),
         "hbfl.yaml, table4: no cell of experiment 'multitask' has method Independent, client 0, dataset cifar100"),
        (lambda s: s["tables"]["table1"].update(colums=[]),
         "hbfl.yaml.tables.table1.colums: unknown key; did you mean 'columns'?"),
        (lambda s: s["tables"]["table1"].pop("rows"), "hbfl.yaml.tables.table1.rows is missing; "),
        (lambda s: s["tables"]["client_means"].update(published=["table7"]),
         "no cell of table2 has"),
        (lambda s: s["figures"]["figure4"].update(methods=["HBFL", "FLM"]),
         "hbfl.yaml, figure4: no cell has method 'FLM'; did you mean 'FML'?"),
        (lambda s: s["figures"]["figure4"].update(columns=["seting"]),
         "hbfl.yaml, figure4: no field 'seting' of a cell; did you mean 'setting'?"),
        (lambda s: s["figures"]["figure8"].update(where={"stragglers": 0.6}),
         "hbfl.yaml, figure8: no cell has stragglers '0.6'"),
        (lambda s: s["figures"]["figure4"].update(accuracy="globl"),
         "hbfl.yaml, figure4: no accuracy is named 'globl'; did you mean 'global'?"),
        (lambda s: claim(s, kind="higer"), "hbfl.yaml.claims[0].kind: 'higer' is not a choice; did you mean 'higher'?"),
        (lambda s: claim(s, along="alpha"),
         "above FML's': along: no key of a claim of kind 'higher'; valid: method, than"),
        (lambda s: s["claims"][0].pop("than"), "above FML's': than is missing; "),
        (lambda s: claim(s, than=["FMl"]), "no cell has method 'FMl'; did you mean 'FML'?"),
        (lambda s: claim(s, experiments="heterogeneous"), "experiments: expected a list, found 'heterogeneous'"),
        (lambda s: claim(s, experiments=["grit"]), "no experiment is named 'grit'"),
        (lambda s: claim(s, method="Independent", than=["FedAvg Adam"], experiments=["multitask", "ablation"],
                         metric="client_accuracy_best"),
         "no cell of these experiments can test it"),
        (lambda s: s["claims"].append({"claim": "x", "by": "us", "kind": "higher at", "experiments": ["stragglers"],
                                       "metric": "global_accuracy_best", "methods": ["HBFL"], "along": "stragglers",
                                       "at": 0.6, "than": [0.5]}),
         "claim 'x': no cell has stragglers '0.6'"),
        (lambda s: s["tables"]["table1"]["columns"].append({"method": "HBFL", "metric": "client_accuracy_best"}),
         "hbfl.yaml, table1: columns: two columns would be called 'HBFL'; give one of them another title"),
        (lambda s: s["tables"]["table1"]["columns"].append({"method": "HBFL", "title": "seeds"}),
         "hbfl.yaml, table1: columns: two columns would be called 'seeds'"),
        (lambda s: s["labels"].update(cifar100="CIFAR10"),
         "hbfl.yaml, labels: 'cifar10' and 'cifar100' are both called 'CIFAR10'; tell them apart"),
        (lambda s: s["tables"]["table1"].update(metric="local_accuracy_best"),
         "hbfl.yaml, table1: 'local_accuracy_best': experiment 'heterogeneous' does not test clients every round"),
        (lambda s: s["settings"].update({7: "IID"}), "hbfl.yaml.settings: expected text as a key, found 7; put it in quotes"),
        (lambda s: of_kind(s, "falls", along="alpa"), "no field 'alpa' of a cell; did you mean 'alpha'?"),
        (lambda s: of_kind(s, "falls", along="dataset"), "along: 'mnist' of dataset is no number for an axis"),
        (lambda s: claim(s, experiments=["stragglers"], apart=["stragglers"]),
         "hbfl.yaml, claim 'Table 1, HBFL's global model is above FML's': runs that differ in stragglers would be averaged"),
        (lambda s: claim(s, by="them"), "hbfl.yaml.claims[0].by: 'them' is not a choice; valid: paper, us"),
        (lambda s: claim(s, most=1), "most: expected true or false, found 1"),
        (lambda s: s["tables"]["table1"].update(metric="global_auroc_foreign_mnst_last"),
         "hbfl.yaml, table1: no OOD dataset of its runs is named 'mnst'"),
        (lambda s: s["tables"]["table1"].update(metric="global_auroc_mistakes_last"),
         "'global_auroc_mistakes_last': experiment 'heterogeneous' does not ask for it (tasks: {mistakes: true})"),
        (lambda s: s["tables"]["table1"].update(metric="global_accuracy_labelled"),
         "'global_accuracy_labelled': experiment 'heterogeneous' has no active learning (active: {start, add, every})"),
        (lambda s: s["figures"]["figure4"].update(shows={"labelled": True, "label": "images"}),
         "hbfl.yaml, figure4: 'shows': experiment 'heterogeneous' has no active learning"),
        (lambda s: s.update(figure={}), "hbfl.yaml.figure: unknown key; did you mean 'figures'?"),
        (lambda s: s.update(paper="hbl"), "hbfl.yaml.paper: 'hbl' is not the file's name; write 'hbfl'"),
        (lambda s: s.update(given=[{"where": {"datset": "mnist"}, "run": {"rounds": 1}}]),
         "hbfl.yaml, given 1.where.datset: unknown key; did you mean 'dataset'?"),
        (lambda s: s.update(given=[{"where": {"alpha": 100}, "run": {"rounds": 1}}]),
         "hbfl.yaml, given 1.where.alpha: unknown key; did you mean 'partition.alpha'?"),
        (lambda s: s.update(given=[{"where": {"partition.alpha": ["100"]}, "run": {"rounds": 1}}]),
         "hbfl.yaml, given 1.where.partition.alpha: no cell has '100'; write 100 without quotes"),
        (lambda s: s.update(given=[{"where": {"dataset": "minst"}, "run": {"rounds": 1}}]),
         "hbfl.yaml, given 1.where.dataset: no cell has 'minst'; did you mean 'mnist'?"),
        (lambda s: s["figures"]["figure4"].update(shows={"against": "local", "label": "x"}),
         "hbfl.yaml, figure4: 'local_accuracy_best': experiment 'heterogeneous' does not test clients every round"),
        (lambda s: s["figures"]["figure4"].update(curves="folder"), "hbfl.yaml, figure4: no field 'folder' of a cell"),
        (lambda s: s.update(summary=["tabel1"]), "hbfl.yaml, summary: no table is named 'tabel1'; did you mean 'table1'?"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_paper_is_refused_at_planning(config: Path, edit: Callable[[Spec], None], words: str) -> None:
    path = plan.PAPERS / "hbfl.yaml"
    spec = yaml.safe_load(path.read_text())
    edit(spec)
    if words == "no cell of table2 has":  # the item of published numbers that no table takes any more
        spec["tables"]["table2"]["rows"]["client"] = [0, 1]
        spec["tables"]["client_means"]["published"] = ["table3"]
    path.write_text(yaml.safe_dump(spec))
    with pytest.raises(InputError) as error:
        plan.write(config)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("CIFAR10,IID,100,,,FML", "CIFAR1O,IID,100,,,FML", "no cell of table1 has dataset CIFAR1O, setting IID"),
        ("IID,100,,,FML", "IDD,100,,,FML", "no setting of table1 is named 'IDD'; did you mean 'IID'?"),
        ("IID,100,,,FML", "IID,100,,,Fml", "no method of table1 is named 'Fml'; did you mean 'FML'?"),
        ("table1,CIFAR10", "tabel1,CIFAR10", "no table is named 'tabel1'; did you mean 'table1'?"),
        ("80.71", "8o.71", "value '8o.71' of item table1"),
        ("FML,global_accuracy_best,80.71", "FML,global_accuracy_last,80.71", "has dataset CIFAR10"),
        ("IID,100,,,FML", "IID,10,,,FML", "table1: no run of the cell with 80.71 has alpha '10'; did you mean '100'?"),
        ("IID,100,,,FML", "IID,100,,LeNet-5,FML", "no run of the cell with 80.71 has model 'LeNet-5'"),
        ("global_accuracy_best,80.71", "global_accuracy_best,80,71", "line 2: 10 fields, and there are 9 columns"),
        (
            ",,,FML,global_accuracy_best,80.71",
            ",,FML,global_accuracy_best,80.71",
            "line 2: 8 fields, and there are 9 columns",
        ),
        ("method,metric,value\n", "method,metric,value,lrr\n", "line 2: 9 fields, and there are 10 columns"),
    ],
)
def test_a_mistake_in_the_printed_numbers_is_refused_at_planning(
    config: Path, right: str, wrong: str, words: str
) -> None:
    path = plan.PAPERS / "hbfl.published.csv"
    path.write_text(path.read_text().replace(right, wrong, 1))
    with pytest.raises(InputError, match=r"hbfl\.published\.csv: ") as error:
        plan.write(config)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda text: text + text.splitlines()[-1] + "\n", "this cell occurs twice; keep one"),
        (
            lambda text: re.sub(r"(?m)(.)$", r"\1,", text).replace("value,\n", "value,lrr\n", 1),
            "no axis is named 'lrr'",
        ),
        (
            lambda text: (
                re.sub(r"(?m)(.)$", r"\1,", text)
                .replace("80.71,", "80.71,too dear")
                .replace("value,", "value,unplanned")
            ),
            "unplanned: a cell of table1 has dataset CIFAR10, setting IID",
        ),
        (
            lambda text: (
                re.sub(r"(?m)(.)$", r"\1,", text).replace("value,", "value,unplanned", 1)
                + "table1,CIFAR10,wrong labels,,,,FML,accuracy_best,70,no such labels\n"
            ),
            "unknown metric 'accuracy_best'",
        ),
        (lambda text: text.replace("CIFAR10", "CIFÄR10").encode("utf-16"), "this is no text in UTF-8; save it so"),
        (
            lambda text: re.sub(r"(?m)(?<=^table1,)(.*),(\d\d)\.(\d\d)$", r"\1,0.\2\3", text),
            "no accuracy of table1 is above 1: these are fractions; write percent",
        ),
    ],
)
def test_printed_numbers_that_cannot_be_read_are_refused(
    config: Path, content: Callable[[str], str | bytes], words: str
) -> None:
    path = plan.PAPERS / "hbfl.published.csv"
    changed = content(path.read_text())
    path.write_bytes(changed.encode() if isinstance(changed, str) else changed)
    with pytest.raises(InputError, match=rf"hbfl\.published\.csv: .*{words}"):
        plan.write(config)


def test_printed_numbers_may_come_from_a_spreadsheet(config: Path) -> None:
    """Which begins its files by a mark of its own."""
    path = plan.PAPERS / "hbfl.published.csv"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert plan.write(config)["runs"]


def test_the_papers_are_without_mistakes(config: Path) -> None:
    assert plan.write(config)["runs"]
