#!/usr/bin/env bash
# Makes .venvs/kernels with torch, triton and transformers, in which the tests of the kernels run.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
venv=.venvs/kernels requirements=tests/kernels/requirements.txt
wanted=$(cat pyproject.toml "$requirements" tools/kernels.sh | cksum)
[[ -x $venv/bin/python && -f $venv/.stamp && $(cat "$venv/.stamp") == "$wanted" ]] && exit 0
printf 'making %s with torch and transformers (some minutes the first time)\n' "$venv" >&2
[[ -x $venv/bin/python ]] || { rm -rf "$venv" && .venv/bin/python -m venv "$venv"; }
pip=("$venv/bin/python" -m pip install -q --disable-pip-version-check)
"${pip[@]}" --upgrade pip
"${pip[@]}" -e . -r "$requirements"
printf '%s' "$wanted" >"$venv/.stamp"
