"""The report: a page of our own that answers first and opens offline, and beside it Snakemake's, which shows how it was made.

Needs   every run, table, figure and partition picture, the benchmarks
Gives   reports/<config>.html, reports/<config>-crate/ro-crate-metadata.json, reports/<config>-workflow.html; of papers and
        grounds in one config reports/<config>-methods.html
"""


rule report:
    input:
        flow.summaries,
        flow.overviews,
        flow.shown_partitions,
        rules.tables.output,
        rules.published.output,
        rules.figures.output,
        rules.speed.output,
        f"reports/{config['name']}-workflow.html",
        planned.code("report"),
        plan=flow.plan_file,
    output:
        html=update(f"reports/{config['name']}.html"),
        crate=update(f"reports/{config['name']}-crate/ro-crate-metadata.json"),
        methods=update(flow.methods_page),
        done=touch("<logs>/report.done"),
    log:
        "<logs>/report.log",
    benchmark:
        "<benchmarks>/report.tsv"
    shell:
        "bayesfed report {input.plan} --out {output.html} > {log} 2>&1"


rule workflow_report:
    input:
        flow.summaries,
        flow.overviews,
        rules.tables.output,
        rules.published.output,
        rules.figures.output,
        rules.speed.output,
        [path.as_posix() for path in sorted(Path("workflow/report").glob("*.rst"))],
    output:
        html=update(f"reports/{config['name']}-workflow.html"),
        done=touch("<logs>/workflow-report.done"),
    log:
        "<logs>/workflow-report.log",
    benchmark:
        "<benchmarks>/workflow-report.tsv"
    params:
        config=flow.config_file,
        runs=lambda wildcards, output: config.get("runs", "all"),  # no trigger
        wanted=flow.wanted_digest,
    shell:
        "snakemake results --report {output.html} --configfile {params.config} --config runs={params.runs} > {log} 2>&1"
