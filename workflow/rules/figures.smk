"""The papers' figures.

Needs   the plan, results/<config>/runs/
Gives   results/<config>/figures/<paper>/*.{svg,png}
"""


rule figures:
    input:
        ancient(SUMMARIES),
    output:
        update(
            [
                report(
                    f"<results>/figures/{paper}/{item}.svg",
                    caption="../report/figure.rst",
                    category="Figures",
                    labels={"Paper": paper, "Figure": item, "Shows": shows},
                )
                for paper, item, shows in planning.items(PLAN, "figures")
            ]
        ),
        update(
            [
                f"<results>/figures/{paper}/{item}.png"
                for paper, item, shows in planning.items(PLAN, "figures")
            ]
        ),
        update(
            [
                f"<results>/figures/{paper}/{item}.chosen.csv"
                for paper, spec in PLAN["papers"].items()
                for item, figure in spec["figures"].items()
                if "search" in figure
            ]
        ),
        done=touch(f"{MADE}/figures-{PRODUCTS}"),
    log:
        "<logs>/figures.log",
    benchmark:
        "<benchmarks>/figures.tsv"
    params:
        plan=PLAN_FILE,
        old=f"{MADE}/figures-*",
        out=lambda wildcards, output: f"results/{config['name']}/figures",  # also where there are none
    shell:
        "rm -f {params.old} && "
        "bayesfed figures {params.plan} --out {params.out} > {log} 2>&1"


FIGURES = rules.figures.output
