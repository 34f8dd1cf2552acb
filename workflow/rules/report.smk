"""The report: a page of our own that answers first and opens offline, and beside it Snakemake's, which shows how it was made.

Needs   every table, figure and partition picture, the benchmarks; the runs too, since a new one alone makes what is `ancient` new
Gives   reports/<config>.html, reports/<config>-crate/ro-crate-metadata.json, reports/<config>-workflow.html
"""

REPORT_PARTS = [
    *sorted(Path("workflow", "report").glob("*.rst")),
    *BENCHMARKS.values(),
]
PAGE_PARTS = [
    *sorted(
        path
        for path in (planning.PACKAGE / "report").rglob("*.*")
        if path.suffix in (".py", ".html", ".css", ".js")
    ),
    *BENCHMARKS.values(),
]
# The page shows the tables of partitions; of what stands, some have no picture, and no other name tells of them.
if not TRAINING:
    PAGE_PARTS += sorted(Path("results", config["name"], "partitions").rglob("*.csv"))


rule report:
    input:
        ancient(SUMMARIES),
        ancient(OVERVIEWS),
        ancient(TABLES),
        ancient(FIGURES),
        ancient(SPEED),
        ancient(f"reports/{config['name']}-workflow.html"),
    output:
        html=update(f"reports/{config['name']}.html"),
        crate=update(f"reports/{config['name']}-crate/ro-crate-metadata.json"),
        done=touch(f"{MADE}/report-{PRODUCTS}-{files.digest('', PAGE_PARTS)}"),
    log:
        "<logs>/report.log",
    benchmark:
        "<benchmarks>/report.tsv"
    params:
        plan=PLAN_FILE,
        old=f"{MADE}/report-*",
    shell:
        "rm -f {params.old} && bayesfed report {params.plan} --out {output.html} > {log} 2>&1"


rule workflow_report:
    input:
        ancient(SUMMARIES),
        ancient(OVERVIEWS),
        ancient(TABLES),
        ancient(FIGURES),
        ancient(SPEED),
    output:
        html=update(f"reports/{config['name']}-workflow.html"),
        done=touch(
            f"{MADE}/workflow-report-{PRODUCTS}-{files.digest('', REPORT_PARTS)}"
        ),
    log:
        "<logs>/workflow-report.log",
    benchmark:
        "<benchmarks>/workflow-report.tsv"
    params:
        config=(planning.folder(config["name"]) / "config.yaml").as_posix(),
        runs=config.get("runs", "all"),
        old=f"{MADE}/workflow-report-*",
    shell:
        "rm -f {params.old} && "
        "snakemake results --report {output.html} --configfile {params.config} --config runs={params.runs} > {log} 2>&1"
