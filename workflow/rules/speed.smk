"""The tables of speed, as they are in the repository, for the report of a config with `benchmarks: true`.

Needs   benchmarks/{*-cpu,*-cuda,kernels}.csv, written by `make bench`
Gives   results/<config>/speed/*.csv
"""


rule speed:
    input:
        list(flow.benchmarks.values()),
    output:
        [
            report(
                f"<results>/speed/{name}",
                caption="../report/speed.rst",
                category="Speed",
                labels={"Benchmark": name.removesuffix(".csv")},
            )
            for name in flow.benchmarks
        ],
    log:
        "<logs>/speed.log",
    benchmark:
        "<benchmarks>/speed.tsv"
    params:
        names=list(flow.benchmarks),
        out=lambda wildcards, output: f"{flow.results}/speed",
    shell:
        "rm -f {params.out}/*.csv && cp {input} {params.out} > {log} 2>&1"
