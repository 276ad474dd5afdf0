#!/usr/bin/env bash
# The figures of the requirements, one benchmark after the other; nothing runs beside them.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
shopt -s nullglob
benches=(tests/bench/bench_*.py)
if [[ ${#benches[@]} -eq 0 ]]; then
    printf 'there are no benchmarks yet: they are scripts named tests/bench/bench_*.py\n' >&2
    exit 0
fi
for bench in "${benches[@]}"; do
    printf '\n── %s\n' "$bench" >&2
    PYTHONPATH=tests .venv/bin/python "$bench" "$@"
done
printf '\n%d benchmarks ran; name hardware, versions and commit where you quote a figure\n' "${#benches[@]}" >&2
