# Everything by one word, on a machine that has Python 3.11 to 3.13, make and git.
#   make demo      sets up, then runs the whole pipeline on digits, report included: minutes on two cores
#   make test      sets up, then runs all tests, side by side on the cores
#   make test-long                          odd input, two thousand of each kind: a quarter of an hour on two cores
#   make test-kills                         every method killed fifty times, and Snakemake and DVC: an hour on two cores
#   make test-remotes                       DVC over S3 and SSH; needs sshd (Debian: openssh-server)
#   make test-slurm                         a sweep through a real Slurm, with faults: needs root, slurm-wlm and munge
#   make setup | lint | bench | report      the set-up alone; style and types; benchmarks; the demo's report again
#   make report CONFIG=paper                the report of another config, from finished runs: nothing is trained or fetched
#   make bench-peers                        FedAvg beside other libraries, each installed apart: gigabytes, minutes
#   make docs                               the documentation site, in site/; fails at dead links
#   make test-report                        report and site in a real browser; needs chromium (Debian: apt-get install chromium)

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && \
	command -v $$python && break; done)
CONFIG ?= demo
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
BIN := .venv/bin
# Every stage is a process of its own: without bytecode on disk each would compile PyTorch again, for seconds.
unexport PYTHONDONTWRITEBYTECODE
STAMP := .venv/.set-up
SNAKEMAKE := $(BIN)/snakemake --cores all --quiet rules progress host
define snakemake
	@test -f config/$(1).yaml || { echo "No config/$(1).yaml; there are: $(basename $(notdir $(wildcard config/*.yaml)))" >&2; exit 2; }
	@$(SNAKEMAKE) $(2) --configfile config/$(1).yaml $(3)
endef

.PHONY: demo docs test test-long test-kills test-report test-remotes test-slurm setup lint bench bench-peers report

demo: $(STAMP)
	$(call snakemake,demo)
	@echo "Open  reports/demo.html: every table, figure and claim of the demo. It trains on digits for a few rounds; do not compare it with the papers."
	@echo "and   reports/demo-methods.html: six methods beside each other, with calibration and cost."
	@echo "Try   .venv/bin/bayesfed train examples/run.yaml --out runs/one     # one run of HBFL: seconds"
	@echo "Then  make report CONFIG=paper     # the papers' results, from finished runs: about a minute. Guides: docs/guides/quickstart.md"

test: $(STAMP)
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal --ignore tests/browser --ignore tests/cluster

test-long: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 tests/runs/test_fuzz.py --hypothesis-profile=long

test-kills: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 tests/engine/test_kills.py tests/workflow/test_killed.py \
		--hypothesis-profile=long

test-report: $(STAMP)
	@test -n "$(CHROMIUM)" || { echo "No chromium here (Debian: apt-get install chromium), or name one: make test-report CHROMIUM=/path/to/it" >&2; exit 2; }
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group docs
	CHROMIUM="$(CHROMIUM)" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser

test-remotes: $(STAMP)
	@command -v sshd || test -x /usr/sbin/sshd || { echo "No sshd here (Debian: apt-get install openssh-server)" >&2; exit 2; }
	$(BIN)/uv pip install --quiet --python $(BIN)/python "dvc[s3,ssh]" "moto[server]"
	$(BIN)/python -m pytest -m cluster tests/cluster/test_remotes.py

test-slurm: $(STAMP)
	@command -v slurmctld slurmd munged || { echo "No Slurm here (Debian: apt-get install slurm-wlm munge)" >&2; exit 2; }
	@test "$$(id -u)" = 0 || { echo "Slurm's daemons and null devices for GPUs need root" >&2; exit 2; }
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s -m cluster tests/cluster/test_slurm.py

docs: $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site: site/index.html (to look at it: $(BIN)/mkdocs serve)"

setup: $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check workflow
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/snakemake --lint --configfile config/test.yaml

bench: $(STAMP)
	$(BIN)/python -m benchmarks

bench-peers: $(STAMP)
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m analyses.pages

report: $(STAMP)
	$(call snakemake,$(CONFIG),--forcerun report,--config runs=finished)
	@echo "The report: reports/$(CONFIG).html"

# `sync` leaves exactly what the lock file names, so the package itself comes after it.
$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 here; name one: make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip sync --python $(BIN)/python requirements.lock
	$(BIN)/uv pip install --python $(BIN)/python --no-deps -e .
	@touch $@
