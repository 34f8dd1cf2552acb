"""Calibration errors by the number of bins, from stored records: nothing is trained.

    python -m analyses.calibration_bins [RUN ...]        # default: all of results/paper/runs

Of every run whose record holds bins, the server's model after the last round: ECE in points with the record's 15 bins and
with 5, three taken together; MCE, the images in its bin, and MCE over the bins that hold a hundred images or more.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayesfed.results.run_records import RunRecord

LEAST = 100  # images


def bins(folder: Path) -> NDArray[np.float64]:
    """Images, right ones and the sum of confidence of each bin after the last round: (3, bins); of none without bins."""
    found = RunRecord(folder).measured()
    count = sum(name.startswith("reliability_") and name.endswith("_images") for name in found)
    every = [[f"reliability_{k + 1}_{what}" for k in range(count)] for what in ("images", "right", "confidence")]
    return np.array([[next(iter(found[name].values())) for name in names] for names in every]).reshape(3, count)


def errors(held: NDArray[np.float64]) -> dict[str, float]:
    """Return the row of a run from its bins (3, bins), whose number three divides."""
    images, right, confidence = held
    gap = np.abs(right - confidence)
    each = np.divide(gap, images, out=np.zeros_like(gap), where=images > 0)
    wider = np.abs((right - confidence).reshape(-1, 3).sum(1))
    return {
        "ECE": 100 * gap.sum() / images.sum(),
        "ECE, 5 bins": 100 * wider.sum() / images.sum(),
        "MCE": 100 * each.max(),
        "images": images[each.argmax()],
        f"MCE of {LEAST}": 100 * each[images >= LEAST].max(initial=0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    asked = parser.parse_args().runs or sorted(path.parent for path in Path("results/paper/runs").rglob("summary.json"))
    held = {folder: bins(folder) for folder in asked}
    rows = {"/".join([folder.parts[-4], *folder.parts[-2:]]): errors(one) for folder, one in held.items() if one.size}
    print(pd.DataFrame(rows).T.round(2).to_string())


if __name__ == "__main__":
    main()
