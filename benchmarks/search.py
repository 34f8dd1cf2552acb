"""HBFL's and FML's readings side by side: the picture to the table of `docs/hbfl.md`'s search.

    python -m benchmarks.search [--out docs/images/readings.png]

Nothing is trained: it reads `results/hbfl-readings/tables/hbfl/readings.csv`.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from bayesfed.results.figures import INK, MUTED, STYLE
from benchmarks.common import HERE

TABLE = HERE.parent / "results/hbfl-readings/tables/hbfl/readings.csv"
GROUPS = ("HBFL", "FML", "FedAvg")
ROW = 0.21  # inches


def readings() -> pd.DataFrame:
    """What has been run: `method`, `group` and the global model's `accuracy` in percent, mean of the last five rounds; the best first
    in each group."""
    table = pd.read_csv(TABLE).dropna(subset="best last5")
    table["group"] = table["method"].str.split(r"[ ,]", regex=True).str[0]
    table["place"] = table["group"].map(GROUPS.index)
    return table.rename(columns={"best last5": "accuracy"}).sort_values(["place", "accuracy"], ascending=[True, False])


def draw(table: pd.DataFrame, out: Path) -> None:
    """A dot for each reading, a line for each of the two methods as the paper has it."""
    palette = dict(zip(GROUPS, sns.color_palette("colorblind"), strict=False))
    with plt.rc_context(STYLE):
        made, axes = plt.subplots(figsize=(6.4, 0.9 + ROW * len(table)), layout="constrained")
        places = range(len(table))
        for place, (method, group, accuracy) in enumerate(
            table[["method", "group", "accuracy"]].itertuples(index=False)
        ):
            base = table.loc[table["method"] == group, "accuracy"].iloc[0]
            axes.plot([base, accuracy], [place, place], color=palette[group], linewidth=2, alpha=0.4)
            axes.plot(accuracy, place, "o", color=palette[group], markersize=6)
            weight = "bold" if method == group else "normal"
            side = -1 if accuracy < base else 1
            axes.annotate(f"{accuracy:.1f}", (accuracy, place), (6 * side, 0), textcoords="offset points", va="center",
                          ha="right" if side < 0 else "left", fontsize=7, color=INK, fontweight=weight)  # fmt: skip
        for group in GROUPS[:2]:
            axes.axvline(
                table.loc[table["method"] == group, "accuracy"].iloc[0],
                color=palette[group],
                linewidth=1,
                linestyle=":",
            )
        axes.set_yticks(places, table["method"])
        for label, method in zip(axes.get_yticklabels(), table["method"], strict=True):
            label.set(color=INK, fontweight="bold" if method in GROUPS else "normal")
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.1, y=0.02)
        axes.set_xlabel("global model's accuracy, %, mean of the last five of 40 rounds", color=MUTED)
        seeds = " or ".join(table["seeds"].unique())
        title = f"CIFAR-10 at alpha 0.05, 40 rounds, seeds 97 to 99 ({seeds} run)\nbold and dotted: HBFL and FML as we read the paper"
        made.suptitle(title, x=0.01, ha="left", fontsize=9)
        made.savefig(out, dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs/images/readings.png")
    draw(readings(), parser.parse_args().out)
