"""Rounds of FedAvg by other libraries and by this one, on the peers' own workloads, in turns on the same cores.

    python -m benchmarks.peers [--only WORKLOAD ...]

Each peer has an environment of its own, made by uv from `requirements-<peer>.txt`. All contenders of a workload wait in
processes of their own and take turns of about a second; the first two rounds do not count. Seconds and memory are those of
whole rounds, tests included where the peer has them; of Flower's memory those of Ray's processes are not counted. Writes
benchmarks/peers-cpu.csv.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bayesfed.engine import device as devices
from benchmarks import common
from benchmarks.peers.workloads import WORKLOADS

HERE = Path(__file__).parent
PYTHON = {"blazefl": "3.12"}  # where it is not this one's
PEERS = {
    "cifar10-100-clients": ["blazefl", "flower", "fluke"],
    "cifar10-cohorts": ["pfl"],
    "emnist-cnn": ["fedjax"],
    "emnist-mlp": ["fedjax"],
}
TURNS, SECONDS = 7, 1.0


def environment(peer: str) -> Path:
    """Make a peer's environment, unless it is there; return its Python."""
    home = HERE / ".envs" / peer
    python, uv = home / "bin/python", str(Path(sys.executable).with_name("uv"))
    version = PYTHON.get(peer, f"{sys.version_info.major}.{sys.version_info.minor}")
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", version, str(home)], check=True)
    wanted = HERE / f"requirements-{peer}.txt"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), "-r", str(wanted)], check=True)
    return python


class Contender:
    """A process that trains a round of a workload when it is told to."""

    def __init__(self, python: Path, peer: str, workload: str, *options: str) -> None:
        paths = [HERE, HERE / "plugins/networks", *([HERE.parent.parent / "src"] if peer == "bayesfed" else [])]
        self.seconds: list[float] = []
        self.memory = 0
        self.process = subprocess.Popen(
            [str(python), str(HERE / f"{peer}_rounds.py"), workload, *options], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        )  # fmt: skip

    def play(self, rounds: int = 1) -> float:
        """Train rounds; return the seconds of one."""
        ask, answers = self.process.stdin, self.process.stdout
        assert ask is not None
        assert answers is not None
        total = 0.0
        for _ in range(rounds):
            ask.write("\n")
            ask.flush()
            seconds, self.memory = json.loads(answers.readline())
            total += seconds
        return total / rounds

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def rows(workload: str) -> list[dict[str, Any]]:
    """Measure the contenders of a workload: a row a peer."""
    contenders = {peer: Contender(environment(peer), peer, workload) for peer in PEERS[workload]}
    own = {precision: Contender(Path(sys.executable), "bayesfed", workload, precision) for precision in precisions()}
    every = [*contenders.values(), *own.values()]
    rounds = [round(max(1.0, SECONDS / min(one.play(), one.play()))) for one in every]
    for _ in range(TURNS):
        for one, count in zip(every, rounds, strict=True):
            one.seconds.append(one.play(count))
    for one in every:
        one.close()
    found = []
    for peer, one in contenders.items():
        images = WORKLOADS[workload].images
        row = {
            "workload": workload,
            "peer": version(peer),
            "peer_images_per_second": rate(images, one),
            "peer_mib": one.memory,
        }
        for precision, ours in own.items():
            row |= {
                f"{precision}_images_per_second": rate(images, ours),
                f"{precision}_mib": ours.memory,
                f"{precision}_times_the_peer": f"{common.median_ratio(one.seconds, ours.seconds):.2f}",
            }
        found.append(row | common.machine("cpu"))
        common.show(found[-1])
    return found


def precisions() -> list[str]:
    """Return fp32, which the peers compute in, and the one that a job would have here."""
    return list(dict.fromkeys(["fp32", devices.choose_precision("auto", "cpu")]))


def rate(images: int, one: Contender) -> int:
    """Return how many images a contender trained on in a second, the median of its turns."""
    return round(images / statistics.median(one.seconds))


def version(peer: str) -> str:
    """Return a peer with its version, as its requirements name it."""
    return (HERE / f"requirements-{peer}.txt").read_text().splitlines()[0]


def main() -> None:
    """Measure the workloads and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="WORKLOAD", choices=WORKLOADS, default=WORKLOADS, help="default: all"
    )
    for workload in parser.parse_args().only:
        common.write(HERE.parent / "peers-cpu.csv", rows(workload), "workload", "hardware")


if __name__ == "__main__":
    main()
