#!/usr/bin/env bash
# Makes .venvs/kernels with torch, triton and transformers, in which the tests of the kernels run;
# with `oldest` or `newest` .venvs/kernels-oldest or -newest, at that end of the releases that are supported.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
name=kernels${1:+-$1} requirements=tests/kernels/requirements${1:+-$1}.txt
venv=.venvs/$name
[[ -f $requirements ]] || { printf 'error: no %s; use oldest, newest or nothing\n' "$requirements" >&2 && exit 2; }
wanted=$(cat pyproject.toml "$requirements" tools/kernels.sh | cksum)
[[ -x $venv/bin/python && -f $venv/.stamp && $(cat "$venv/.stamp") == "$wanted" ]] && exit 0
printf 'making %s with torch and transformers (some minutes the first time)\n' "$venv" >&2
[[ -x $venv/bin/python ]] || { rm -rf "$venv" && .venv/bin/python -m venv "$venv"; }
pip=("$venv/bin/python" -m pip install -q --disable-pip-version-check)
"${pip[@]}" --upgrade pip
"${pip[@]}" -e . -r "$requirements"
printf '%s' "$wanted" >"$venv/.stamp"
