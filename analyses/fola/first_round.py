"""FOLA's forms above FedAvg after one round, seed by seed, from the finished runs of Figure 3."""

from pathlib import Path
from statistics import fmean

from analyses.markdown import table
from bayesfed.results import csv_file

RUNS = Path(__file__).parents[2] / "results" / "paper" / "tables" / "fola" / "runs.csv"
FORMS = {
    "FOLA as published": "published equations",
    "FOLA": "public code",
    "FOLA, single images": "public code, gradients of single images squared",
    "FOLA, epsilon to FedAvg": "public code, ε pulls to FedAvg's mean",
}
# Not by experiment: those of Figure 4 have the same runs of ten clients among their own.
FIXED = {"models.global": "fola_mlp", "rounds": "1", "method.lr": "0.1", "local_epochs": "1", "batch_size": "32"}
Accuracies = dict[tuple[str, str], dict[tuple[str, str], float]]
"""Accuracy in percent, by (method, seed), then by (clients, alpha)."""


def accuracies(runs: Path) -> Accuracies:
    """Return the global accuracy after one round, of the runs that have one: what has diverged has none."""
    found: Accuracies = {}
    for row in csv_file.read(runs):
        if row["global_accuracy_last_percent"] and all(row[key] == value for key, value in FIXED.items()):
            pair = row["partition.clients"], row["partition.alpha"]
            found.setdefault((row["method"], row["seed"]), {})[pair] = float(row["global_accuracy_last_percent"])
    return found


def above_fedavg(runs: Path = RUNS) -> str:
    """Return a table: in how many pairs of clients and alpha each form is above FedAvg, on the seeds that are whole."""
    found = accuracies(runs)
    pairs = set().union(*found.values())
    seeds = sorted(seed for method, seed in found if method == "FedAvg" and found[method, seed].keys() == pairs)
    rows = []
    for form, words in FORMS.items():
        cells = []
        for seed in seeds:
            mine, base = found.get((form, seed), {}), found["FedAvg", seed]
            leads = [mine[pair] - base[pair] for pair in pairs] if mine.keys() == pairs else []
            told = f"{sum(lead > 0 for lead in leads)} of {len(leads)}, {fmean(leads):+.1f}" if leads else ""
            cells.append(told.replace("-", "−"))
        rows.append([words, *cells])
    return table(["FOLA's form", *(f"seed {seed}" for seed in seeds)], rows)
