#!/usr/bin/env bash
# Makes .venv with everything that the tests and the demo need; does nothing when pyproject.toml has not changed.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '%s\n' "$*" >&2; }

stamp=.venv/.spanreplay-stamp
wanted=$(cat pyproject.toml tools/constraints.txt tools/setup.sh | cksum)

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    say "error: no Python 3.10 or newer here (looked for ${PYTHON:-python3})"
    say "hint: install one, or name it: PYTHON=/path/to/python3 make test"
    return 1
}

make_venv() {
    local python
    python=$(find_python)
    say "making .venv from $python"
    "$python" -m venv .venv && return 0
    # Debian ships python3 without ensurepip.
    rm -rf .venv
    if "$python" -m virtualenv --version >/dev/null 2>&1; then
        "$python" -m virtualenv -q .venv
    elif tools/apt.sh python3-venv; then
        "$python" -m venv .venv
    else
        say "error: $python cannot make a virtual environment"
        say "hint: install its venv module, e.g. apt-get install python3-venv"
        return 1
    fi
}

install() {
    local pip=(.venv/bin/python -m pip install -q --disable-pip-version-check)
    say "installing spanreplay[all,dev,test] into .venv (some minutes the first time)"
    "${pip[@]}" --upgrade pip # those of Debian 12 and Python 3.10 try versions for an hour where a newer one finds them at once
    # The pinned set is what was tested; a Python for which it has no wheels gets the newest that fits.
    "${pip[@]}" -c tools/constraints.txt -e '.[all,dev,test]' && return
    say "the tested versions do not fit this Python; taking the newest"
    "${pip[@]}" -e '.[all,dev,test]'
}

if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -c '' >/dev/null 2>&1; then
    rm -rf .venv
    make_venv
fi
if [[ ! -f $stamp || $(cat "$stamp") != "$wanted" ]]; then
    install
    printf '%s' "$wanted" >"$stamp"
fi
