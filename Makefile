# Every way to build, check and run Tailrace. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
V1 := services/tailrace/v1/__init__.py
UV_VERSION := 0.13.7

# How many seeds `make sim` tries, or the one to replay; `TRACE=1` prints each step.
SEEDS ?=
SEED ?=
TRACE ?=
# How long `make fuzz` looks for bad bytes, and `make bench-groups` commits.
SECONDS ?= 60
# How often `make bench-failover` does each fault (20), and `make bench-peers` each workload (3).
ROUNDS ?=
# How long `make nemesis` runs; the faults come from SEED.
MINUTES ?= 2
# How many processes share the tests: more than cores, for many tests wait for other processes.
WORKERS ?= 4

# The image and the command that builds it. `make e2e` gives it to the cluster of $KUBECONFIG by IMAGE_LOAD: one of the
# presets kind, minikube and lab (build, then hand over), a command of your own, or nothing when it is there already.
IMAGE ?= tailrace:0.1.0
IMAGE_BUILD ?= docker build -t $(IMAGE) -f deploy/docker/Dockerfile .
IMAGE_LOAD ?=
KUBELAB ?= kubelab
LOAD_kind = $(IMAGE_BUILD) && kind load docker-image $(IMAGE)
LOAD_minikube = $(IMAGE_BUILD) && minikube image load $(IMAGE)
LOAD_lab = $(KUBELAB) image . $(IMAGE) -f deploy/docker/Dockerfile --layers
# The image of the Spark jobs; `make spark-image IMAGE_BUILD_SPARK=...` for another builder.
IMAGE_SPARK ?= tailrace-spark:0.1.0
IMAGE_BUILD_SPARK ?= docker build -t $(IMAGE_SPARK) -f deploy/docker/Spark.Dockerfile .
LOAD_SPARK_kind = $(IMAGE_BUILD_SPARK) && kind load docker-image $(IMAGE_SPARK)
LOAD_SPARK_minikube = $(IMAGE_BUILD_SPARK) && minikube image load $(IMAGE_SPARK)
LOAD_SPARK_lab = KUBELAB_BASE=java $(KUBELAB) image . $(IMAGE_SPARK) -f deploy/docker/Spark.Dockerfile --layers
# Which of the end-to-end tests, by pytest's -k; how long all of them may take.
K ?=
E2E_LIMIT_S ?= 1200

# The checker of Prometheus's rules.
PROMTOOL ?= promtool

PYTEST := $(BIN)/python -m pytest
SIM_ENV := $(if $(SEEDS),TAILRACE_SEEDS=$(SEEDS)) $(if $(SEED),TAILRACE_SEED=$(SEED)) $(if $(TRACE),TAILRACE_TRACE=$(TRACE))
TEST_FOLDERS := $(wildcard tests/unit tests/simulation tests/integration)
# The modules that coverage must not miss a line of: the pure ones of the import contract.
PURE := */model.py,*/errors.py,*/epochs.py,*/record/*,*/log/producers.py,*/log/retention.py,*/log/commit.py

# Where the environment forbids to write compiled modules, every process that tests start compiles them anew: a quarter of
# what its start costs.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: image by-hand help setup proto format lint lint-fast test sim integration cover bench bench-log bench-consume bench-failover bench-overload bench-endurance fuzz nemesis demo lock clean
.PHONY: spark-image chart chart-readme load load-spark e2e

help:  ## list the targets
	@awk 'BEGIN {FS = ":.*  ## "} /^[a-z0-9-]+:.*  ## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with everything in requirements.lock (PYTHON=python3.12 picks one)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Tailrace needs Python 3.11 or newer, and '$(PYTHON)' is not: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv package (Debian: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

proto: $(V1)  ## generate services/tailrace/v1 from proto/ (the package build does the same)

$(V1): $(wildcard proto/tailrace/v1/*.proto) hatch_build.py | $(STAMP)
	$(BIN)/python hatch_build.py

format: $(STAMP)  ## let ruff and buf rewrite what they can
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/buf format -w proto

lint: lint-fast  ## check style, types, layers, protocol and spelling
	$(BIN)/mypy
	$(BIN)/codespell

lint-fast: $(V1)  ## the quick half of lint, which pre-commit runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint proto
	$(BIN)/buf format -d --exit-code proto

test: $(V1)  ## run all tests that need nothing but this machine
	$(SIM_ENV) $(PYTEST) -q -n $(WORKERS) --dist loadgroup -m "not e2e and not by_hand" $(TEST_FOLDERS)

sim: $(V1)  ## run the simulations (SEEDS=1000 for more, SEED=7 TRACE=1 to replay one)
	$(SIM_ENV) $(PYTEST) -q $(if $(SEED)$(TRACE),-s,-n $(WORKERS)) $(if $(SEED),-m seeded) tests/simulation

.PHONY: mutants
mutants: $(V1)  ## break the rules of the cluster one by one, and see which seeds of the scenarios notice
	PYTHONPATH=services:tests $(BIN)/python -m simulation.cluster_mutants $(FAULTS)

integration: $(V1)  ## run the tests with real processes and disks
	$(PYTEST) -q tests/integration

by-hand: $(V1)  ## run the tests that take minutes: Spark drivers that die, jobs end to end, expansion, turmoil
	$(PYTEST) -q -m by_hand tests/integration

.PHONY: spark-proof bench-spark
# Where runs are kept as they come: a proof that was cut off goes on from there. PROOF has further options, "--some 1000000" or so.
RESULTS ?= build/spark-proof.jsonl
PROOF ?=
spark-proof: $(V1)  ## kill leaders, drivers, executors and workers under Spark, RUNS=10 times each (an hour)
	@mkdir -p $(dir $(RESULTS))
	PYTHONPATH=services:spark-jobs:tests $(BIN)/python tests/bench/spark_proof.py --runs $(or $(RUNS),10) --results $(RESULTS) --skip-done $(PROOF)

bench-spark: $(V1)  ## measure Spark on Tailrace beside its own connector on Kafka (needs Java and Maven)
	PYTHONPATH=services:spark-jobs:tests timeout 3600 $(BIN)/python tests/bench/bench_spark.py

cover: $(V1)  ## measure coverage: all lines of the pure modules, 85 % elsewhere
	$(PYTEST) -q -n $(WORKERS) --dist loadgroup -m "not e2e and not by_hand" --cov --cov-report= $(TEST_FOLDERS)
	$(BIN)/coverage report --include='$(PURE)' --fail-under=100
	$(BIN)/coverage report --fail-under=85

bench-overload: $(V1)  ## ask three real brokers for far more than they can carry (MINUTES=5)
	PYTHONPATH=tests timeout 1800 $(BIN)/python tests/bench/bench_overload.py --minutes $(or $(MINUTES),1)

bench-endurance: $(V1)  ## mixed load on 1,000 partitions for MINUTES=60, and the memory of every process
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_endurance.py --minutes $(MINUTES)

.PHONY: bench-quick
# Which of the workloads of `make bench-quick` and `make bench-peers`; whether a quick run is stored: add or new.
WORKLOADS ?=
STORE ?=
bench-quick: $(V1)  ## Tailrace beside bare gRPC and a bare disk in two minutes, compared with stored ratios (STORE=add)
	PYTHONPATH=services:tests timeout 300 $(BIN)/python -m bench.quick.run --workloads '$(WORKLOADS)' --store '$(STORE)'

bench: bench-log bench-quick bench-consume bench-failover  ## measure everything (a quarter of an hour)

bench-log: $(V1)  ## measure the log against bare system calls
	$(BIN)/python tests/bench/bench_log.py

bench-consume: $(V1)  ## measure what a consumer reads, as rows and as Arrow, beside bare decoding
	timeout 900 $(BIN)/python tests/bench/bench_consume.py

.PHONY: bench-groups bench-peers
bench-groups: $(V1)  ## ten thousand groups that commit once a second each: what coordinators need for it
	PYTHONPATH=tests timeout 600 $(BIN)/python tests/bench/bench_groups.py --seconds $(SECONDS)

# Where the report goes; docs/benchmarks is the one that is kept. RESUME=1 goes on with a run that was cut off.
# In the foreground, so that Ctrl-C reaches it and it can end its servers.
REPORT ?= build/benchmarks
RESUME ?=
# MINUTES has a default that is meant for others.
GIVEN_MINUTES := $(if $(filter command environment,$(origin MINUTES)),$(MINUTES))
bench-peers: $(V1)  ## side by side with Apache Kafka and NATS: goals, report, plots (WORKLOADS=produce,idle ROUNDS=3 MINUTES=60 RESUME=1 REPORT=folder)
	PYTHONPATH=services:tests timeout --foreground 9000 $(BIN)/python -m bench.peers.run --workloads '$(WORKLOADS)' --rounds $(or $(ROUNDS),3) \
	  $(if $(GIVEN_MINUTES),--minutes $(GIVEN_MINUTES)) $(if $(RESUME),--resume) --report '$(REPORT)'

.PHONY: bench-growth
# Which steps of `make bench-growth`: full or quick.
STEPS ?= full
bench-growth: $(V1)  ## 1 to 1,000 partitions, 1 to 100 clients, 1 MB to 4 GB of backlog: MB/s, CPU, memory (STEPS=quick REPORT=folder)
	PYTHONPATH=services:tests timeout 1200 $(BIN)/python -m bench.growth.run --steps '$(STEPS)' --report '$(REPORT)'

bench-failover: $(V1)  ## measure how long a producer waits after each fault (ROUNDS=20)
	PYTHONPATH=tests timeout 3600 $(BIN)/python tests/bench/bench_failover.py --rounds $(or $(ROUNDS),20)

.PHONY: bench-metrics
bench-metrics: $(V1)  ## measure what metrics cost: counters, a scrape of 1,000 partitions, two clusters in turns
	PYTHONPATH=tests timeout 3600 $(BIN)/python tests/bench/bench_metrics.py --cluster

.PHONY: bench-counting
bench-counting: $(V1)  ## what counting costs brokers under load: they switch it on and off all the time (SECONDS=300)
	PYTHONPATH=services:tests timeout 1800 $(BIN)/python tests/bench/bench_counting.py $(if $(filter command environment,$(origin SECONDS)),--seconds $(SECONDS))

fuzz: $(V1)  ## feed broken bytes to the batch reader, both ends of HTTP/2 and a real cluster (SECONDS=600 for longer)
	PYTHONPATH=services:tests $(BIN)/python tests/fuzz/fuzz_batch.py --seconds $(SECONDS)
	PYTHONPATH=services:tests $(BIN)/python tests/fuzz/fuzz_http2.py --seconds $(SECONDS)
	$(FUZZ_LIVE) --seconds $(SECONDS)

.PHONY: fuzz-live
# How many mutants `make fuzz-live` sends; LIVE has further options, "--spark --json" or so.
BATCHES ?= 1000000
LIVE ?= --spark
FUZZ_LIVE := PYTHONPATH=services:spark-jobs:tests $(BIN)/python tests/fuzz/fuzz_live.py
fuzz-live: $(V1)  ## send mutated batches to a real cluster and read them back with every reader (BATCHES=1000000 SEED=7)
	$(FUZZ_LIVE) --batches $(BATCHES) $(if $(SEED),--seed $(SEED)) $(LIVE)

nemesis: $(V1)  ## random mixes of faults on real processes under a checked load (MINUTES=10 SEED=7)
	PYTHONPATH=tests $(BIN)/python tests/nemesis/run.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

demo: $(V1)  ## show the log at work, then a cluster: kill a leader under load, count what is read back
	$(BIN)/tailrace demo log
	$(BIN)/tailrace demo

.PHONY: docs quick-start
docs: $(V1)  ## build the documentation as a site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html; \`$(BIN)/mkdocs serve\` shows it at http://127.0.0.1:8000/"

quick-start: $(V1)  ## run the commands of docs/quick-start.md on a fresh clone of what is committed (minutes)
	$(PYTEST) -q -s tests/integration/test_quick_start.py

.PHONY: quick-start-container
quick-start-container: $(V1)  ## the same on the smallest Debian with the packages that the page names (as root, with debootstrap)
	$(PYTEST) -q -s tests/container

.PHONY: alerts
alerts:  ## test the alert rules with PROMTOOL (Debian: the package prometheus has it)
	$(PROMTOOL) check rules deploy/prometheus/tailrace.rules.yaml
	$(PROMTOOL) test rules deploy/prometheus/tailrace.rules.test.yaml

.PHONY: metrics-doc
metrics-doc: $(V1)  ## write docs/metrics.md anew from the families that the code declares
	TAILRACE_REWRITE=1 $(PYTEST) -q tests/unit/metrics/test_document.py

image:  ## build the image of all services with IMAGE_BUILD (docker by default) as IMAGE
	$(IMAGE_BUILD)

chart: $(STAMP) chart-readme  ## lint and test the chart (needs helm), and make its README anew
	@command -v helm >/dev/null || { echo "helm is missing: see its site for how to install it" >&2; exit 1; }
	$(PYTEST) -q tests/chart

chart-readme: $(STAMP) dashboards
	$(BIN)/python deploy/helm/readme.py

.PHONY: dashboards
dashboards: $(STAMP)  ## make the Grafana dashboards and the alert rules of the chart anew
	$(BIN)/python deploy/grafana/dashboards.py

# Where the pictures go.
PICTURES ?= build/dashboards
.PHONY: dashboard-pictures
dashboard-pictures: $(V1)  ## draw the dashboards, light and dark, of a cluster that loses a leader (needs prometheus and chromium)
	TAILRACE_PICTURES='$(abspath $(PICTURES))' $(PYTEST) -q -s tests/integration/test_dashboards.py

load:  ## give the image to the cluster of $KUBECONFIG by IMAGE_LOAD: kind, minikube, lab or a command
	$(or $(LOAD_$(IMAGE_LOAD)),$(IMAGE_LOAD),@echo "IMAGE_LOAD is empty: the cluster has $(IMAGE) or finds it")

e2e: $(V1) load  ## install the chart in the cluster of $KUBECONFIG, break things, count (K=leader for some)
	IMAGE=$(IMAGE) timeout $(E2E_LIMIT_S) $(PYTEST) -q -s -x -m e2e $(if $(K),-k '$(K)') tests/e2e

spark-image:  ## build the image of the Spark jobs with IMAGE_BUILD_SPARK as IMAGE_SPARK
	$(IMAGE_BUILD_SPARK)

load-spark:  ## give the image of the Spark jobs to the cluster, by IMAGE_LOAD: kind, minikube or lab
	$(or $(LOAD_SPARK_$(IMAGE_LOAD)),@echo "no preset $(IMAGE_LOAD): the cluster has $(IMAGE_SPARK) or finds it")

lock: LOCK = build/lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header
lock:  ## pin the dependencies of pyproject.toml anew (UPGRADE=1 takes the newest of each)
	@test -x build/lock/bin/uv || { $(PYTHON) -m venv build/lock && build/lock/bin/pip install -q --disable-pip-version-check uv==$(UV_VERSION); }
	$(LOCK) --all-extras $(if $(UPGRADE),--upgrade) pyproject.toml -o requirements.lock
	$(LOCK) -c requirements.lock --extra server --extra operator --extra otel pyproject.toml -o deploy/docker/requirements.txt
	$(LOCK) -c requirements.lock --extra spark pyproject.toml -o deploy/docker/spark-requirements.txt
	$(LOCK) -c requirements.lock deploy/docker/build-requirements.in -o deploy/docker/build-requirements.txt

clean:  ## remove all that was made, .venv too
	rm -rf $(VENV) build dist services/tailrace/v1 .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
	find services operators spark-jobs tests -name __pycache__ -type d -prune -exec rm -rf {} +
