"""Every benchmark, one after another: `make bench`. Each says what it does and where its table is."""

import runpy

for name in ("training", "ways", "overheads", "scaling"):
    print(f"== benchmarks.{name}", flush=True)
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
