#!/bin/bash
# Builds the wheel, installs it alone into a new environment, and uses it from another folder: runbooks and playbooks
# must have travelled along as real files.
set -euo pipefail
repo=$(dirname "$(readlink -f "$0")")/..
repo=$(readlink -f "$repo")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=$(command -v python)
"$python" -m build --no-isolation --wheel --outdir "$work/dist" "$repo" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check -c "$repo/requirements.lock" "$work"/dist/*.whl
cp -r "$repo/tests/cases/trace-1-kubelet-dead" "$work/incident"
cd "$work"
unset PYTHONPATH
"$work/venv/bin/gpufix" --version
"$work/venv/bin/gpufix" diagnose omen2 --snapshot "$work/incident" | tee "$work/out" | sed -n '1,2p'
grep -q 'Runbook: revive-kubelet-swap' "$work/out"
"$work/venv/bin/gpufix" runbook omen2 --snapshot "$work/incident" --format html | grep -q 'swapoff -- /swapfile'
where=$("$work/venv/bin/python" -c 'from gpufix import resources; print(resources.playbook_path("disable-swap.yml"))')
case $where in "$work"/venv/*) ;; *) echo "playbooks come from $where, not from the wheel" >&2; exit 1 ;; esac
"$work/venv/bin/ansible-playbook" --syntax-check -e gpufix_host=localhost "$where" >/dev/null
test -f "$(dirname "$where")/library/gpufix_swap.py"
test -f "$(dirname "$where")/module_utils/gpufix_fstab.py"
echo "wheel: ok"
