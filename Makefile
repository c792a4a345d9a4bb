# The developers' commands. `make help` lists them.
#
# Stamp files inside .venv record what was done. So a second `make setup` does nothing, a change of
# pyproject.toml installs again, and a change of conf/jars.xml fetches the new jars.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
FETCHED := .venv/.jars
DIST := dist
SHIPPED := demo monitor sql
ROOMS := bench cli client conf dataframes definitions earlier examples expressions lake memory mesh monitor protocol replica sinks sources state streaming tasks

# Write compiled modules to disk even if the environment forbids it: the tests start hundreds of
# processes, and each would compile all modules again. `make clean` removes the compiled files.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup tools demo test soak sim lint lock audit wheel bench clean

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '%-12s %s\n' "$$name" "$$text"; done

setup: $(INSTALLED) $(FETCHED) ## the environment in .venv, with everything, and the jars

# Check Python and Java before the long installation: an error now is better than a stack trace in five
# minutes.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed: install it, or run make PYTHON=/path/to/python3." >&2; \
		exit 1; }
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null || { command -v java >/dev/null && \
		echo "JAVA_HOME: $$JAVA_HOME has no Java; the one on the PATH is used instead." >&2; } || { \
		echo "Java 17 or newer is needed: install a JRE (Debian and Ubuntu:" \
			"apt-get install openjdk-17-jre-headless), or point JAVA_HOME at one." >&2; \
		exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[celery,dramatiq,demo,monitor,otel,sql,test]'
	@touch $@

$(FETCHED): conf/jars.xml $(INSTALLED)
	@$(BIN)/python -m lakequeue.streaming.jars
	@touch $@

# As root, install the Debian packages. Otherwise the tests that need one name the missing package.
tools: ## Chromium and Prometheus, which tests of the page and of the alert rules use
	@command -v chromium >/dev/null && command -v promtool >/dev/null || \
		{ [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; } || \
		{ apt-get update && apt-get install -y --no-install-recommends \
			chromium fonts-dejavu-core prometheus; } >/dev/null

demo: setup ## send real flights through queues, kill a worker, account for every message
	@$(BIN)/lakequeue demo

# The order of `make test`: lint, then the tests that run in memory, in two processes. Then three job
# runs in parallel that take about equally long:
# - ENGINES share one engine;
# - OWN start their own engines, and run the commands of the documentation, which use the documented ports;
# - KAFKA needs only a Kafka broker; LATE comes last in it.
# Each job run spends a third of its time waiting for a crash, a batch or a timeout. WALKS never wait and
# read no clock, so they run at the lowest priority from the beginning. Every part runs even if another
# part fails; the end of the output repeats the failures of all parts.
# A few minutes after the first engine starts, Java's classes are archived, and a start then takes 26 s of
# CPU instead of 35 s. So the tests that profit come late in each run.
# LINT is a variable because make runs a line that contains $(MAKE) even with -n.
OWN := tests/job/test_chaos.py tests/job/test_standalone.py tests/docs/test_commands_run.py
LATE := tests/job/test_away.py
MARKED := $(sort $(shell grep -rl --include='test_*.py' 'mark\.job' tests))
ENGINES := $(filter-out $(OWN) $(LATE),$(filter tests/job/%,$(MARKED)))
KAFKA := $(filter-out $(OWN) $(ENGINES) $(LATE),$(MARKED)) $(LATE)
WALKS := tests/fuzz tests/mesh tests/model tests/reference tests/rules tests/sim tests/state
IDLY := $(shell chrt -i 0 true 2>/dev/null && echo chrt -i 0) nice -n 19
PYTEST := $(BIN)/pytest $(if $(MAKE_TERMOUT),--color=yes)
JOBS := $(PYTEST) -m job --durations=25
MEMORY := $(PYTEST) -m "not job" --numprocesses 2 --dist loadfile
LINT = $(MAKE) --no-print-directory lint
PARTS := lint memory kafka own walks jobs
beside = { $(2); echo $$? >.venv/$(1).status; } >.venv/$(1).log 2>&1; cat .venv/$(1).log
part = { $(2); echo $$? >.venv/$(1).status; } 2>&1 | tee -i .venv/$(1).log
test: setup tools ## lint, then all tests, with real Kafka and Spark
	@rm -f $(PARTS:%=.venv/%.status)
	@($(call beside,walks,$(IDLY) $(MEMORY) $(WALKS))) & walks=$$!; \
		trap 'for one in $$kafka $$own $$walks; do pkill -P $$one; kill $$one; done' INT TERM; \
		$(call part,lint,$(LINT)); \
		$(call part,memory,$(MEMORY) $(WALKS:%=--ignore=%)); \
		($(call beside,kafka,$(JOBS) $(KAFKA))) & kafka=$$!; \
		($(call beside,own,$(JOBS) $(OWN))) & own=$$!; \
		$(call part,jobs,$(JOBS) $(ENGINES)); wait $$kafka $$own $$walks
	@cd .venv; case "$$(cat $(PARTS:%=%.status) | xargs)" in "0 0 0 0 0 0") ;; "0 0 0 0 0 "*) exit 1 ;; \
		*) for part in $(PARTS); do [ "$$(cat $$part.status)" != 0 ] || { tail -n 1 $$part.log; continue; }; \
			sed -n '/ short test summary info /,$$p' $$part.log | grep . || tail -n 20 $$part.log; done; \
		exit 1 ;; esac

soak: setup ## long random tests: LAKEQUEUE_CHAOS_DEATHS (60) kills with LAKEQUEUE_CHAOS_SEED, LAKEQUEUE_SIM_SEEDS (10000) simulated homes, all planted bugs, long random walks, 10000 Celery tasks
	@LAKEQUEUE_CHAOS_DEATHS="$${LAKEQUEUE_CHAOS_DEATHS:-60}" \
		LAKEQUEUE_CHAOS_SEED="$${LAKEQUEUE_CHAOS_SEED:-$$(date +%s)}" \
		$(BIN)/pytest -q -s tests/job/test_chaos.py
	@PYTHONPATH=tests $(BIN)/python -m sim "$${LAKEQUEUE_CHAOS_SEED:-$$(date +%s)}" --soak "$${LAKEQUEUE_SIM_SEEDS:-10000}"
	@PYTHONPATH=tests $(BIN)/python -m sim --mutants
	@LAKEQUEUE_FUZZ=40 LAKEQUEUE_WALKS=20 $(BIN)/pytest -q --numprocesses auto tests/fuzz tests/model tests/state tests/mesh/test_rejoining.py
	@LAKEQUEUE_JOB_DEATHS=3 $(BIN)/pytest -q tests/job/test_spark_jobs.py
	@PYTHONPATH=tests $(BIN)/python -m job.celery_day

sim: setup ## simulate the home of SEED (0), or COUNT seeds from there on; shortens and prints a failing run
	@PYTHONPATH=tests $(BIN)/python -m sim $(or $(SEED),0) --soak $(or $(COUNT),0)

# mypy takes a package's name from its folder. It reads the packages through a link named lakequeue, so
# the checkout may have any name.
lint: setup ## ruff, mypy, and the import rules
	@$(BIN)/ruff check . && $(BIN)/ruff format --check -q .
	@mkdir -p .venv/src && ln -sfn "$(CURDIR)" .venv/src/lakequeue
	@MYPYPATH=.venv/src $(BIN)/mypy $(ROOMS:%=-p lakequeue.%)
	@$(BIN)/lint-imports

# lock needs the package index, audit the index's list of known vulnerabilities.
lock: setup ## rewrite requirements.lock: the newest packages that fit, with their hashes
	@$(BIN)/pip install --quiet pip-tools
	@CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras --no-emit-index-url \
		--no-emit-trusted-host --no-emit-find-links --allow-unsafe $(SHIPPED:%=--extra %) \
		--output-file requirements.lock pyproject.toml

# --strict: fail if the list does not answer, instead of counting every package as harmless.
audit: setup ## look for known vulnerabilities of the packages in requirements.lock
	@$(BIN)/pip install --quiet pip-audit
	@$(BIN)/pip-audit --strict --requirement requirements.lock --require-hashes --disable-pip

# Remove build/ before and after: setuptools would put deleted modules from it into the wheel.
wheel: $(INSTALLED) ## build the package as one file in dist/, to install without this checkout
	@rm -rf build
	@$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(DIST) .
	@rm -rf build
	@ls $(DIST)/lakequeue-*.whl

bench: setup ## measure this machine with each benchmark
	@for name in core client depth latency throughput churn recovery burst idle-queues; do $(BIN)/lakequeue bench $$name || exit 1; done

clean: ## remove .venv and all files that tools left behind (the jar cache stays)
	rm -rf .venv *.egg-info build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
