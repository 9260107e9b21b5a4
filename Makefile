# `make` targets are the whole interface. They need Python 3.11 and nothing of ours; what they make lies in .venv and .engine.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: bench-ingest test-durability test-causes bench-trend help setup engine demo test test-gpu test-kv-settings lint format docs lock wheel bench-query bench-diagnose bench-judge bench-timeline bench-frontend bench-overhead bench-gateway bench-gpu-sampler bench-triage score soak-gateway clean

PYTHON ?= $(shell for name in python3.11 python3 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$name && break; done)
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
TOOLS := tools/imports.py tools/docs.py tools/lock.py tools/screenshot.py tools/record_demo.py tools/score.py tools/ablate.py tools/engine/build.py tools/engine/serve.py tools/engine/torch_source.py

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: .venv/installed ## the environment in .venv, from the lock file

.venv/created:
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 found: install it, or set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setup: environment in .venv"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/locked: requirements/dev.lock .venv/created
	@echo "setup: $$(grep -c == requirements/dev.lock) packages from requirements/dev.lock"
	@$(PIP) install --quiet --require-hashes -r requirements/dev.lock
	@touch $@

.venv/installed: pyproject.toml .venv/locked
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

engine: ## the CPU vLLM and its tiny model in .engine
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 found: install it, or set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) tools/engine/build.py

demo: setup ## seven faults on a real engine, each diagnosed; ONCE=1 ends after the tour, ENGINE_URL=... uses a running engine
	@$(PY) -m lensd demo $(if $(ONCE),--once) $(if $(ENGINE_URL),--engine-url '$(ENGINE_URL)')

test: setup ## all tests: on every core those without an engine, then those against a real one; PYTEST_ARGS=... for some
	@$(MAKE) --no-print-directory engine || echo "engine: not built; the tests that need it are named below" >&2
ifdef PYTEST_ARGS
	@$(PY) -m pytest $(PYTEST_ARGS)
else
	@failed=0; \
	$(PY) -m pytest -m "not engine" --numprocesses logical --maxprocesses 4 --dist loadfile || failed=1; \
	$(PY) -m pytest -m engine || failed=1; \
	exit $$failed
endif

test-kv-settings: setup engine ## the KV cache of a real engine under every setting that is predicted, each with a start of its own
	@LENSD_EVERY_KV_SETTING=1 LENSD_REQUIRE=engine $(PY) -m pytest tests/engine/test_kv_blocks_real.py $(PYTEST_ARGS)

test-causes: setup engine ## causes brought about in real engines, named live and from bundles of them; five minutes
	@LENSD_REAL_CAUSES=1 LENSD_REQUIRE=engine $(PY) -m pytest tests/engine/test_causes_real.py $(PYTEST_ARGS)

test-durability: setup ## KILLS=300 times kill -9 of a writer in every phase, and of a daemon; a daemon that stands still; damaged files
	@LENSD_KILLS=$(or $(KILLS),300) $(PY) -m pytest tests/durability $(PYTEST_ARGS)

test-gpu: setup ## the sampler on this host's own GPU, and memory that really runs out; LENSD_TORCH_PYTHON=... has torch with CUDA
	@$(PY) -m pytest tests/gpu $(PYTEST_ARGS)

lint: setup ## ruff, mypy, the import walk, the made pages
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo "format: run \`make format\`" >&2; exit 1; }
	@$(PY) -m mypy
	@MYPYPATH=tools:tools/engine:tests/incidents:bench $(PY) -m mypy $(TOOLS)
	@$(PY) tools/imports.py
	@$(PY) tools/docs.py --check

format: setup ## the code in the one format
	@$(PY) -m ruff format .

docs: setup ## the pages that are made from the code
	@$(PY) tools/docs.py

lock: setup ## requirements/*.lock, with LOCK_ARGS=--upgrade to newer versions
	@$(PY) tools/lock.py $(LOCK_ARGS)

wheel: setup ## dist/lensd-*.whl
	@$(PY) -m build --wheel --no-isolation --outdir dist

bench-ingest: setup ## spans a second from the door until they are queryable; BENCH_ARGS=--peers beside Phoenix and MLflow, --quick for a short look
	@$(PY) bench/bench_ingest.py $(BENCH_ARGS)

bench-query: setup ## every question to a daemon over 10 million spans, still and while spans come in; BENCH_ARGS=--quick for a small store
	@$(PY) bench/bench_query.py $(BENCH_ARGS)

bench-diagnose: setup ## `lensd diagnose` as a process against that daemon; BENCH_ARGS=--quick for a small store
	@$(PY) bench/bench_diagnose.py $(BENCH_ARGS)

bench-judge: setup ## requests a second of CPU that are assembled and judged
	@$(PY) bench/bench_judge.py

bench-timeline: setup ## memory of 10,000 open requests and a million spans
	@cd bench && ../$(PY) bench_timeline.py

bench-frontend: setup ## 200 prompts of 100,000 characters at once on a real engine: front end, not queue
	@$(PY) bench/bench_frontend.py $(BENCH_ARGS)

bench-overhead: setup ## tokens/s and CPU a token of a real engine with plugin and middleware, beside one without; BENCH_ARGS=--quick for a short look
	@$(PY) bench/bench_overhead.py $(BENCH_ARGS)

bench-gateway: setup ## our gateway beside no proxy, nginx and LiteLLM, on two cores; BENCH_ARGS=--quick for a short look
	@$(PY) bench/bench_gateway.py $(BENCH_ARGS)

bench-trend: setup ## 208 made-up courses of memory: share told rightly, time to detection, CPU of each leak rule a tick
	@$(PY) bench/bench_trend.py

bench-gpu-sampler: setup ## share of a core and a simulated day of sampling a GPU; BENCH_ARGS=--hour for one real hour
	@$(PY) bench/bench_gpu_sampler.py $(BENCH_ARGS)

bench-triage: setup ## a 1 GB engine log through `lensd triage`: time and memory; BENCH_ARGS=--quick for 100 MB
	@$(PY) bench/bench_triage.py $(BENCH_ARGS)

score: setup ## labelled incidents named rightly, per label and difficulty; SCORE_ARGS="--set a --label X", SCORE_ARGS=--ablate
	@$(PY) tools/score.py $(SCORE_ARGS)

soak-gateway: setup ## 200,000 requests with callers that leave and engines that die: nothing may be left of them; SOAK_ARGS=--requests=N
	@$(PY) bench/soak_gateway.py $(SOAK_ARGS)

clean: ## what was made, but for .engine and .bench
	@rm -rf .venv .demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
