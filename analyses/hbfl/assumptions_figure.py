"""HBFL's and FML's assumptions side by side: the picture to the table of `docs/results/hbfl-analysis.md`'s search.

    python -m analyses.hbfl.assumptions_figure [--out docs/images/hbfl-assumptions.png]

Nothing is trained: the records under `results/hbfl-readings/` are read.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from analyses.hbfl import finished_runs
from bayesfed.results.plots import INK, MUTED, STYLE
from bayesfed.results.run_records import RunRecord

ROOT = Path(__file__).parents[2]

GROUPS = ("HBFL", "FML", "FedAvg")
ROW, PANEL = 0.21, 4.2  # inches


def assumptions() -> pd.DataFrame:
    """Return what has been run, by method (rows) and seed (columns): the global model's accuracy in percent, mean of
    the last five rounds. Method by method, the best of the first seed first.
    """
    table = pd.DataFrame(
        {seed: {name: 100 * (RunRecord(folder).summary or {})["global"]["accuracy_last5"] for name, folder in methods.items()}
         for seed, methods in finished_runs.searched().items()}
    )  # fmt: skip
    place = pd.Series({name: GROUPS.index(finished_runs.base_of(name)) for name in table.index}, name="place")
    order = table.assign(place=place).sort_values(["place", table.columns[0]], ascending=[True, False])
    return order.drop(columns="place")


def draw(table: pd.DataFrame, out: Path) -> None:
    """Draw a panel for each seed: a dot for each reading, a line for each of the two methods as the paper has it."""
    palette = dict(zip(GROUPS, sns.color_palette("colorblind"), strict=False))
    with plt.rc_context(STYLE):
        size = 2.2 + PANEL * len(table.columns), 0.9 + ROW * len(table)
        made, panels = plt.subplots(
            1, len(table.columns), figsize=size, layout="constrained", sharex=True, sharey=True, squeeze=False
        )
        for axes, (seed, numbers) in zip(panels[0], table.items(), strict=True):
            for place, (method, accuracy) in enumerate(numbers.items()):
                if pd.isna(accuracy):
                    continue
                group = finished_runs.base_of(method)
                base = accuracy if pd.isna(numbers[group]) else numbers[group]
                axes.plot([base, accuracy], [place, place], color=palette[group], linewidth=2, alpha=0.4)
                axes.plot(accuracy, place, "o", color=palette[group], markersize=6)
                side = -1 if accuracy < base else 1
                axes.annotate(f"{accuracy:.1f}", (accuracy, place), (6 * side, 0), textcoords="offset points", va="center",
                              ha="right" if side < 0 else "left", fontsize=7, color=INK,
                              fontweight="bold" if method == group else "normal")  # fmt: skip
            for group in GROUPS[:2]:
                axes.axvline(numbers[group], color=palette[group], linewidth=1, linestyle=":")
            axes.set_yticks(range(len(table)), table.index)
            for label in axes.get_yticklabels():
                label.set(color=INK, fontweight="bold" if label.get_text() in GROUPS else "normal")
            axes.grid(visible=False, axis="y")
            axes.margins(x=0.1, y=0.02)
            axes.set_title(seed, loc="left", fontsize=9, color=MUTED)
        panels[0][0].invert_yaxis()
        made.supxlabel("global model's accuracy, %, mean of the last five of 40 rounds", color=MUTED, fontsize=9)
        title = "CIFAR-10 at alpha 0.05, 40 rounds\nbold and dotted: HBFL and FML as we read the paper"
        made.suptitle(title, x=0.01, ha="left", fontsize=9)
        made.savefig(out, dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/hbfl-assumptions.png")
    draw(assumptions(), parser.parse_args().out)
