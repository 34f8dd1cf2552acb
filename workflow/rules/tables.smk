"""Tables in the papers' layout, every run taken apart, the comparison with the published numbers, and the papers' claims.

Needs   the plan, results/<config>/runs/
Gives   results/<config>/tables/<paper>/*.csv, results/<config>/{metrics.json,curves.csv}

Made again when one of their inputs is newer, or other runs are `wanted`. What a rule is to `update`, here and in the rules
of figures and report, is still there when it fails: Snakemake deletes other outputs, and earlier ones are worth more than
none. It puts them back with a new time, though; the file `done`, which it deletes, says that they are to be made again.
"""


rule tables:
    input:
        flow.summaries,
        flow.bytes_later,
        flow.published,
        planned.code("papers", "results"),
        plan=flow.plan_file,
    output:
        update(
            [
                report(
                    f"<results>/tables/{paper}/{item}.csv",
                    caption="../report/table.rst",
                    category="Tables",
                    labels={"Paper": paper, "Table": item, "Shows": shows},
                )
                for paper, item, shows in flow.items("tables")
            ]
        ),
        update(
            [
                report(
                    f"<results>/tables/{paper}/{item}.csv",
                    caption="../report/runs.rst",
                    category="Every run",
                    labels={"Paper": paper, "Shows": shows},
                )
                for paper in flow.papers
                for item, shows in [
                    ("clients", "accuracy of each client"),
                    ("uncertainty", "calibration of each predictor"),
                    ("runs", "keys and numbers of each run"),
                ]
            ]
        ),
        update(
            [
                f"<results>/tables/{paper}/{item}.{end}"
                for paper, item, _ in flow.items("tables")
                for end in ("md", "tex", "numbers.csv")
            ]
        ),
        done=touch("<logs>/tables.done"),
    log:
        "<logs>/tables.log",
    benchmark:
        "<benchmarks>/tables.tsv"
    params:
        wanted=flow.wanted_digest,
        out=lambda wildcards, output: f"{flow.results}/tables",
    shell:
        "bayesfed tables {input.plan} --out {params.out} > {log} 2>&1"


rule published:
    input:
        flow.summaries,
        flow.bytes_later,
        flow.published,
        planned.code("papers", "results"),
        plan=flow.plan_file,
    output:
        update(
            [
                (
                    report(
                        f"<results>/tables/{paper}/{item}.compare.csv",
                        caption="../report/published.rst",
                        category="Comparison with the published numbers",
                        labels={"Paper": paper, "Table": item, "Shows": shows},
                    )
                    if flow.papers[paper]["printed"]
                    else f"<results>/tables/{paper}/{item}.compare.csv"
                )
                for paper, item, shows in flow.items("tables")
            ]
        ),
        update(
            [
                (
                    report(
                        f"<results>/tables/{paper}/claims.csv",
                        caption="../report/claims.rst",
                        category="Claims",
                        labels={
                            "Paper": paper,
                            "Shows": "claims, and where they hold",
                        },
                    )
                    if spec.get("claims")
                    else f"<results>/tables/{paper}/claims.csv"
                )
                for paper, spec in flow.papers.items()
            ]
        ),
        update(
            [
                f"<results>/tables/{paper}/{page}.md"
                for paper in flow.papers
                for page in ("summary", "vs-published")
            ]
        ),
        update(["<results>/metrics.json", "<results>/curves.csv"]),
        done=touch("<logs>/published.done"),
    log:
        "<logs>/published.log",
    benchmark:
        "<benchmarks>/published.tsv"
    params:
        wanted=flow.wanted_digest,
        out=lambda wildcards, output: f"{flow.results}/tables",
    shell:
        "bayesfed published {input.plan} --out {params.out} > {log} 2>&1"
