#!/usr/bin/env bash
# Makes .venvs/NAME for each generation of agents' SDKs in tests/agents/requirements, and .venvs/pyX.Y with spanreplay
# and pytest for the oldest and the newest other Python here; says so where it cannot.
# Files that begin with "# Only for make matrix" are left out unless SPANREPLAY_TEST_MATRIX is set.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
say() { printf '%s\n' "$*" >&2; }

# make_venv NAME PYTHON REQUIREMENTS PACKAGE...
make_venv() {
    local name=$1 python=$2 requirements=$3 venv=.venvs/$1 wanted
    shift 3
    wanted=$(cat pyproject.toml "$requirements" - <<<"$python $*" | cksum)
    [[ -x $venv/bin/python && -f $venv/.stamp && $(cat "$venv/.stamp") == "$wanted" ]] && return
    say "making $venv with $*"
    [[ -x $venv/bin/python ]] || { rm -rf "$venv" && "$python" -m venv "$venv"; }
    # The pip that comes with Python 3.10 tries versions for an hour where a newer one finds them at once
    if "$venv/bin/python" -m pip install -q --disable-pip-version-check --upgrade pip &&
        "$venv/bin/python" -m pip install -q --disable-pip-version-check -e . "$@"; then
        printf '%s' "$wanted" >"$venv/.stamp"
    else
        rm -rf "$venv"
        say "$name cannot be had for this Python: its tests will be skipped"
    fi
}

others=()
own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for version in 3.10 3.11 3.12 3.13 3.14; do
    [[ $version != "$own" ]] && tools/pythons.sh "$version" >/dev/null && others+=("$version")
done
if [[ ${#others[@]} -eq 0 ]]; then
    say "no other Python than $own here: what needs two, or a newer one, will be skipped"
else
    for version in $(printf '%s\n' "${others[0]}" "${others[-1]}" | sort -u); do
        make_venv "py$version" "$(tools/pythons.sh "$version")" /dev/null pytest pytest-asyncio hypothesis &
    done
fi
for requirements in tests/agents/requirements/*.txt; do
    if [[ -z ${SPANREPLAY_TEST_MATRIX:-} ]] && head -1 "$requirements" | grep -q '^# Only for make matrix'; then
        continue
    fi
    # Most of the time goes into waiting for downloads
    make_venv "$(basename "$requirements" .txt)" .venv/bin/python "$requirements" -r "$requirements" &
done
wait
