"""The papers' figures.

Needs   the plan, results/<config>/runs/
Gives   results/<config>/figures/<paper>/*.{svg,png}
"""


rule figures:
    input:
        flow.summaries,
        flow.published,
        planned.code("papers", "results"),
        plan=flow.plan_file,
    output:
        update(
            [
                report(
                    f"<results>/figures/{paper}/{item}.svg",
                    caption="../report/figure.rst",
                    category="Figures",
                    labels={"Paper": paper, "Figure": item, "Shows": shows},
                )
                for paper, item, shows in flow.items("figures")
            ]
        ),
        update(
            [
                f"<results>/figures/{paper}/{item}.png"
                for paper, item, _ in flow.items("figures")
            ]
        ),
        update(
            [
                f"<results>/figures/{paper}/{item}.chosen.csv"
                for paper, item in flow.searched
            ]
        ),
        done=touch("<logs>/figures.done"),
    log:
        "<logs>/figures.log",
    benchmark:
        "<benchmarks>/figures.tsv"
    params:
        wanted=flow.wanted_digest,
        out=lambda wildcards, output: f"{flow.results}/figures",
    shell:
        "bayesfed figures {input.plan} --out {params.out} > {log} 2>&1"
