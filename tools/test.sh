#!/usr/bin/env bash
# The whole test suite; writes docs/STATUS.md. Arguments go to pytest: with any, STATUS.md stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
tools/agents.sh
tools/browser.sh
tools/postgres.sh
options=(-n auto --maxprocesses 8 --dist loadfile -q)
if [[ $# -eq 0 ]]; then
    # With a blank in place of `=` pytest would take an existing page for a folder of tests.
    options+=(--status-file=docs/STATUS.md)
fi
exec .venv/bin/python -m pytest "${options[@]}" "$@"
