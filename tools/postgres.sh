#!/usr/bin/env bash
# Gets PostgreSQL's server for the database tests where it is missing and can be had; never fails.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v initdb >/dev/null 2>&1 && exit 0
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && exit 0
tools/apt.sh postgresql && exit 0
printf 'no PostgreSQL here and no right to install it: its tests will fail in CI and be skipped elsewhere\n' >&2
