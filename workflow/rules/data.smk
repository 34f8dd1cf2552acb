"""Datasets, their partitions among clients, and pictures of the partitions.

Needs   nothing but the network or a mirror
Gives   data/<dataset>/, data/partitions/<dataset>/*.npz (or in the config's `partitions`; shared by all configs),
        results/<config>/partitions/<dataset>/*.{svg,png,csv}
"""

PARTITION_FOLDER = Path(config.get("partitions") or "data/partitions").as_posix()
PARTITION_PLACE = ["--partitions", PARTITION_FOLDER] if config.get("partitions") else []


def partition_file(run):
    """Where the partition of a run is; the plan has it relative to the data folder."""
    return f"{PARTITION_FOLDER}/{Path(run['partition']).relative_to('partitions')}"


# Any run of a partition knows all about it.
RUN_OF_PARTITION = {
    partition_file(run): run["runfile"] for run in PLAN["runs"] if run["partition"]
}

PARTITIONS = list(RUN_OF_PARTITION)
DATASETS = [
    f"data/{dataset}/dataset.json"
    for dataset in sorted({name for run in PLAN["runs"] for name in run["datasets"]})
]
PICTURES = [
    [
        Path("partitions", Path(partition).relative_to(PARTITION_FOLDER)).with_suffix(
            end
        )
        for end in (".svg", ".png", ".csv")
    ]
    for partition in PARTITIONS
]
# Of what stands: pictures that were drawn. A table may stand without its pictures, where their size is to be kept.
OVERVIEWS = [
    f"<results>/{picture}"
    for of_one in PICTURES
    if TRAINING or all(Path("results", config["name"], one).exists() for one in of_one)
    for picture in of_one
]
# Before any training: what the most valuable run needs must not wait for a run of less value.
FIRST = len(PLAN["runs"]) + 1


OWN_PARTS = ["--parts", config["parts"]] if config.get("parts") else []


# Names decide what is up to date, never times or records, which a clone lacks: inputs are `ancient`, and a parameter
# that depends on `input`, `output` or `resources` is none of those whose change runs a rule again.
# What is to `update` is not deleted before its job: another sweep's jobs may be reading it.
rule fetch:
    output:
        update("data/{dataset}/dataset.json"),
    log:
        "<logs>/fetch/{dataset}.log",
    benchmark:
        "<benchmarks>/fetch/{dataset}.tsv"
    wildcard_constraints:
        dataset="[^/]+",
    priority: FIRST
    params:
        parts=lambda wildcards, output: OWN_PARTS,
    shell:
        "bayesfed fetch {wildcards.dataset} --data data {params.parts:q} > {log} 2>&1"


rule partition:
    input:
        ancient("data/{dataset}/dataset.json"),
    output:
        update(f"{PARTITION_FOLDER}/{{dataset}}/{{partition}}.npz"),
    log:
        "<logs>/partition/{dataset}/{partition}.log",
    benchmark:
        "<benchmarks>/partition/{dataset}/{partition}.tsv"
    priority: FIRST
    params:
        run=lambda wildcards, output: RUN_OF_PARTITION[output[0]],
        place=lambda wildcards, output: PARTITION_PLACE,
    shell:
        "bayesfed partition {params.run} --data data {params.place:q} > {log} 2>&1"


rule overview:
    input:
        ancient(f"{PARTITION_FOLDER}/{{dataset}}/{{partition}}.npz"),
    output:
        report(
            "<results>/partitions/{dataset}/{partition}.svg",
            caption="../report/partition.rst",
            category="Partitions",
            labels={"Dataset": "{dataset}", "Partition": "{partition}"},
        ),
        multiext("<results>/partitions/{dataset}/{partition}", ".png", ".csv"),
    log:
        "<logs>/overview/{dataset}/{partition}.log",
    benchmark:
        "<benchmarks>/overview/{dataset}/{partition}.tsv"
    params:
        run=lambda wildcards, input: RUN_OF_PARTITION[input[0]],
        place=lambda wildcards, input: PARTITION_PLACE,
        into=lambda wildcards, output: Path(output[0]).parent,
    shell:
        "bayesfed partition {params.run} --data data {params.place:q} --overview {params.into} > {log} 2>&1"
