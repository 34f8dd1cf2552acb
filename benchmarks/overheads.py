"""The cost of a run of the paper's size beside its training: evaluation, aggregation, checkpoints, start-up.

    python -m benchmarks.overheads [--device auto|cpu|cuda] [--precision ...]

50 000 and 10 000 images, ten clients, 100 rounds of five local epochs. A plain round and a detailed one (every tenth)
are played without any local step, which leaves all that is not training; one local epoch is timed apart and counted
five times; a checkpoint is written every 30 s. Writes benchmarks/overheads-<device>.csv.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bayesfed.engine import checkpoint
from bayesfed.engine import device as devices
from bayesfed.engine.evaluation import DETAILED_EVERY
from bayesfed.engine.executors import DEFAULT, EXECUTORS
from bayesfed.engine.rounds import Trainer, begin
from bayesfed.engine.training import CHECKPOINT_SECONDS
from benchmarks import common

CASES = [("fedavg", "cnn2"), ("fml", "mixed"), ("hbfl", "mixed")]
ROUNDS, EPOCHS = 100, 5


def measure(method: str, model: str, data: common.Dataset, device: str, precision: str) -> dict[str, Any]:
    """Measure one row."""
    of = common.federation(method, common.models(model, method), data, devices.configure(device, precision))
    train = common.local_training(of, EXECUTORS[DEFAULT[device]](of))
    if device == "cuda":
        train()  # recording
    training = EPOCHS * timed(train)
    of.method.phases = lambda c: []  # type: ignore[method-assign]
    trainer = Trainer(of, DEFAULT[device])
    progress = trainer.play(begin(of))
    plain = timed(lambda: trainer.play(progress))
    progress.round = DETAILED_EVERY - 1
    detailed = timed(lambda: trainer.play(progress))
    with tempfile.TemporaryDirectory() as folder:
        record = checkpoint.Header("key", precision, DEFAULT[device])
        saving = timed(lambda: checkpoint.save(Path(folder) / "c", progress, record))
    import_torch = timed(lambda: subprocess.run([sys.executable, "-c", "import bayesfed.engine.training"], check=True))
    place = timed(lambda: common.federation(method, common.models(model, method), data, of.compute))
    start = import_torch + place
    rounds = ROUNDS * training + (ROUNDS - ROUNDS // DETAILED_EVERY) * plain + ROUNDS // DETAILED_EVERY * detailed
    saves = 1 + rounds / max(CHECKPOINT_SECONDS, rounds / ROUNDS)
    overhead = rounds - ROUNDS * training + saves * saving + start
    return {
        "method": method, "model": model, "device": device, "precision": precision,
        "training_seconds_per_round": f"{training:.2f}", "plain_round_seconds": f"{plain:.2f}",
        "detailed_round_seconds": f"{detailed:.2f}", "checkpoint_seconds": f"{saving:.3f}", "start_seconds": f"{start:.1f}",
        "run_seconds": round(ROUNDS * training + overhead),
        "overhead_percent": f"{100 * overhead / (ROUNDS * training + overhead):.1f}",
    } | common.machine(device)  # fmt: skip


def timed(work: Any) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure every case and write the table."""
    device, precision = common.chosen(common.parser(__doc__).parse_args())
    data, rows = common.random_images(50_000, 10_000), []
    for method, model in CASES:
        rows.append(measure(method, model, data, device, precision))
        common.show(rows[-1])
    common.write(common.HERE / f"overheads-{device}.csv", rows)


if __name__ == "__main__":
    main()
