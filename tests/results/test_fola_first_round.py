"""The table of FOLA's forms after one round, which the page of its results holds."""

from pathlib import Path

from analyses.fola import first_round

HEAD = "method,seed,models.global,rounds,method.lr,local_epochs,batch_size,partition.clients,partition.alpha,global_accuracy_last_percent"


def test_only_seeds_that_are_whole_are_counted(tmp_path: Path) -> None:
    """Of FedAvg, and of a form; a run of another learning rate is none of them."""
    runs = tmp_path / "runs.csv"
    lines = [
        f"{method},{seed},fola_mlp,1,0.1,1,32,{clients},{alpha},{accuracy}"
        for method, seed, accuracy in (("FedAvg", 0, 80), ("FOLA", 0, 79), ("FOLA as published", 0, 83), ("FedAvg", 1, 80), ("FOLA", 2, 90))
        for clients in (5, 10)
        for alpha in (100, 0.1)
    ]  # fmt: skip
    lines += ["FedAvg,2,fola_mlp,1,0.1,1,32,5,100,80", "FOLA,1,fola_mlp,1,0.01,1,32,5,100,80"]
    runs.write_text("\n".join([HEAD, *lines]) + "\n")
    table = first_round.above_fedavg(runs)
    assert table.splitlines()[0] == "| FOLA's form | seed 0 | seed 1 |"
    assert "| published equations | 4 of 4, +3.0 |  |" in table
    assert "| public code | 0 of 4, −1.0 |  |" in table
