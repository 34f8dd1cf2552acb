"""The tables of speed, as they stand in the repository, for the report of a config with `benchmarks: true`.

Needs   benchmarks/{*-cpu,*-cuda,kernels}.csv, written by `make bench`; others there are about results and data
Gives   results/<config>/speed/*.csv
"""

BENCHMARKS = {
    path.name: path
    for pattern in ("*-cpu.csv", "*-cuda.csv", "kernels.csv")
    for path in sorted(Path("benchmarks").glob(pattern))
    if config.get("benchmarks")
}


rule speed:
    input:
        ancient([path.as_posix() for path in BENCHMARKS.values()]),
    output:
        [
            report(
                f"<results>/speed/{name}",
                caption="../report/speed.rst",
                category="Speed",
                labels={"Benchmark": name.removesuffix(".csv")},
            )
            for name in BENCHMARKS
        ],
        done=touch(f"{MADE}/speed-{files.digest('', list(BENCHMARKS.values()))}"),
    log:
        "<logs>/speed.log",
    benchmark:
        "<benchmarks>/speed.tsv"
    params:
        old=f"{MADE}/speed-*",
        out=lambda wildcards, output: Path(output[0]).parent,
    shell:
        "rm -f {params.old} {params.out}/*.csv && cp {input} {params.out} > {log} 2>&1"


SPEED = rules.speed.output if BENCHMARKS else []
