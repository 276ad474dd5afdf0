#!/usr/bin/env bash
# Makes .venvs/node for the tests of other languages: Node.js with the packages of tests/agents/node/package-lock.json,
# and rotel. Nothing is made twice; never fails: what cannot be had here is said.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
from=tests/agents/node
venv=.venvs/node
wanted=$(cat "$from/requirements.txt" "$from/package-lock.json" tools/node.sh | cksum)
[[ -f $venv/.stamp && $(cat "$venv/.stamp") == "$wanted" ]] && exit 0
printf 'making %s with Node.js, opentelemetry-js and rotel\n' "$venv" >&2
rm -rf "$venv"

make() {
    .venv/bin/python -m venv "$venv" &&
        "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$from/requirements.txt" &&
        cp "$from/package.json" "$from/package-lock.json" "$venv" &&
        # No script of a package runs: none is needed. Three tries of a minute each, then npm gives up.
        (cd "$venv" && PATH="$PWD/bin:$PATH" timeout 300 bin/npm ci --silent --ignore-scripts --no-audit --no-fund \
            --fetch-retries=2 --fetch-timeout=60000)
}
if make; then
    printf '%s' "$wanted" >"$venv/.stamp"
else
    rm -rf "$venv"
    printf 'Node.js, its packages or rotel cannot be had here: their tests will fail in CI and be skipped elsewhere\n' >&2
fi
