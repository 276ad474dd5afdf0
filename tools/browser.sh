#!/usr/bin/env bash
# Gets Chromium for the browser tests where it is missing and can be had; never fails.
set -euo pipefail
cd "$(dirname "$0")/.."
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
tools/apt.sh chromium && exit 0
printf 'no Chromium here and no right to install it: the browser tests will be skipped\n' >&2
