#!/usr/bin/env bash
# Installs Debian packages where that is possible: tools/apt.sh PACKAGE…; exit 1 where it is not.
set -euo pipefail
command -v apt-get >/dev/null 2>&1 || exit 1
as_root=()
if [[ $(id -u) -ne 0 ]]; then
    sudo -n true >/dev/null 2>&1 || exit 1
    as_root=(sudo -n)
fi
export DEBIAN_FRONTEND=noninteractive
printf 'installing %s\n' "$*" >&2
"${as_root[@]}" apt-get update -qq >&2
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
