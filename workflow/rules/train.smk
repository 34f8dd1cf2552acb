"""Training: one long run a job, or several short ones, so that not each of them pays for starting Python and torch.

Needs   the run files of the plan, data/<dataset>/, data/partitions/<dataset>/*.npz (or in the config's `partitions`)
Gives   results/<config>/runs/<dataset>/<partition>/<method>/seed~S-<key>/, results/<config>/checkpoints/

The plan says which runs are a job. It is known by the last of them that is open, whose summary is the one declared output:
what Snakemake declares it deletes before a job starts, except what is to `update`, and checkpoints must outlive that. The
runs are trained one after another; one that fails leaves the others alone, and the job fails at its end. A finished run is
in none: only open ones match `{run}`. `exec`, since signals must reach the trainer.
"""


rule train:
    input:
        runs=lambda wildcards: ancient(flow.run_files(wildcards.run)),
        data=lambda wildcards: ancient(flow.data(wildcards.run)),
    output:
        update("<results>/runs/{run}/summary.json"),
    log:
        "<logs>/train/{run}.log",
    benchmark:
        "<benchmarks>/train/{run}.tsv"
    wildcard_constraints:
        run=flow.trainable,
    priority: lambda wildcards: flow.priority(wildcards.run)
    # Snakemake hands the number to torch by OMP_NUM_THREADS.
    threads: flow.threads
    resources:
        gpu=1,
    params:
        runs=lambda wildcards, output: f"{flow.results}/runs",
        checkpoints=f"{flow.results}/checkpoints",
        device=lambda wildcards, resources: "cpu" if resources.gpu == 0 else "auto",
        slots=config.get("gpu_slots", 1),
        precision=config.get("precision", "auto"),
        weights=config.get("weights") or "weights",
        partitions=flow.option("partitions"),
    shell:
        "exec bayesfed train {input.runs} --data data --runs {params.runs} --checkpoints {params.checkpoints}"
        " --device {params.device} --precision {params.precision} --gpu-slots {params.slots} --weights {params.weights:q}"
        " {params.partitions:q} > {log} 2>&1"
