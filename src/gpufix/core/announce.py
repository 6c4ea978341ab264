"""What the answers mean for the VMs and for the jobs on the card, told before the first gate. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpufix.core.plan import target_of
from gpufix.core.workload import CONTAINER
from gpufix.language import t
from gpufix.model import Facts


def announcements(facts: Facts, answers: Mapping[str, str]) -> list[str]:
    """One line each. Not yet safe for a terminal."""
    if target_of(answers) != CONTAINER:
        return []
    lines: list[str] = []
    gpu_vms = [vm for vm in facts.vms.value or () if vm.devices and vm.wanted]
    if gpu_vms:
        names = ", ".join(f"{vm.namespace}/{vm.name}" for vm in gpu_vms)
        lines.append(
            t(
                "After this recovery {vms} will still be ErrorUnschedulable: container mode does not offer what they "
                "ask for. The node recovers; they do not.",
                vms=names,
            )
        )
    elif not facts.vms.known:
        lines.append(t("Which VMs wait for this GPU is not known: {why}", why=facts.vms.unknown))
    cuda = [holder for holder in facts.gpu_holders.value or () if holder.kind == "cuda" and not holder.pod]
    if cuda:
        jobs = ", ".join(f"{holder.command} (pid {holder.pid})" for holder in cuda)
        lines.append(
            t(
                "Kubernetes will offer nvidia.com/gpu on this node even while host jobs use the card: {jobs}. "
                "Cordon the node if pods must not share it.",
                jobs=jobs,
            )
        )
    return lines
