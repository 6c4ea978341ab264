#!/bin/bash
# The order tests on kubelet 1.20.2 (Debian's sources, built once and cached): there the right order by hand still calls
# vfio-manager's preStop, and gpufix recover does not. Root on Debian.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
export WAY=B GPUFIX_REQUIRE_REALNODE=1 GPUFIX_REALNODE="${GPUFIX_REALNODE:-/tmp/gpufix-realnode-old}"
tests/e2e/node/build_kubernetes.sh
trap 'tests/e2e/node/realnode.sh down >/dev/null 2>&1 || true' EXIT
"${PYTHON:-.venv/bin/python}" -m pytest tests/e2e/test_order.py \
    tests/e2e/test_recover.py::test_by_hand_in_the_wrong_order_it_is_called \
    tests/e2e/test_recover.py::test_swapoff_alone_revives_the_node_so_the_hold_is_needed -q -p no:cacheprovider "$@"
