"""The record of a finished run: small text files that may stay in git for years, sealed by digests.

`summary.json` is written last and holds the sha256 of the other files and of itself. So a record that was edited, cut or
mixed with another is noticed by whoever reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.runs.packing import PACKED, pack, unpack

METRICS = "metrics.csv"
SUMMARY = "summary.json"
# Why there is no accuracy of a global model: the server has no whole network, or its model is not tested there.
NO_GLOBAL, NOT_ON_SHARDS = "no global model", "not tested on shards"
# Why a metric that was measured is no number.
INFINITE, NO_NUMBER, NO_FOREIGN = "infinite", "not a number", "no OOD images"
ONE_KIND = {1.0: "no mistakes", 0.0: "only mistakes"}  # by accuracy: where mistakes cannot be told from the rest
CLIENTS = ".clients"  # ends the name of the folder beside a checkpoint with the client states that are not in it
LATER = "bytes.json"  # bytes of a record from before they were counted, computed without training
SEALED = ("run.yaml", METRICS, "provenance.json")  # not the log, which a later call may go on with


def seal(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write `summary.json`: the summary, the digests of the folder's other files, and its own."""
    digests = {name: files.sha256(folder / name) for name in SEALED}
    files.write_text(folder / SUMMARY, files.sealed_json({**summary, "files": digests}))


def read(folder: Path) -> dict[str, Any] | None:
    """Read the summary of a run and verify its record; None if the run is not finished.

    Raises InputError, naming the file, for a record that is not as the run left it.
    """
    return None if (whole := read_whole(folder)) is None else whole[0]


def read_whole(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """Read the summary of a run and its SEALED files, each once and verified; None, and errors, as in `read`."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    try:
        content = files.read_sealed_json(path)
        stored = {name: content_of(folder, name) for name in SEALED}
        wrong = [name for name in SEALED if content["files"][name] != hashlib.sha256(stored[name]).hexdigest()]
    except (ValueError, KeyError, TypeError):
        raise refused(path, "not as the run wrote it") from None
    except FileNotFoundError as error:
        raise refused(Path(error.filename), "missing in a finished run") from None
    if wrong:
        raise refused(folder / wrong[0], "not as the run wrote it (its sha256 is not the one in summary.json)")
    return content, stored


def content_of(folder: Path, name: str) -> bytes:
    """Read a SEALED file; of a packed record, the `metrics.csv` that was packed.

    Raises FileNotFoundError for one that is missing, ValueError for what was not packed here.
    """
    if name == METRICS and is_packed(folder):
        return unpack((folder / PACKED).read_bytes()).encode()
    return (folder / name).read_bytes()


def is_packed(folder: Path) -> bool:
    """Return whether a record has its metrics in the packed form alone."""
    return (folder / PACKED).exists() and not (folder / METRICS).exists()


def metrics(folder: Path) -> str:
    """Read the text of `metrics.csv` of a finished run, packed or not."""
    return content_of(folder, METRICS).decode()


def pack_record(folder: Path) -> bool:
    """Pack the metrics of a finished run, whose seal stays; false if they are packed, or the run is not finished.

    Raises InputError as `read` does.
    """
    if is_packed(folder) or (found := read_whole(folder)) is None:
        return False
    files.write_bytes(folder / PACKED, pack(found[1][METRICS].decode()))
    (folder / METRICS).unlink()
    return True


def finished(folder: Path) -> dict[str, Any]:
    """Read the summary of a finished run as `read` does; raise InputError if there is none, too."""
    if (summary := read(folder)) is None:
        raise InputError(f"{folder}: no finished run here (there is no {SUMMARY})")
    return summary


def provenance(folder: Path) -> dict[str, Any]:
    """Read how and where a finished run was made: `provenance.json` of a record that `read` has found whole."""
    found: dict[str, Any] = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    return found


def undefined(metric: str, value: float, accuracy: float) -> str:
    """Return why a metric of a model on the full test set is no number, from its value and the model's accuracy; "" for
    one that is.
    """
    if not math.isnan(value):
        return INFINITE if math.isinf(value) else ""
    if metric.startswith(("auroc_foreign", "fpr95_foreign")):
        return NO_FOREIGN
    of_mistakes = metric.startswith(("auroc_mistakes", "fpr95_mistakes"))
    return ONE_KIND.get(accuracy, NO_NUMBER) if of_mistakes else NO_NUMBER


def refused(path: Path, why: str) -> InputError:
    """Return the error for a record that cannot be trusted, and what to do."""
    return InputError(
        f"{path}: {why}; restore it (records of the repository: git checkout), or delete the folder's {SUMMARY} to train it again"
    )


@dataclass(frozen=True)
class Row:
    """One line of metrics.csv; `client` is a number from 0, "global", or "mean".

    With a client's number and the model `global` it is about the server's model on that client's test images.
    """

    round: int
    client: str
    model: str
    metric: str
    value: float
