#!/usr/bin/env bash
# Gets Redis's server for the tests of workers where it is missing and can be had; never fails.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v redis-server >/dev/null 2>&1 && exit 0
tools/apt.sh redis-server && exit 0
printf 'no Redis here and no right to install it: the tests of RQ, arq, Dramatiq, huey, taskiq and FastStream will fail\n' >&2
