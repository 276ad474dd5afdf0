#!/usr/bin/env bash
# The figures of the requirements, one benchmark after the other; nothing runs beside them.
# make bench, or tools/bench.sh [--json FILE] [NAME ...]; bench/README.md says what they mean.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
exec .venv/bin/python -m bench "$@"
