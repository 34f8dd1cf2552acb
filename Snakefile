"""The whole reproduction: data, partitions, runs, tables, comparison with print, claims, figures, report.

    snakemake --cores all                                     the grid of config/paper.yaml (see profiles/default)
    snakemake --cores all --configfile config/demo.yaml       another one
    snakemake --cores all datasets                            one part: datasets, runs, results (all but the report)
    snakemake --cores all --config runs=standing              results and report from the runs that stand

What is run is decided in config/ and planned by the library (`bayesfed plan`); the rules say how and in what order.
"""

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import is_quiet_about
from snakemake.utils import min_version

from bayesfed.core import files
from bayesfed.core.errors import InputError, in_a_line
from bayesfed.plan import plan as planning

min_version("9.27")  # the first known to take a function as a priority

# Rules call `bayesfed`, which lies beside this Python, in an environment that nobody need have activated.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
)


report: "workflow/report/workflow.rst"


# Used only where `--software-deployment-method apptainer` asks for it; built from bayesfed.def.
container: "bayesfed.sif"


# Snakemake takes no notice of a profile that is not there, and would run everything here.
ARGUMENTS = [part for argument in sys.argv for part in argument.split("=", 1)]
for option, profile in itertools.pairwise(ARGUMENTS):
    if (
        option == "--workflow-profile"
        and profile != "none"
        and not Path(profile).is_dir()
    ):
        known = ", ".join(
            sorted(path.as_posix() for path in Path("profiles").iterdir())
        )
        raise WorkflowError(f"there is no profile {profile}; there are {known}")

# Snakemake has read them, and of a key that stands twice kept the last.
try:
    for path in workflow.configfiles:
        planning.check_file(Path(os.path.relpath(path)))
    PLAN = planning.load(config)
except (InputError, OSError) as error:
    raise WorkflowError(in_a_line(error)[0]) from None

STARTED = time.time()

# Otherwise results are made from the runs that stand, and nothing is trained or fetched.
TRAINING = config.get("runs", "all") == "all"

if config.get("data_mirror"):
    os.environ.update(BAYESFED_MIRROR=config["data_mirror"])


pathvars:
    results=f"results/{config['name']}",
    logs=f"results/{config['name']}/logs",
    benchmarks=f"results/{config['name']}/benchmarks",


include: "workflow/rules/data.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/speed.smk"
include: "workflow/rules/report.smk"


# On a cluster, its login node does these: it has a network.
localrules:
    all,
    fetch,
    datasets,
    runs,
    results,
    report,
    speed,


# Asked before there are jobs: sbatch goes on trying for minutes, without a word.
onstart:
    if workflow.executor_plugin.name == "slurm":
        command = ["scontrol", "ping"]
        try:
            told = subprocess.run(
                command, capture_output=True, text=True, timeout=20
            )
            answer = told.stdout + told.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            answer = str(error)
        if " is UP" not in answer:
            raise WorkflowError(
                f"no Slurm answers here ({' '.join(answer.split())}); start it on a login node of the cluster"
            )
    remember(FOUND)


onsuccess:
    remember(records_digest())


# Quiet about rules, Snakemake keeps to itself why one failed: say it, from the logs that have come since.
onerror:
    if is_quiet_about(workflow.output_settings.quiet or (), "rules"):
        for path in sorted(Path("results", config["name"], "logs").rglob("*.log")):
            if path.stat().st_mtime >= STARTED:
                for line in path.read_text(errors="replace").splitlines():
                    if line.startswith("bayesfed: "):
                        print(line, file=sys.stderr)


# Which datasets a config has, and which contents, and where its own parts are: what DVC goes by.
rule datasets:
    input:
        data=DATASETS,
        partitions=PARTITIONS,
    output:
        "<results>/datasets.txt",
    log:
        "<logs>/datasets.log",
    params:
        parts=lambda wildcards, output: parts_from(Path(output[0]).parent),
        link=f"results/{config['name']}/parts",
    shell:
        "(sha256sum {input.data} > {output} && ln -sfn {params.parts:q} {params.link:q}) 2> {log}"


rule runs:
    input:
        SUMMARIES,


rule results:
    input:
        SUMMARIES,
        OVERVIEWS,
        TABLES,
        FIGURES,
        SPEED,


rule all:
    default_target: True
    input:
        rules.results.input,
        rules.report.output,
        rules.workflow_report.output,
