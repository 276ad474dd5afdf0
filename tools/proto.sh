#!/usr/bin/env bash
# Generates spanreplay/v1 from replay.proto, or with --check compares; the generator has an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venvs/proto
tools/setup.sh
python=${PROTO_PYTHON:-.venv/bin/python}
if ! "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 14))'; then
    printf 'grpcio-tools 1.71.2 has no wheels for this Python; set PROTO_PYTHON to a 3.10–3.13: not checked\n' >&2
    exit 0
fi
if ! "$venv/bin/python" -c 'import grpc_tools, mypy_protobuf' >/dev/null 2>&1; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check \
        'grpcio-tools==1.71.2' 'mypy-protobuf==3.6.0' 'setuptools<81'
fi
PATH="$PWD/$venv/bin:$PATH" exec "$venv/bin/python" instrumentation/gen_proto.py "$@"
