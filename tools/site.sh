#!/usr/bin/env bash
# Builds the documentation's site into build/site; a broken link or anchor is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
rm -rf build/site
.venv/bin/sphinx-build -q -W --keep-going -c tools/site docs build/site
cp build/site/README.html build/site/index.html
printf 'the site is in build/site; next: open build/site/index.html\n' >&2
