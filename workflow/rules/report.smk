"""The report: one file that opens offline, made by Snakemake from everything above.

Needs   every table, figure and partition picture, the benchmarks; the runs too, since a new one alone makes what is `ancient` new
Gives   reports/<config>.html
"""

REPORT_PARTS = [
    *sorted(Path("workflow", "report").glob("*.rst")),
    *BENCHMARKS.values(),
]


rule report:
    input:
        ancient(SUMMARIES),
        ancient(OVERVIEWS),
        ancient(TABLES),
        ancient(FIGURES),
        ancient(SPEED),
    output:
        html=f"reports/{config['name']}.html",
        done=touch(f"{MADE}/report-{planning.digest(PRODUCTS, REPORT_PARTS)}"),
    log:
        "<logs>/report.log",
    benchmark:
        "<benchmarks>/report.tsv"
    params:
        config=(planning.folder(config["name"]) / "config.yaml").as_posix(),
        runs=config.get("runs", "all"),
        old=f"{MADE}/report-*",
    shell:
        "rm -f {params.old} && "
        "snakemake results --report {output.html} --configfile {params.config} --config runs={params.runs} > {log} 2>&1"
