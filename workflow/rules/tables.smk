"""Tables in the papers' layout, every run taken apart, the comparison with print, and the papers' claims.

Needs   the plan, results/<config>/runs/
Gives   results/<config>/tables/<paper>/*.csv

What these rules read beside the runs (plan, papers, published numbers, their code) is hashed, and the hash stands in
the name of the file that marks a rule as done: a change is seen in a clone that has no records of earlier runs too. Of a
single table or figure that is asked for by its path Snakemake does not look for the mark: `results` does.

What a rule is to `update`, here and in the rules of figures and report, is still there when it fails: Snakemake deletes other
outputs, and earlier ones are worth more than none.
"""

PLAN_FILE = (planning.folder(config["name"]) / "plan.json").as_posix()


rule tables:
    input:
        ancient(SUMMARIES),
    output:
        update(
            [
                report(
                    f"<results>/tables/{paper}/{item}.csv",
                    caption="../report/table.rst",
                    category="Tables",
                    labels={"Paper": paper, "Table": item, "Shows": shows},
                )
                for paper, item, shows in planning.items(PLAN, "tables")
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
                for paper in PLAN["papers"]
                for item, shows in [
                    ("clients", "accuracy of each client"),
                    ("uncertainty", "calibration of each predictor"),
                ]
            ]
        ),
        done=touch(f"{MADE}/tables-{PRODUCTS}"),
    log:
        "<logs>/tables.log",
    benchmark:
        "<benchmarks>/tables.tsv"
    params:
        plan=PLAN_FILE,
        old=f"{MADE}/tables-*",
        out=lambda wildcards, output: Path(output[0]).parents[1],
    shell:
        "rm -f {params.old} && bayesfed tables {params.plan} --out {params.out} > {log} 2>&1"


rule compare:
    input:
        ancient(SUMMARIES),
    output:
        update(
            [
                (
                    report(
                        f"<results>/tables/{paper}/{item}.compare.csv",
                        caption="../report/compare.rst",
                        category="Comparison with print",
                        labels={"Paper": paper, "Table": item, "Shows": shows},
                    )
                    if PLAN["papers"][paper]["printed"]
                    else f"<results>/tables/{paper}/{item}.compare.csv"
                )
                for paper, item, shows in planning.items(PLAN, "tables")
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
                    if PLAN["papers"][paper].get("claims")
                    else f"<results>/tables/{paper}/claims.csv"
                )
                for paper in PLAN["papers"]
            ]
        ),
        update(
            [
                f"<results>/tables/{paper}/{page}.md"
                for paper in PLAN["papers"]
                for page in ("glance", "agreement")
            ]
        ),
        update(["<results>/metrics.json", "<results>/curves.csv"]),
        done=touch(f"{MADE}/compare-{PRODUCTS}"),
    log:
        "<logs>/compare.log",
    benchmark:
        "<benchmarks>/compare.tsv"
    params:
        plan=PLAN_FILE,
        old=f"{MADE}/compare-*",
        out=lambda wildcards, output: Path(output[0]).parents[1],
    shell:
        "rm -f {params.old} && bayesfed compare {params.plan} --out {params.out} > {log} 2>&1"


TABLES = [rules.tables.output, rules.compare.output]
