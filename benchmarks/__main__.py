"""Every benchmark, one after another, and README's tables: `make bench`. Each says what it does and where its table is.

Apart from these: `benchmarks.gpu`, what needs a GPU (`docs/gpu.md`), `benchmarks.precision`, an hour of training,
`benchmarks.startup` and `benchmarks.precision_matrix` (a figure of FOLA), on MNIST as it was fetched, and
`benchmarks.signals`, of `docs/reliability.md`; `benchmarks.bins`, of calibration, and `benchmarks.draws`,
`benchmarks.classes`, `benchmarks.hbfl`, `benchmarks.search` and `benchmarks.shards`, of HBFL's Tables 1 to 3, which time
nothing.
"""

import argparse
import subprocess
import sys

argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

for name in ("training", "cores", "augment", "ways", "overheads", "scaling", "kernels", "pages"):
    print(f"== benchmarks.{name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
