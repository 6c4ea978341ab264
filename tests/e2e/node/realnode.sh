#!/bin/bash
# A real one-node cluster for the end-to-end tests, brought up and down by hand. Root only.
#
#   realnode.sh prepare | up | incident [MODE] | reset MODE | heal | fault NAME | status | image | down
#   realnode.sh kubectl ARGS... | ssh COMMAND | inside COMMAND
#
# "realnode.sh" alone says what each does and what the environment sets, __init__.py what is real and what
# stands in. This only finds a Python >= 3.11; nothing outside its standard library is needed.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
for python in "${PYTHON:-}" "$here/../../../.venv/bin/python" python3; do
    if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        PYTHONPATH=$here/..${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m node "$@"
    fi
done
echo "realnode.sh: Python >= 3.11 is needed (set PYTHON)" >&2
exit 1
