#!/usr/bin/env bash
# The figures of the requirements, one benchmark after the other; nothing runs beside them.
# tools/bench.sh [NAME…] runs those named, e.g. `tools/bench.sh resolve`.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
    for path in bench/*.py; do
        grep -q '__main__' "$path" && names+=("$(basename "$path" .py)")
    done
fi
failed=()
for name in "${names[@]}"; do
    printf '\n── bench.%s\n' "$name" >&2
    PYTHONPATH=tests .venv/bin/python -m "bench.$name" || failed+=("$name")
done
printf '\n%d benchmarks ran, missed: %s; name hardware, versions and commit where you quote a figure\n' \
    "${#names[@]}" "${failed[*]:-none}" >&2
[[ ${#failed[@]} -eq 0 ]]
