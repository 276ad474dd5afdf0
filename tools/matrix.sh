#!/usr/bin/env bash
# The agent-side tests under every Python 3.10–3.14 that is installed here, then the agents of every generation of SDKs.
# Goes on after a failure, and ends by saying what happened and what to do next.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '%s\n' "$*" >&2; }
options=(-q -n auto --maxprocesses "${SPANREPLAY_TEST_WORKERS:-8}" --dist loadfile)
# What runs agents in processes of their own, and needs neither a store nor another SDK than the newest
agents=(tests/end_to_end/test_{async_processes,determinism,handed_work,hermetic,leaks,local_effects,looks}.py
    tests/end_to_end/test_{local_reads,loops,meetings,overlay,own_servers,plans,received_signals,resume}.py
    tests/end_to_end/test_{returns,signal_places,stepping,structured}.py
    tests/end_to_end/test_transports.py)
passed=() failed=() missing=()
export SPANREPLAY_TEST_MATRIX=1 # all cases where `make test` tries a sample

run_version() {
    local version=$1 python=$2 venv=.venvs/py$1
    "$venv/bin/python" -c '' >/dev/null 2>&1 || { rm -rf "$venv" && "$python" -m venv "$venv"; }
    # The pip that comes with Python 3.10 tries versions for an hour where a newer one finds them at once
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --upgrade pip &&
        "$venv/bin/python" -m pip install -q --disable-pip-version-check -e '.[client,service,dev,test]' &&
        "$venv/bin/python" -m compileall -q instrumentation collector replay_service tests/support &&
        "$venv/bin/python" -m pytest "${options[@]}" tests/instrumentation "${agents[@]}"
}

for version in 3.10 3.11 3.12 3.13 3.14; do
    if ! python=$(tools/pythons.sh "$version"); then
        missing+=("$version")
        continue
    fi
    say "── Python $version"
    if run_version "$version" "$python"; then passed+=("$version"); else failed+=("Python $version"); fi
done

say '── every generation of SDKs'
tools/agents.sh
absent=()
for requirements in tests/agents/requirements/*.txt; do
    name=$(basename "$requirements" .txt)
    [[ -x .venvs/$name/bin/python ]] || absent+=("$name")
done
.venv/bin/python -m pytest "${options[@]}" tests/end_to_end/test_agents.py tests/end_to_end/test_record_replay.py \
    tests/end_to_end/test_sdks.py tests/end_to_end/test_envelope.py tests/end_to_end/test_tool_frameworks.py \
    tests/end_to_end/test_installed_agents.py \
    tests/end_to_end/test_frameworks_record_replay.py tests/instrumentation/seams/test_contract.py ||
    failed+=('the SDKs')

say '── all of what make test samples'
grep -rlE --include='test_*.py' 'support\.sampling|mark\.sampled' tests | xargs .venv/bin/python -m pytest "${options[@]}" ||
    failed+=('what make test samples')

say '── every one of 200 requests, replayed alone, of each framework'
SPANREPLAY_TEST_UNITS=200 .venv/bin/python -m pytest "${options[@]}" tests/end_to_end/test_units_load.py ||
    failed+=('the units of servers')

say '── 500 programs of streams at once, with each transport'
SPANREPLAY_TEST_STREAMS=500 .venv/bin/python -m pytest "${options[@]}" --dist load \
    tests/instrumentation/seams/transport/test_stream_ends.py || failed+=('the ends of streams')

say '── the memory of a process over 1,000,000 calls'
SPANREPLAY_TEST_CALLS=1000000 .venv/bin/python -m pytest "${options[@]}" tests/end_to_end/test_bounded.py \
    -k test_p8_the_memory_of_a_process_stays_where_it_was || failed+=('the memory of a process')

say '── 1,000 requests, replayed in one start'
SPANREPLAY_TEST_SUITE=1000 .venv/bin/python -m pytest "${options[@]}" tests/end_to_end/test_units_suite.py \
    -k test_p4_many_units_replay_in_one_start || failed+=('the suite of units')

say '── 1,000 kills of workers'
SPANREPLAY_TEST_KILLS=1000 .venv/bin/python -m pytest "${options[@]}" tests/end_to_end/test_units_kills.py ||
    failed+=('the kills of workers')

say '── the charts and the Dockerfile under checkov'
tools/checkov.sh || failed+=('checkov: fix what it names, or say in .checkov.yaml why it is meant to be so')

say '── every kernel for every architecture'
tools/kernels.sh && env -u TRITON_INTERPRET .venvs/kernels/bin/python -m pytest \
    "${options[@]}" tests/kernels/test_aot.py || failed+=('the kernels')

say '── the engines that the plug-ins of the kernels are for'
compared=0
.venv/bin/python tools/engines.py --check || compared=$? # 2: no wheel could be had, and it says so
[[ $compared -ne 1 ]] || failed+=('the engines: what changed stands above; look at the plug-ins, then run tools/engines.py')

# The server is of one release of transformers, which the extra `serve` names
run_kernels() {
    local python=.venvs/kernels-$1/bin/python
    tools/kernels.sh "$1" &&
        env -u TRITON_INTERPRET "$python" -m spanreplay_kernels aot --sample --arch sm_90 &&
        env -u TRITON_INTERPRET "$python" kernels/bench/run.py --device cpu --quick &&
        "$python" -m pytest "${options[@]}" tests/kernels/ops tests/kernels/engines \
            tests/kernels/test_{audit,bench,custom_ops,demo,mode,stance,versions}.py
}

for end in oldest newest; do
    say "── the kernels with the $end torch and triton"
    run_kernels "$end" || failed+=("the kernels, $end torch and triton")
done

say ''
say "passed under Python: ${passed[*]:-none}"
[[ ${#missing[@]} -eq 0 ]] ||
    say "not run, not installed here: Python ${missing[*]}; next: install them (pyenv install ${missing[0]}), then make matrix"
[[ ${#absent[@]} -eq 0 ]] ||
    say "not run, could not be installed: ${absent[*]}; next: read what pip said above (tests/agents/requirements)"
if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'failed: %s\n' "${failed[@]}" >&2
    say 'next: read the failures above; one version alone: .venvs/pyX.Y/bin/python -m pytest tests/instrumentation'
    exit 1
fi
say 'every SDK and Python that is here passed; next: make test'
[[ ${#passed[@]} -gt 0 ]]
