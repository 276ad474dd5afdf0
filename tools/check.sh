#!/usr/bin/env bash
# Style, types, import arrows, generated code and generated pages; changes nothing.
# With an argument: without tests/test_house.py, for those who run all tests afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
bin=.venv/bin
step() { printf '\n── %s\n' "$*" >&2; }

step 'ruff check' && "$bin/ruff" check .
step 'ruff format' && "$bin/ruff" format --check .
step 'mypy --strict' && "$bin/mypy"
step 'import arrows' && "$bin/lint-imports"
if [[ $# -eq 0 ]]; then
    step 'one-way stairs, no circles' && "$bin/python" -m pytest -q tests/test_house.py
fi
step 'generated protobuf code' && tools/proto.sh --check
step 'generated pages' && "$bin/python" tools/reference.py --check
step 'charts' && "$bin/python" tools/charts.py --check
printf '\nall checks passed; next: make test\n' >&2
