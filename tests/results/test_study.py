"""A plan's runs, loaded once."""

import io
import json
from collections import Counter
from pathlib import Path

import pytest

from bayesfed import cli
from bayesfed.core.errors import InputError
from bayesfed.results import study as join

FILES = {"run.yaml", "metrics.csv", "provenance.json", "summary.json"}


@pytest.mark.parametrize("command", [["tables"], ["published"], ["figures"], ["report"]])
def test_a_command_reads_each_file_of_a_run_once(lab, stored, tmp_path, monkeypatch, command):
    """Also where experiments, tables, figures and claims share a run."""
    folders = [lab.cell("heterogeneous", method, seed=seed) for method in ("HBFL", "FML") for seed in (0, 1)]
    lab.cells += [{**cell, "experiment": "ablation"} for cell in lab.cells]
    for folder in folders:
        stored(folder, [0.5, 0.6], [[0.5]] * 10, {"global": {"ece": 0.1}}, on_shards=[[0.5]] * 10, test_images=[5] * 10)
    plan, opened, open_file = lab.plan, Counter[Path](), io.open

    def counting(file, *arguments, **keywords):
        opened[Path(file)] += 1
        return open_file(file, *arguments, **keywords)

    monkeypatch.setattr(io, "open", counting)
    monkeypatch.setattr("builtins.open", counting)
    assert cli.main([*command, str(plan), "--out", str(tmp_path / "out" / "made.html")]) == 0
    assert {opened[folder / name] for folder in folders for name in FILES} == {1}
    assert max(count for path, count in opened.items() if lab.root / "runs" in path.parents) == 1


def test_networks_are_those_of_the_run(lab, stored):
    networks = {"global": "mlp", "local": ["lenet5"] * 10}  # the paper's are others
    stored(lab.cell("heterogeneous", "HBFL", models=networks), [0.5], [[0.8]] * 10)
    (study,) = join.studies(lab.plan)
    assert {(record.level, record.model) for record in study.records if record.level in ("global", "client")} == {
        ("global", "mlp"),
        ("client", "lenet5"),
    }


def test_a_plan_that_counts_clients_from_1_is_refused(lab):
    lab.cell("heterogeneous", "HBFL")
    del lab.spec["first_client"]
    with pytest.raises(InputError, match=r"a plan of another version \(no 'first_client'\); make it anew"):
        join.studies(lab.plan)


def test_a_plan_that_cannot_be_read_is_refused_in_one_line(lab, tmp_path):
    with pytest.raises(InputError, match=r"this is a folder; expected the plan\.json"):
        join.studies(tmp_path)
    with pytest.raises(InputError, match=r"no plan at .*absent\.json"):
        join.studies(tmp_path / "absent.json")
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(InputError, match="is no plan; give"):
        join.studies(tmp_path / "plan.json")
    lab.cell("heterogeneous", "FML")
    older = json.loads(lab.plan.read_text())
    del older["cells"][0]["asks"]
    (lab.plan.parent / "older.json").write_text(json.dumps(older))
    with pytest.raises(InputError, match=r"a plan of another version \(no 'asks'\); make it anew"):
        join.studies(lab.plan.parent / "older.json")


def test_experiments_share_a_record(lab, stored):
    stored(lab.cell("heterogeneous", "HBFL"), [0.5])
    lab.cells.append({**lab.cells[0], "experiment": "ablation"})
    (study,) = join.studies(lab.plan)
    assert {record.experiment for record in study.records} == {"heterogeneous", "ablation"}
    assert len({record.run for record in study.records}) == 1
