"""A partition at a glance: a picture (client by class) and a table of what every client holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import files
from bayesfed.data import partition, store
from bayesfed.data.schemes import Scheme

if TYPE_CHECKING:
    import pandas as pd

WRITTEN_OUT = 20  # up to so many rows and columns, numbers are legible


def write(dataset: str, scheme: Scheme, seed: int, data_dir: Path, folder: Path,
          partitions: Path | None = None) -> list[Path]:  # fmt: skip
    """Write the picture (svg, png) and the table (csv) to `folder`, named like the partition; return them.

    Needs the fetched dataset and the built partition, in the folder `partitions` unless in the data folder's; raises
    InputError as `store.load` and `partition.load`.
    """
    dealt = partition.load(dataset, scheme, seed, data_dir, partitions)
    data, parts = partition.as_dealt(store.load(dataset, data_dir), dealt, scheme, seed)
    classes = data.source.classes
    held = {
        "train": counts(parts.train_indices, parts.train_offsets, data.train_labels, classes),
        "test": counts(parts.test_indices, parts.test_offsets, data.test_labels, classes),
    }
    stem = Path(partition.filename(dataset, scheme, seed)).stem
    outputs = [folder / f"{stem}.{kind}" for kind in ("svg", "png", "csv")]
    own = scheme.own_options
    words = [scheme.name, *(value for value in own.values() if isinstance(value, str))]
    how = f"alpha = {own['alpha']:g}" if isinstance(own.get("alpha"), int | float) else " ".join(words)
    title = f"{data.source.title}, {how}, seed {seed}: images of each client"
    picture(held["train"], held["test"], title, outputs[:2])
    with files.replacing(outputs[2]) as scratch:
        statistics(held).to_csv(scratch, index=False, float_format="%.4f", lineterminator="\n")
    return outputs


def counts(
    indices: NDArray[np.int64], offsets: NDArray[np.int64], labels: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """Count images of each class at each client, [clients, classes]."""
    hands = np.split(labels[indices], offsets[1:-1])
    return np.stack([np.bincount(hand, minlength=classes) for hand in hands]).astype(np.int64)


def statistics(held: dict[str, NDArray[np.int64]]) -> pd.DataFrame:
    """Return one row for each client and split of `held` (split -> counts [clients, classes]).

    Columns: client, split, images, classes (with at least one image), largest_class_share (of the client's
    images), label_entropy (bits; log2(classes) if all are equally frequent, 0 for a single class), then the images of
    each class, class_0 and so on. Share and entropy are empty for a client without images.
    """
    import pandas as pd

    rows = []
    for split, table in held.items():
        for client, row in enumerate(table):
            images = int(row.sum())
            shares = row[row > 0] / images if images else np.array([np.nan])
            entropy = abs(float(-(shares * np.log2(shares)).sum()))  # abs: no -0.0 for a single class
            rows.append((client, split, images, int((row > 0).sum()), float(shares.max()), entropy, *row))
    columns = ["client", "split", "images", "classes", "largest_class_share", "label_entropy"]
    columns += [f"class_{number}" for number in range(next(iter(held.values())).shape[1])]
    return pd.DataFrame(rows, columns=columns).sort_values("client", kind="stable")


def picture(train: NDArray[np.int64], test: NDArray[np.int64], title: str, outputs: list[Path]) -> None:
    """Draw counts [clients, classes]: training images by class as a heatmap, beside it each client's totals.

    The format of each output follows from its name (.svg, .png). Test images are shown by their totals only,
    for their shares by class are those of the training images.
    """
    import matplotlib
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    clients, classes = train.shape
    numbers = max(clients, classes) <= WRITTEN_OUT
    colours = ListedColormap(matplotlib.colormaps["YlGnBu"](np.linspace(0.25, 1, 256)))
    # A figure of its own, not pyplot's: no display, no global state. The salt makes equal SVGs equal bytes.
    # And a dollar in a title is a dollar.
    style: dict[Any, Any] = {"svg.hashsalt": "bayesfed", "font.size": 9, "text.parse_math": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.5, min(1.5 + 0.3 * clients, 12)), layout=ConstrainedLayoutEngine(w_pad=0.1))
        heat, totals = figure.subplots(1, 2, width_ratios=(5, 1.3))
        held = np.ma.masked_equal(train, 0)  # a class that a client lacks stays white
        mesh = heat.pcolormesh(held, cmap=colours, vmin=0, edgecolors="0.9", linewidth=0.5 if numbers else 0)
        figure.colorbar(mesh, ax=heat, label="training images of the class", pad=0.01, fraction=0.03, aspect=40)
        heat.invert_yaxis()
        heat.tick_params(length=0)
        heat.set(xlabel="class", ylabel="client")
        heat.spines[:].set(color="0.8")
        for axis, count in (heat.xaxis, classes), (heat.yaxis, clients):
            shown = range(0, count, -(-count // WRITTEN_OUT))
            axis.set_ticks([place + 0.5 for place in shown], [str(place) for place in shown])
        half = train.max() / 2  # darker than that, and a number is white
        for (client, label), images in np.ndenumerate(train) if numbers else ():
            if images:
                colour = "white" if images > half else "black"
                heat.text(label + 0.5, client + 0.5, str(images), size=8, color=colour, ha="center", va="center")
        places = np.arange(clients) + 0.5  # the middles of the heatmap's rows
        totals.barh(places, train.sum(axis=1), color=colours(0.5), height=0.7)
        totals.set(ylim=heat.get_ylim(), yticks=[], xlabel="all training images")
        if clients <= WRITTEN_OUT:
            totals.set(xticks=[], xlabel="all training\n(test) images")
            totals.margins(x=0.9)  # space for the numbers
            for place, images, tested in zip(places, train.sum(axis=1), test.sum(axis=1), strict=True):
                totals.annotate(
                    f"{images} ({tested})",
                    (images, place),
                    (3, 0),
                    textcoords="offset points",
                    va="center",
                    size=8,
                )
        totals.spines[["top", "right"]].set_visible(False)
        totals.spines["bottom"].set_visible(clients > WRITTEN_OUT)
        figure.suptitle(title, fontsize=10)
        for path in outputs:
            kind = path.suffix[1:]
            with files.replacing(path) as scratch:
                metadata = {"Date": None} if kind == "svg" else {}
                figure.savefig(scratch, format=kind, dpi=150, metadata=metadata)
