"""The cost of all that is counted in a round beside training and tests.

    python -m benchmarks.counting

Counted are bytes, multiply-adds, passes, times, and in detailed rounds (every tenth) what is measured beyond ECE. Ten
clients on 5 000 images of noise in CIFAR-10's shape, 1 000 for tests; ten rounds of one local epoch, of which one is
detailed. The seconds of the processor within what counts are added up, and shown beside those of the rounds: they are too
few to be seen as a difference between rounds with and without. Writes benchmarks/counting-cpu.csv.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from bayesfed.engine import cost, evaluation, rounds
from bayesfed.engine import device as devices
from bayesfed.engine.evaluation import DETAILED_EVERY
from bayesfed.engine.executors import DEFAULT
from bayesfed.engine.rounds import Trainer, begin
from benchmarks import common

CASES = [("fedavg", "mlp"), ("fedavg", "lenet5"), ("hbfl", "mlp")]
TURNS = 5
COUNTING: list[tuple[Any, str]] = [
    (rounds.Round, "size"),
    (cost.MultiplyAdds, "watched"),
    (cost.MultiplyAdds, "of_round"),
    (cost.Stopwatch, "now"),
    (cost.Stopwatch, "seconds"),
    (evaluation.Evaluation, "count_passes"),
    (evaluation, "further"),
]


@contextlib.contextmanager
def added_up() -> Iterator[list[float]]:
    """Collect the processor's seconds of each call that counts, inside."""
    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            started = time.thread_time()
            found = function(*given)
            spent.append(time.thread_time() - started)
            return found

        return call

    with contextlib.ExitStack() as stack:
        for place, name in COUNTING:
            stack.enter_context(mock.patch.object(place, name, timed(getattr(place, name))))
        yield spent


def ten_rounds(trainer: Trainer) -> tuple[float, float]:
    """Play ten rounds; return the processor's seconds of one in the mean, and those within what counts."""
    progress, started = begin(trainer.federation), time.process_time()
    with added_up() as spent:
        for _ in range(DETAILED_EVERY):
            progress = trainer.play(progress)
    return (time.process_time() - started) / DETAILED_EVERY, sum(spent) / DETAILED_EVERY


def main() -> None:
    """Measure every case and write the table."""
    args = common.parser(__doc__).parse_args(["--device", "cpu"])
    device, precision = common.chosen(args)
    data, rows = common.random_images(5_000, 1_000), []
    for method, model in CASES:
        of = common.federation(method, common.models(model, method), data, devices.configure(device, precision))
        trainer = Trainer(of, DEFAULT[device])
        ten_rounds(trainer)
        turns = [ten_rounds(trainer) for _ in range(TURNS)]
        whole, spent = (statistics.median(each) for each in zip(*turns, strict=True))
        row = {
            "method": method, "model": model, "device": device, "precision": precision,
            "round_seconds_before": f"{whole - spent:.4f}", "round_seconds_after": f"{whole:.4f}",
            "more_percent": f"{100 * spent / (whole - spent):.2f}",
        } | common.machine(device)  # fmt: skip
        rows.append(row)
        common.show(row)
    common.write(common.HERE / "counting-cpu.csv", rows)


if __name__ == "__main__":
    main()
