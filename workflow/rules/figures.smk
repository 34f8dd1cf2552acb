"""The papers' figures.

Needs   the plan, results/<config>/runs/
Gives   results/<config>/figures/figures.csv, and <paper>/*.{svg,png} of each figure that has a curve
"""


rule figures:
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
                    f"<results>/figures/{paper}/{item}.svg",
                    caption="../report/figure.rst",
                    category="Figures",
                    labels={"Paper": paper, "Figure": item, "Shows": shows},
                )
                for paper, item, shows in flow.drawn(sys.argv)
            ]
        ),
        update("<results>/figures/figures.csv"),
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
