"""Datasets, their partitions among clients, and pictures of the partitions.

Needs   nothing but the network or a mirror
Gives   data/<dataset>/, data/partitions/<dataset>/*.npz (or in the config's `partitions`; shared by all configs),
        results/<config>/partitions/<dataset>/*.{svg,png,csv}

Names decide what is up to date, never times or records, which a clone lacks: inputs are `ancient`, and a parameter that
depends on `input`, `output` or `resources` is none of those whose change runs a rule again. What is to `update` is not
deleted before its job: another sweep's jobs may be reading it.
"""


rule fetch:
    output:
        update("data/{dataset}/dataset.json"),
    log:
        "<logs>/fetch/{dataset}.log",
    benchmark:
        "<benchmarks>/fetch/{dataset}.tsv"
    wildcard_constraints:
        dataset="[^/]+",
    priority: flow.data_priority
    params:
        plugins=lambda wildcards, output: flow.option("plugins"),
    shell:
        "bayesfed fetch {wildcards.dataset} --data data {params.plugins:q} > {log} 2>&1"


rule partition:
    input:
        ancient("data/{dataset}/dataset.json"),
    output:
        update(f"{flow.partition_folder}/{{dataset}}/{{partition}}.npz"),
    log:
        "<logs>/partition/{dataset}/{partition}.log",
    benchmark:
        "<benchmarks>/partition/{dataset}/{partition}.tsv"
    priority: flow.data_priority
    params:
        run=lambda wildcards, output: flow.runs_of_partitions[output[0]],
        place=lambda wildcards, output: flow.option("partitions"),
    shell:
        "bayesfed partition {params.run} --data data {params.place:q} > {log} 2>&1"


rule overview:
    input:
        ancient(f"{flow.partition_folder}/{{dataset}}/{{partition}}.npz"),
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
        run=lambda wildcards, input: flow.runs_of_partitions[input[0]],
        place=lambda wildcards, input: flow.option("partitions"),
        into=lambda wildcards, output: Path(output[0]).parent,
    shell:
        "bayesfed partition {params.run} --data data {params.place:q} --overview {params.into} > {log} 2>&1"
