#!/usr/bin/env bash
# The agent-side tests under every Python 3.10–3.14 that is installed here, then the agents of older SDKs.
set -euo pipefail
cd "$(dirname "$0")/.."
ran=()
missing=()
for version in 3.10 3.11 3.12 3.13 3.14; do
    if ! "python$version" -c '' >/dev/null 2>&1; then
        missing+=("$version")
        continue
    fi
    venv=.venvs/py$version
    [[ -x $venv/bin/python ]] || "python$version" -m venv "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -e '.[client,service,dev,test]'
    printf '\n── Python %s\n' "$version" >&2
    "$venv/bin/python" -m pytest -q -n auto --maxprocesses 8 --dist loadfile tests/instrumentation
    ran+=("$version")
done
SPANREPLAY_TEST_MATRIX=1 tools/agents.sh
printf '\n── older SDKs\n' >&2
.venv/bin/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile tests/end_to_end/test_agents.py \
    tests/end_to_end/test_record_replay.py tests/end_to_end/test_tool_frameworks.py \
    tests/end_to_end/test_frameworks_record_replay.py \
    tests/instrumentation/seams/test_contract.py
printf '\npassed with Python: %s; not installed here: %s\n' "${ran[*]:-none}" "${missing[*]:-none}" >&2
[[ ${#ran[@]} -gt 0 ]]
