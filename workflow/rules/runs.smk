"""Which runs are wanted, which of them are open, and which short ones are trained in one job.

Needs   the plan, the summaries that stand
Gives   results/<config>/plan/batches/
"""

import json

RUNS = {run["folder"]: run for run in PLAN["runs"]}
STANDING = {
    run: None
    for run in RUNS
    if Path("results", config["name"], "runs", run, "summary.json").exists()
}

# What tables, figures and report are made from.
WANTED = list(RUNS if TRAINING else STANDING)
if not WANTED:
    raise WorkflowError(
        f"results/{config['name']}/runs holds no finished run of this config; train first, without runs=standing"
    )

# Names the runs that results are made from, beside all else that they are made from: a name tells what is up to date.
# Records come and go by other hands where nothing is trained; a summary, which seals its record, tells of another one.
RECORDS = [
    Path("results", config["name"], "runs", run, "summary.json") for run in WANTED
]
PRODUCTS = files.digest(
    " ".join([PLAN["products"], *WANTED]), [] if TRAINING else RECORDS
)

# Where runs are trained their records come later than that name, and a number is behind it: a higher one, and so no mark
# that is there, where a record is gone, or another one than when this was last remembered. Dry runs read this file, too,
# and leave the folder alone: it is for `remember` to write.
MADE = f"results/{config['name']}/made"
REMEMBERED = Path(MADE, f"remembered-{PRODUCTS}.json")


def records_digest():
    """What all records that are wanted are told by; "" where one is missing."""
    whole = all(record.exists() for record in RECORDS)
    return files.digest("", RECORDS) if whole else ""


FOUND = records_digest() if TRAINING else ""
if TRAINING:
    NUMBER, KNOWN = 0, ""
    if REMEMBERED.exists():
        NUMBER, KNOWN = json.loads(REMEMBERED.read_text(encoding="utf-8"))
    # A node of a cluster finds the number of the process that submitted it.
    if workflow.is_main_process and (not FOUND or KNOWN not in ("", FOUND)):
        NUMBER += 1
    PRODUCTS = f"{PRODUCTS}-{NUMBER}"


def remember(records):
    """Write what the next process finds: the records that results are made from, and the batches that are trained."""
    if TRAINING:
        files.write_json(REMEMBERED, (NUMBER, records))
    if BATCHES:
        files.write_json(batch_file(FORMED), BATCHES)


# A run is done when its summary exists, and then it is a file like any other, not a job: no time, record or input
# (data that a clone does not have) can make it run again. Only a report, which runs nothing, tells of all of them.
REPORTING = "--report" in sys.argv and "--report-after-run" not in sys.argv
OPEN = [run for run in WANTED if REPORTING and TRAINING or run not in STANDING]


DATA_OF_RUN = {
    folder: [
        *(f"data/{dataset}/dataset.json" for dataset in run["datasets"]),
        *([partition_file(run)] if run["partition"] else []),
    ]
    for folder, run in RUNS.items()
}


def parts_from(folder):
    """What a link in a folder leads to: the own parts, or the list of datasets beside the link where there are none."""
    parts = Path(config.get("parts") or folder / "datasets.txt")
    return parts if parts.is_absolute() else os.path.relpath(parts, folder.resolve())


CORES = workflow.resource_settings.cores or 1

# Short runs that are open, in batches. A node of a cluster that reads this file anew finds other runs open and would form
# others: so they are in a file, named after what it holds, written by the process that submits the jobs when it starts.
BATCHES = planning.batches(
    [] if REPORTING else [RUNS[run] for run in OPEN],
    CORES,
    config.get("short_runs", {}),
)


def batch_file(formed):
    return planning.folder(config["name"]) / "batches" / f"{formed}.json"


# A finished batch leaves a mark. One that is there while its runs are open is of an earlier time: another name is taken.
def mark(batch):
    return batch_file(batch).with_suffix(".trained").as_posix()


def is_free(formed):
    """Whether no batch of this name has been trained."""
    marks = (mark(f"{formed}-{number}") for number in range(len(BATCHES)))
    return not any(Path(one).exists() for one in marks)


names = (files.digest(json.dumps([BATCHES, count]), []) for count in itertools.count())
FORMED = next(filter(is_free, names))
BATCH_OF = {
    run: f"{FORMED}-{number}"
    for number, folders in enumerate(BATCHES)
    for run in folders
}


def batch(wildcards):
    """The runs of a batch."""
    formed, _, number = wildcards.batch.partition("-")
    if formed == FORMED:
        return BATCHES[int(number)]
    return json.loads(batch_file(formed).read_text(encoding="utf-8"))[int(number)]


# What waits for runs waits for the marks of those that are trained in batches.
SUMMARIES = list(
    dict.fromkeys(
        mark(BATCH_OF[run]) if run in BATCH_OF else f"<results>/runs/{run}/summary.json"
        for run in WANTED
    )
)

# A job a core does no less than one job on several, and more for most small networks (benchmarks/cores-cpu.csv).
# Where fewer jobs are open than there are cores, these share them. Snakemake hands the number to torch by OMP_NUM_THREADS.
JOBS = {BATCH_OF.get(run, run) for run in OPEN}
THREADS = max(1, CORES // max(1, len(JOBS)))
