#!/usr/bin/env bash
# The whole test suite; writes docs/STATUS.md. Arguments go to pytest: with any, STATUS.md stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/environments.sh ${1:+--no-kernels}
# The tests start thousands of processes that import our packages. Where PYTHONDONTWRITEBYTECODE is set, as in images,
# nobody else writes their bytecode, and each process would compile them anew.
.venv/bin/python -m compileall -q instrumentation collector replay_service tests/support
options=(--dist loadfile -q)
# One more than there are processors: a worker waits for most of a test, for processes that it has started.
workers=$(.venv/bin/python -c 'import os; print(min(8, 1 + len(os.sched_getaffinity(0))))')
if [[ $# -gt 0 ]]; then
    exec .venv/bin/python -m pytest -n "$workers" "${options[@]}" "$@"
fi
# The kernels' tests first, in an environment of their own with torch; the page is written from both runs.
parts=()
if [[ -f .venvs/kernels/.stamp ]]; then
    parts=(--status-part=.venvs/kernels/status.json)
    .venvs/kernels/bin/python -m pytest -n auto --maxprocesses 8 "${options[@]}" "${parts[@]}" tests/kernels
fi
# With a blank in place of `=` pytest would take an existing page for a folder of tests.
options+=(--ignore=tests/kernels --status-file=docs/STATUS.md)
exec .venv/bin/python -m pytest -n "$workers" "${options[@]}" ${parts[@]+"${parts[@]}"}
