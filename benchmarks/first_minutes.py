"""What a newcomer waits for first, in this checkout and in an earlier commit, in turns.

    python -m benchmarks.first_minutes --before COMMIT

Planning of config/paper.yaml, a dry run of its workflow from stored records, its report, and a partition of digits, drawn
and shown. Each is a command as a user gives it, one thread, in a checkout of its own with the records of this one; seconds
of the processor, medians of TURNS. Writes benchmarks/first-minutes-cpu.csv.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bayesfed.engine import device as devices
from benchmarks import common

TURNS = 5
ROOT = common.HERE.parent
PLAN = "results/paper/plan"
BAYESFED = [sys.executable, "-m", "bayesfed"]
DRY_RUN = [sys.executable, "-m", "snakemake", "-n", "--quiet", "--cores", "2", "--configfile", "config/paper.yaml"]
STEPS = {
    "plan": [*BAYESFED, "plan", "config/paper.yaml", "--out", PLAN],
    "dry run": DRY_RUN,
    "report": [*BAYESFED, "report", f"{PLAN}/plan.json", "--out", "reports/paper.html"],
    "partition": [*BAYESFED, "partition", "run.yaml", "--overview", "overview"],
}


def checkout(commit: str, folder: Path) -> None:
    """Write a commit's files to a folder, with the paper's records of this checkout."""
    folder.mkdir()
    kept = [".", ":(exclude)results"]
    archive = subprocess.run(["git", "archive", commit, *kept], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive, check=True)
    shutil.copytree(ROOT / "results" / "paper" / "runs", folder / "results" / "paper" / "runs")
    shutil.copyfile(ROOT / "examples" / "run.yaml", folder / "run.yaml")
    in_checkout(folder, [*BAYESFED, "fetch", "digits"])


def in_checkout(folder: Path, command: list[str]) -> float:
    """Run a command with a checkout's own code; return the processor's seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure every step and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="COMMIT", help="the commit to compare with")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        commits = {args.before: Path(scratch, "before"), "HEAD": Path(scratch, "now")}
        for commit, folder in commits.items():
            checkout(commit, folder)
        for step, command in STEPS.items():
            turns = [[in_checkout(folder, command) for folder in commits.values()] for _ in range(TURNS)]
            before, now = (statistics.median(each) for each in zip(*turns, strict=True))
            row = {
                "step": step, "before": args.before, "before_cpu_seconds": f"{before:.2f}", "cpu_seconds": f"{now:.2f}",
                "times": f"{now / before:.2f}", "threads": 1, "hardware": devices.hardware("cpu"),
            }  # fmt: skip
            rows.append(row)
            common.show(row)
    common.write(common.HERE / "first-minutes-cpu.csv", rows)


if __name__ == "__main__":
    main()
