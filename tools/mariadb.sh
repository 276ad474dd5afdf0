#!/usr/bin/env bash
# Gets MariaDB's server for the tests of database drivers where it is missing and can be had; never fails.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin"
command -v mariadbd >/dev/null 2>&1 && command -v my_print_defaults >/dev/null 2>&1 && exit 0
tools/apt.sh mariadb-server-core mariadb-client-core && exit 0 # the second has what mariadb-install-db needs
printf 'no MariaDB here and no right to install it: its tests will fail in CI and be skipped elsewhere\n' >&2
