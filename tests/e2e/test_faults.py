"""One bad night on the real node: the node is taken over, it boots anew, the connection is cut in a step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from node import RealNode
from operator_hands import ENTER, PATIENCE, Gpufix, Wizard, journal
from recoveries import CONTAINER, GPU, PASSTHROUGH, WHO, WORKLOAD_CONFIG
from unattended import edited_sample

Start = Callable[..., Wizard]
LEASE = ("lease", "gpufix-omen2", "-n", "kube-node-lease")
SLOW_SWAPOFF = """#!/bin/sh
# found before the real one; it begins, and goes on when it is told to
touch /run/swapoff-begun
read go < /run/swapoff-go
exec /sbin/swapoff "$@"
"""


def cut_the_connection(cluster: RealNode) -> None:
    """Every sshd dies, and no new one starts; what they started on the node lives on (KillMode=process)."""
    cluster.inside("systemctl stop ssh.socket ssh.service 2>/dev/null; pkill -KILL -x sshd", check=False)


def test_taken_over_then_booted_then_cut_off_and_still_recovered(
    cluster: RealNode, wizard: Start, gpufix: Gpufix, state: Path, tmp_path: Path
) -> None:
    cluster.incident(PASSTHROUGH)
    answers = str(edited_sample(gpufix, tmp_path / "answers.yml"))
    run = wizard()
    run.answer(WHO)
    run.gate("relabel")
    run.gate("stop-vfio-manager", name="omen2")
    run.ask("disable-swap:")

    thief = {"spec": {"holderIdentity": "somebody@elsewhere", "leaseDurationSeconds": 10}}
    cluster.kubectl("patch", *LEASE, "--type=merge", "-p", json.dumps(thief))
    run.child.send(ENTER)
    assert run.end() == 8, run.text
    assert "somebody@elsewhere" in run.text
    assert cluster.active_swaps() == ["/swapfile"], "the step that the thief may be doing is not begun"
    assert not any(line["event"] == "intent" and line["step"] == "disable-swap" for line in journal(state))
    cluster.reboot()
    cluster.until(cluster.is_refused_for_swap, "the kubelet to refuse swap again", 60)
    cluster.write("/usr/local/sbin/swapoff", SLOW_SWAPOFF)
    cluster.inside("chmod 0755 /usr/local/sbin/swapoff; rm -f /run/swapoff-*; mkfifo /run/swapoff-go")
    cut = subprocess.Popen(
        [sys.executable, "-m", "gpufix", "resume", "omen2", "--answers", answers, "-q"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        cluster.until(lambda: cluster.inside("ls /run/swapoff-begun", check=False), "swapoff to begin", PATIENCE)
        cluster.inside("rm /usr/local/sbin/swapoff")
        cut_the_connection(cluster)
        told, _ = cut.communicate(timeout=PATIENCE)
    finally:
        cut.kill()
        cluster.inside("rm -f /usr/local/sbin/swapoff")
    assert cut.returncode in (5, 7), told
    assert "gpufix resume omen2" in told
    assert not cluster.is_ready()
    assert cluster.calls("unbind") == []
    cluster.ssh_up()

    run = wizard("--answers", answers, verb="resume")
    run.expect("waiting for what still runs on omen2")
    cluster.inside("echo > /run/swapoff-go")
    assert run.end() == 0, run.text
    assert cluster.is_ready() and cluster.allocatable(GPU) == 1
    assert cluster.labels()[WORKLOAD_CONFIG] == CONTAINER
    assert cluster.calls("unbind") == []
    assert cluster.read("/etc/fstab") == cluster.fstab_fixed
    assert cluster.active_swaps() == []
    lines = journal(state)
    first, second = (line["lock"] for line in lines if line["event"] == "resume")
    assert "somebody@elsewhere" in first, "the thief never renewed: it was waited for, and taken over with its reason"
    assert "somebody" not in second
