#!/usr/bin/env bash
# Makes .venvs/NAME for each generation of agents' SDKs in tests/agents/requirements; says so where it cannot.
# Files that begin with "# Only for make matrix" are left out unless SPANREPLAY_TEST_MATRIX is set.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh

make_venv() {
    local requirements=$1 name venv wanted
    name=$(basename "$requirements" .txt)
    venv=.venvs/$name
    wanted=$(cat pyproject.toml "$requirements" | cksum)
    [[ -x $venv/bin/python && -f $venv/.stamp && $(cat "$venv/.stamp") == "$wanted" ]] && return
    printf 'making %s for agents of %s\n' "$venv" "$requirements" >&2
    [[ -x $venv/bin/python ]] || { rm -rf "$venv" && .venv/bin/python -m venv "$venv"; }
    if "$venv/bin/python" -m pip install -q --disable-pip-version-check -e . -r "$requirements"; then
        printf '%s' "$wanted" >"$venv/.stamp"
    else
        rm -rf "$venv"
        printf '%s cannot be had for this Python: its tests will be skipped\n' "$name" >&2
    fi
}

for requirements in tests/agents/requirements/*.txt; do
    if [[ -z ${SPANREPLAY_TEST_MATRIX:-} ]] && head -1 "$requirements" | grep -q '^# Only for make matrix'; then
        continue
    fi
    make_venv "$requirements" & # most of the time goes into waiting for downloads
done
wait
