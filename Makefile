# Few verbs. `make serve` and `make test` do everything on a fresh machine with Python 3.11.
PYTHON ?= python3
BIN := .venv/bin
ALL := -n logical --maxprocesses 4 --dist loadfile   # a worker a core; a file's tests share what they load
export PYTHONDONTWRITEBYTECODE ?= 1

.PHONY: serve test test-slow test-servers contract bench bench-gpu bench-live bench-peers bench-books bench-neighbour theorems sim check format

serve: .venv/.installed
	$(BIN)/loraplex serve

test: .venv/.installed
	$(BIN)/python -m pytest $(ALL)
	@echo "left out: tests marked slow (make test-slow) and gpu (needs a CUDA device)"

test-slow: .venv/.installed
	$(BIN)/python -m pytest $(ALL) -m "slow and not gpu"

test-servers: .venv/.installed   # the platform's tests that stand on stores, on Postgres and Redis; others are deselected
	LORAPLEX_TEST_STORES=servers $(BIN)/python -m pytest $(ALL) tests/platform

contract: .venv/.installed   # 50 examples of each route as each caller
	LORAPLEX_TEST_EXAMPLES=50 $(BIN)/python -m pytest $(ALL) -m slow tests/platform/test_schemathesis.py

bench: .venv/.installed
	$(BIN)/python tests/bench/bench_cpu.py

bench-gpu: .venv/.installed   # on a CUDA device, in five minutes; says so if there is none
	PYTHONPATH=.:kernels:adapters:engine $(BIN)/python tests/bench/bench_gpu.py $(BENCH_GPU)

bench-live: .venv/.installed
	$(BIN)/python tests/bench/bench_live.py

bench-peers: .venv/.installed   # more than an hour; the first time it makes an environment for each peer
	$(BIN)/python tests/bench/bench_peers.py $(BENCH_PEERS)

bench-books: .venv/.installed
	PYTHONPATH=. $(BIN)/python tests/bench/bench_books.py

bench-neighbour: .venv/.installed
	$(BIN)/python tests/bench/bench_neighbour.py

theorems: .venv/.installed   # 10,000 examples of each: about 90 minutes of one core, shared by all
	LORAPLEX_TEST_EXAMPLES=10000 $(BIN)/python -m pytest -n logical --dist worksteal -m slow tests/engine/test_scheduling_theorems.py -v

sim: .venv/.installed
	PYTHONPATH=. $(BIN)/python -m tests.sim.run $(SIM)

check: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/.installed: pyproject.toml deploy/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c deploy/constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -c deploy/constraints.txt -e '.[engine,production,export,dev]'
	touch $@
