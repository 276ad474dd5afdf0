#!/usr/bin/env bash
# Makes all that the tests need besides .venv: environments of agents' SDKs and of the kernels, a browser, servers.
# Nothing is made twice; what cannot be had here is said. With an argument: no environment of the kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
kernels=
if [[ $# -eq 0 ]]; then
    tools/kernels.sh & # most of the time goes into waiting for downloads
    kernels=$!
fi
tools/agents.sh
tools/node.sh
tools/browser.sh
tools/postgres.sh
tools/redis.sh
[[ -z $kernels ]] || wait "$kernels" ||
    printf 'torch and triton cannot be had here: the tests of the kernels are left out\n' >&2
