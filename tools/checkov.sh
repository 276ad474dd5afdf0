#!/usr/bin/env bash
# The rendered charts and the Dockerfile under checkov; what is meant to be as it is stands in .checkov.yaml.
set -euo pipefail
cd "$(dirname "$0")/.."
version=3.3.30 venv=.venvs/checkov
"$venv/bin/python" -c '' >/dev/null 2>&1 || { rm -rf "$venv" && python3 -m venv "$venv"; }
"$venv/bin/python" -m pip install -q --disable-pip-version-check "checkov==$version"
"$venv/bin/checkov" --config-file .checkov.yaml --skip-download
printf 'the charts and the Dockerfile pass checkov %s; next: make check\n' "$version" >&2
