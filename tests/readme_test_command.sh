#!/bin/bash
# Runs the test command exactly as the README gives it: the block after the marker <!-- test-command -->.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
block=$(awk '/<!-- test-command -->/ {found=1; next} found && /^```/ {if (inside) exit; inside=1; next} inside' README.md)
[ -n "$block" ] || { echo "README.md has no test command" >&2; exit 1; }
echo "+ $block"
bash -euo pipefail -c "$block"
