#!/usr/bin/env bash
# Makes all that the tests need besides .venv: environments of agents' SDKs and of the kernels, a browser, servers.
# Nothing is made twice; what cannot be had here is said. With an argument: no environment of the kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
free=$(df -Pm . | awk 'NR == 2 {print $4}')
if [[ ! -d .venvs && $free -lt 12000 ]]; then
    printf 'warning: %s MB are free here, all environments and tests need 12,000\n' "$free" >&2
fi
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
tools/mariadb.sh
tools/redis.sh
tools/brokers.sh
[[ -z $kernels ]] || wait "$kernels" ||
    printf 'torch and triton cannot be had here: the tests of the kernels are left out\n' >&2
