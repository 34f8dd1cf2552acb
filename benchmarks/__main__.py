"""Every benchmark, one after another, and the pages' tables: `make bench`. Each says what it does and where its table is.

Apart from these: `benchmarks.gpu`, what needs a GPU (`docs/guides/gpu.md`), `benchmarks.peers`, other libraries,
`benchmarks.precision`, an hour of training, `benchmarks.startup`, on MNIST as fetched, `benchmarks.first_minutes`, beside an
earlier commit, and `benchmarks.signals`, of `docs/internals/reproducibility.md`. What looks at results and times nothing is
in `analyses/`.
"""

import argparse
import subprocess
import sys

argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

for name in ("training", "cores", "augment", "ways", "overheads", "counting", "scaling", "kernels", "loops"):
    print(f"== benchmarks.{name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)

subprocess.run([sys.executable, "-m", "analyses.pages"], check=True)
