# Every verb sets up what it needs, in a fresh clone too; .venv is made again only when pyproject.toml changes.
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-kernels test check format bench corpora e2e matrix proto docs site clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with everything
	@tools/setup.sh
	@echo "ready; next: make demo, or . .venv/bin/activate && spanreplay --help" >&2

demo: ## record the $190,000 incident, show it, replay it, prove the fix; then one bad request of 20 at once
	@tools/setup.sh
	@.venv/bin/python -m spanreplay_service.demo

demo-kernels: ## one prompt among random neighbours on this CPU: stock kernels give many answers, ours one
	@tools/kernels.sh
	@mkdir -p .demo
	@TRANSFORMERS_VERBOSITY=error .venvs/kernels/bin/python -m spanreplay_kernels.demo --picture .demo/kernels.svg

test: ## run all tests, write docs/STATUS.md
	@tools/test.sh

check: ## style, types, import arrows, generated code
	@tools/check.sh

format: ## put the code into shape
	@tools/setup.sh
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .

bench: ## measure the figures of the requirements
	@tools/bench.sh

corpora: ## get foreign keys, texts and agents, pinned; measure redaction on them, replay the agents
	@tools/corpora.sh

e2e: ## run the end-to-end tests only
	@tools/test.sh tests/end_to_end

matrix: ## run the tests of agents under every Python found, and with older SDKs; compare the plug-ins with the engines' wheels
	@tools/matrix.sh

proto: ## generate spanreplay/v1 from replay.proto
	@tools/proto.sh
	@echo "instrumentation/spanreplay/v1 is current; next: make test" >&2

site: ## build the documentation's site, with every link checked
	@tools/site.sh

docs: ## write the reference pages of the CLI, of the settings and of the charts, and render the charts
	@tools/setup.sh
	@.venv/bin/python tools/reference.py
	@.venv/bin/python tools/charts.py
	@echo "docs/reference and helm/ are current; next: git diff docs helm" >&2

clean: ## remove environments and caches
	rm -rf .venv .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
