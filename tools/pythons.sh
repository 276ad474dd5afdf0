#!/usr/bin/env bash
# Prints the interpreter of one version of Python (tools/pythons.sh 3.12), or nothing and exits with 1 where it is not
# installed. pyenv and uv install versions that are not all on PATH.
set -euo pipefail
shopt -s nullglob
version=$1

for candidate in "$(command -v "python$version" || true)" \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version" \
    "${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}/cpython-$version".*/bin/"python$version"; do
    if [[ -n $candidate ]] && "$candidate" -c 'import venv' >/dev/null 2>&1; then
        printf '%s\n' "$candidate"
        exit 0
    fi
done
exit 1
