#!/usr/bin/env bash
# Gets the corpora and measures redaction on them, then replays the agents of the newest frameworks.
# make corpora, or tools/corpora.sh [texts|agents]; needs the Python and npm package registries.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
what=${1:-all}
if [[ $what != agents ]]; then
    venv=.venvs/unearth
    if [[ ! -x $venv/bin/unearth ]]; then
        .venv/bin/python -m venv "$venv"
        "$venv/bin/python" -m pip install -q --disable-pip-version-check unearth==0.19.0
    fi
    .venv/bin/python tools/corpora.py "$PWD/$venv/bin/unearth"
    .venv/bin/python -m bench corpora
fi
if [[ $what != texts ]]; then
    # Each framework at its newest version, in an environment of its own
    make_venv() {
        local venv=.venvs/newest-$1
        shift
        [[ -f $venv/.stamp && -n $(find "$venv/.stamp" -mtime -1) ]] && return
        [[ -x $venv/bin/python ]] || .venv/bin/python -m venv "$venv"
        "$venv/bin/python" -m pip install -q --disable-pip-version-check --upgrade -e . "$@" && touch "$venv/.stamp"
    }
    make_venv openai-agents openai-agents || true
    make_venv pydantic-ai-slim 'pydantic-ai-slim[openai]' || true
    make_venv smolagents 'smolagents[openai]' || true
    make_venv crewai crewai || true
    make_venv llama-index-core llama-index-core llama-index-llms-openai || true
    make_venv google-adk google-adk litellm || true
    make_venv agno agno openai sqlalchemy || true
    make_venv autogen-agentchat autogen-agentchat 'autogen-ext[openai]' || true
    make_venv haystack-ai haystack-ai || true
    make_venv deepagents deepagents langchain-openai || true
    make_venv strands-agents 'strands-agents[openai]' || true
    .venv/bin/python tools/corpora_agents.py
fi
