"""Snapshot -> Facts: one small parser per source. Pure, and never raises on what a snapshot may hold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpufix.core.parse import cluster, gpu, host, swap
from gpufix.core.parse.journal import parse_journal
from gpufix.core.parse.kubelet_config import parse_swap_allowed
from gpufix.core.parse.pods import parse_pods
from gpufix.core.parse.source import observe
from gpufix.core.parse.times import as_of, parse_time
from gpufix.core.parse.unit import parse_unit
from gpufix.core.parse.vms import parse_vms
from gpufix.language import t
from gpufix.model import ClusterPolicyFacts, Facts, Observation, PciFunction, PodFacts, Snapshot

_NODES = "cluster/nodes.json"


def parse_snapshot(snapshot: Snapshot) -> Facts:
    """Everything that ``snapshot`` says, each thing known with its evidence or unknown with the reason."""
    nodes = observe(snapshot, _NODES, cluster.parse_nodes)
    pods = observe(snapshot, "cluster/pods.json", parse_pods)
    memory = observe(snapshot, "host/proc_meminfo", host.parse_meminfo)
    fstab = observe(snapshot, "host/fstab", swap.parse_fstab)
    journal = observe(snapshot, "host/kubelet.journal", parse_journal)
    groups = observe(snapshot, "host/iommu_groups", host.parse_iommu_groups)
    pci = _pci(snapshot, groups)
    return Facts(
        node_name=snapshot.node,
        as_of=as_of(snapshot),
        node=cluster.find_node(_NODES, nodes, snapshot.node),
        nodes=nodes,
        pods=pods,
        vms=parse_vms(snapshot),
        cluster_policy=_policy(observe(snapshot, "cluster/clusterpolicy.json", cluster.parse_cluster_policy), pods),
        kubevirt=observe(snapshot, "cluster/kubevirt.json", cluster.parse_kubevirt),
        unit=observe(snapshot, "host/kubelet.show", partial(parse_unit, snapshot)),
        journal=journal,
        swap_allowed=parse_swap_allowed(snapshot, journal),
        swaps=observe(snapshot, "host/proc_swaps", partial(swap.parse_swaps, memory=memory)),
        memory=memory,
        overcommit=observe(snapshot, "host/overcommit", host.parse_overcommit),
        fstab_swap=fstab,
        swap_units=observe(snapshot, "host/swap_units", partial(swap.parse_swap_units, fstab=fstab)),
        swap_services=observe(snapshot, "host/swap_services", swap.parse_swap_services),
        containers=observe(snapshot, "host/containers", host.parse_containers),
        gpus=gpu.gpu_cards(pci),
        gpu_holders=observe(snapshot, "host/gpu_holders", gpu.parse_gpu_holders),
        boot_id=observe(snapshot, "host/boot_id", host.parse_boot_id),
        in_container=observe(snapshot, "host/virt", host.parse_virt),
        host_unread=_side_unread(snapshot, "host"),
        cluster_unread=_side_unread(snapshot, "cluster"),
        events=observe(snapshot, "cluster/events.json", cluster.parse_events),
        pci=pci,
        kernel_log=observe(snapshot, "host/dmesg", host.parse_kernel_log),
        cmdline=observe(snapshot, "host/cmdline", host.parse_cmdline),
        iommu_groups=groups,
        busy=observe(snapshot, "host/busy", host.parse_busy),
        as_of_recorded=parse_time(snapshot.captured_at, default_utc=True) is not None,
        host_asked="host" in snapshot.unread or any(path.startswith("host/") for path in snapshot.files),
    )


def _side_unread(snapshot: Snapshot, side: str) -> str:
    """Why not one file of ``side`` is there; empty when at least one is."""
    if any(path.startswith(f"{side}/") for path in snapshot.files):
        return ""
    return snapshot.unread.get(side) or t("no file of {side}/ is in the snapshot", side=side)


def _pci(snapshot: Snapshot, groups: Observation[tuple[str, ...]]) -> Observation[tuple[PciFunction, ...]]:
    """From sysfs (pci_drivers) and lspci. lspci alone knows the other vendors, and not the groups."""
    own = observe(snapshot, "host/pci_drivers", gpu.parse_pci_drivers)
    listed = observe(snapshot, "host/lspci", gpu.parse_lspci)
    if listed.value is not None and groups.known:
        listed = Observation(gpu.with_groups(listed.value, snapshot.files["host/iommu_groups"]), listed.evidence)
    if own.value is None:
        return listed if listed.known else own
    if listed.value is None:
        return own
    known = {function.address for function in own.value}
    others = tuple(function for function in listed.value if function.address not in known)
    return Observation(own.value + others, own.evidence)


def _policy(
    policy: Observation[ClusterPolicyFacts], pods: Observation[tuple[PodFacts, ...]]
) -> Observation[ClusterPolicyFacts]:
    """``policy`` with its operator's running pods counted. None where the snapshot holds no such pod: captures do not
    all look for it."""
    if policy.value is None or not policy.value.present or pods.value is None:
        return policy
    operators = [pod for pod in pods.value if _is_operator(pod)]
    if not operators:
        return policy
    running = sum(pod.phase == "Running" and pod.ready == "True" and not pod.deleting for pod in operators)
    return Observation(replace(policy.value, operator_pods=running), policy.evidence)


def _is_operator(pod: PodFacts) -> bool:
    labels = pod.labels
    return labels.get("app") == "gpu-operator" or labels.get("app.kubernetes.io/component") == "gpu-operator"
