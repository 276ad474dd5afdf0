#!/usr/bin/env bash
# The whole test suite; writes docs/STATUS.md. Arguments go to pytest: with any, STATUS.md stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
tools/agents.sh
tools/browser.sh
tools/postgres.sh
tools/kernels.sh
options=(-n auto --maxprocesses 8 --dist loadfile -q)
if [[ $# -gt 0 ]]; then
    exec .venv/bin/python -m pytest "${options[@]}" "$@"
fi
# The kernels' tests first, in an environment of their own with torch; the page is written from both runs.
part=.venvs/kernels/status.json
.venvs/kernels/bin/python -m pytest "${options[@]}" --status-part=$part tests/kernels
# With a blank in place of `=` pytest would take an existing page for a folder of tests.
exec .venv/bin/python -m pytest "${options[@]}" --ignore=tests/kernels --status-part=$part --status-file=docs/STATUS.md
