#!/usr/bin/env bash
# The whole test suite; writes docs/STATUS.md. Arguments go to pytest: with any, STATUS.md stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
tools/browser.sh
options=(-n auto --maxprocesses 8 --dist loadfile -q)
if [[ $# -eq 0 ]]; then
    options+=(--status-file docs/STATUS.md)
fi
exec .venv/bin/python -m pytest "${options[@]}" "$@"
