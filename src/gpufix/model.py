"""The nouns that every layer shares. Plain data: nothing here reads, prints or decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeVar

from gpufix.language import t

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a fact was read, and the exact text that says so.

    ``source`` is a snapshot path, with the line number where the text has lines (``host/kubelet.journal:35``) or the
    object where it is JSON (``cluster/nodes.json omen2``). ``excerpt`` is raw: whoever prints it makes it safe first.
    """

    source: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class Observation(Generic[T]):
    """Something that was looked for: known, with its evidence, or unknown, with the reason why.

    Unknown is a result of its own. It is never read as "absent" or "fine" (rule O5).
    """

    value: T | None = None
    evidence: tuple[Evidence, ...] = ()
    unknown: str = ""

    @property
    def known(self) -> bool:
        return not self.unknown

    @classmethod
    def of(cls, value: T, *evidence: Evidence) -> Observation[T]:
        return cls(value=value, evidence=evidence)

    @classmethod
    def missing(cls, reason: str) -> Observation[T]:
        return cls(unknown=reason or t("not read"))

    @classmethod
    def unread(cls) -> Observation[T]:
        return cls(unknown=t("not read"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that diagnosis reads, as raw text: the snapshot folder, in memory.

    ``files`` maps paths such as ``host/proc_swaps`` to their text. ``unread`` maps a path, or a whole side (``host``,
    ``cluster``), to the reason it could not be read. ``captured_at`` is RFC 3339 text, empty when it is not recorded.
    """

    node: str
    files: Mapping[str, str]
    unread: Mapping[str, str] = field(default_factory=dict)
    captured_at: str = ""

    def why_unread(self, path: str) -> str:
        """The reason that ``path`` is not among the files: its own, its side's, or that it was not captured."""
        side = path.split("/", 1)[0]
        return self.unread.get(path) or self.unread.get(side) or t("{path} is not in the snapshot", path=path)


# --- what the cluster says -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    effect: str
    since: datetime | None = None
    value: str = ""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration. An empty ``key`` with ``Exists`` tolerates all; an empty ``effect`` means every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One Node object. ``ready`` is the Ready condition's status (True | False | Unknown), empty if it has none."""

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: str = ""
    ready_since: datetime | None = None
    ready_reason: str = ""
    ready_message: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    boot_id: str = ""
    kubelet_version: str = ""
    last_heartbeat: datetime | None = None
    """lastHeartbeatTime of Ready: when the kubelet last posted its status."""
    kubevirt_heartbeat: datetime | None = None
    """The annotation kubevirt.io/heartbeat, written by virt-handler: fresh while NotReady: the host lives."""
    raw: str = field(default="", compare=False, repr=False)
    """The object's own JSON text, of which evidence is cut."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod. ``requests`` sums the extended resources of its containers; ``scheduled`` is PodScheduled's status."""

    namespace: str
    name: str
    node: str = ""
    phase: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""
    scheduled: str = ""
    scheduled_since: datetime | None = None
    scheduled_message: str = ""
    deleting: bool = False
    requests: Mapping[str, int] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    """Reasons of containers that wait (CrashLoopBackOff, Init:..., ...)."""
    tolerations: tuple[Toleration, ...] = ()
    created: datetime | None = None
    raw: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class VmFacts:
    """One VirtualMachine, with the extended resources its gpus and hostDevices ask for."""

    namespace: str
    name: str
    status: str = ""
    devices: Mapping[str, int] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    """status.nodeName of its VMI, when that has one."""
    vmi_phase: str = ""
    vmi_message: str = ""
    """The VMI's own PodScheduled or Synchronized message; it may be stale: the pod's condition is the truth."""
    wanted: bool = True
    """False when the VM is meant to be off (runStrategy Halted, running: false)."""
    failure: str = ""
    """The message of the VM's own condition Failure: why no VMI could be made."""
    raw: str = field(default="", compare=False, repr=False)
    vmi_raw: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ClusterPolicyFacts:
    """The GPU Operator's ClusterPolicy. ``present`` is False where its CRD or object does not exist."""

    present: bool
    sandbox_enabled: bool = False
    default_workload: str = ""
    state: str = ""
    namespace: str = ""
    operator_pods: int | None = None
    """Running pods of the operator's own Deployment; None when that is not known."""
    raw: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class KubeVirtFacts:
    """permittedHostDevices of the KubeVirt CR: resource name -> externalResourceProvider."""

    present: bool
    permitted: Mapping[str, bool] | None = None
    """None when permittedHostDevices is not set at all: then nothing is checked."""
    raw: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EventFacts:
    """One Event. ``host``: the node whose component wrote it, where it says."""

    kind: str
    namespace: str
    name: str
    reason: str
    message: str
    at: datetime | None = None
    host: str = ""
    raw: str = field(default="", compare=False, repr=False)


# --- what the host says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """``systemctl show`` of the kubelet's unit."""

    name: str
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    restarts: int = 0
    unit_file_state: str = ""
    restart_policy: str = ""
    active_since: datetime | None = None
    main_pid: int = 0
    load_state: str = ""
    """systemd's LoadState: loaded, not-found, masked, ...; empty when it was not asked."""

    @property
    def running(self) -> bool:
        return self.active_state == "active" and self.sub_state in ("running", "")

    @property
    def will_start_by_itself(self) -> bool:
        """systemd starts it again with nobody asking: the state of a crash loop (measured)."""
        return self.active_state == "activating" or self.sub_state == "auto-restart"


@dataclass(frozen=True, slots=True)
class StartFacts:
    """One start of the kubelet as the journal shows it. ``fatal``: the line that ended it, if one was written."""

    at: datetime | None
    fatal: Evidence | None
    ended: bool
    lines: tuple[Evidence, ...] = ()
    how: str = ""
    """How it ended: failure | stop | reboot; empty while it runs, or where the journal does not say."""
    exit_status: str = ""
    """systemd's words for the exit, ``1/FAILURE``; empty when the journal has none."""


@dataclass(frozen=True, slots=True)
class JournalFacts:
    """The kubelet's journal, oldest start first. The last start whose words were kept explains the death."""

    starts: tuple[StartFacts, ...]
    held: bool = False
    """The unit was stopped after its last start, and no restart is scheduled since."""


@dataclass(frozen=True, slots=True)
class SwapDevice:
    """A line of /proc/swaps; sizes in KiB. ``path`` has the kernel's octal escapes resolved."""

    path: str
    kind: str
    size_kib: int
    used_kib: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Of /proc/meminfo, in KiB; None where the line is missing."""

    available_kib: int | None
    swap_total_kib: int | None = None
    commit_limit_kib: int | None = None
    committed_kib: int | None = None


@dataclass(frozen=True, slots=True)
class SwapUnit:
    """A .swap unit. ``origin`` is native | fstab | gpt-auto | zram | proc | masked | unknown."""

    name: str
    what: str
    fragment: str
    active_state: str
    unit_file_state: str
    origin: str

    @property
    def returns_at_boot(self) -> bool | None:
        """None when it cannot be told. fstab's units are judged by the fstab line itself, so they say False here."""
        if self.origin in ("fstab", "proc", "masked"):
            return False
        if self.origin == "native":
            return self.unit_file_state not in ("disabled", "masked")
        if self.origin in ("gpt-auto", "zram"):
            return True
        return None


@dataclass(frozen=True, slots=True)
class FstabLine:
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class HostContainer:
    """A container known to the runtime. ``container`` is empty for a pod's sandbox. ``running`` None: not known."""

    pod: str
    container: str
    id: str
    running: bool | None

    @property
    def is_vfio_manager(self) -> bool:
        """Of the DaemonSet nvidia-vfio-manager, and not its sandbox (NVIDIA/gpu-operator assets)."""
        return bool(self.container) and (
            self.container == "nvidia-vfio-manager" or self.pod.startswith("nvidia-vfio-manager-")
        )


@dataclass(frozen=True, slots=True)
class GpuCard:
    """An NVIDIA PCI display function. ``driver`` is empty when none is bound."""

    address: str
    device: str
    pci_class: str
    driver: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A PCI function as lspci or sysfs shows it. ``evidence`` holds the lines that name it and its driver.

    ``group`` is the IOMMU group's number, empty when none is shown; ``group_known`` tells whether it was looked for.
    """

    address: str
    vendor: str
    device: str
    pci_class: str
    driver: str
    group: str = ""
    group_known: bool = False
    group_members: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    @property
    def is_nvidia_gpu(self) -> bool:
        return self.vendor == "10de" and self.pci_class.startswith("03")


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A process with a GPU device file open. ``kind`` is cuda | display | daemon | vm | unknown."""

    pid: int
    command: str
    devices: tuple[str, ...]
    pod: str
    kind: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A snapshot, read: each thing known or unknown with its reason. Made by ``core.parse.parse_snapshot``."""

    node_name: str
    as_of: datetime | None
    node: Observation[NodeFacts]
    nodes: Observation[tuple[NodeFacts, ...]]
    pods: Observation[tuple[PodFacts, ...]]
    vms: Observation[tuple[VmFacts, ...]]
    cluster_policy: Observation[ClusterPolicyFacts]
    kubevirt: Observation[KubeVirtFacts]
    unit: Observation[UnitFacts]
    journal: Observation[JournalFacts]
    swap_allowed: Observation[bool]
    """The kubelet's own configuration lets it start with swap on (failSwapOn false, flag over file)."""
    swaps: Observation[tuple[SwapDevice, ...]]
    memory: Observation[MemoryFacts]
    overcommit: Observation[int]
    fstab_swap: Observation[tuple[FstabLine, ...]]
    swap_units: Observation[tuple[SwapUnit, ...]]
    swap_services: Observation[tuple[str, ...]]
    """Enabled services that make swap at boot: zramswap.service, dphys-swapfile.service, ..."""
    containers: Observation[tuple[HostContainer, ...]]
    gpus: Observation[tuple[GpuCard, ...]]
    gpu_holders: Observation[tuple[GpuHolder, ...]]
    boot_id: Observation[str]
    in_container: Observation[bool]
    host_unread: str = ""
    """Why the host could not be read at all; empty when it was."""
    cluster_unread: str = ""
    events: Observation[tuple[EventFacts, ...]] = field(default_factory=Observation.unread)
    pci: Observation[tuple[PciFunction, ...]] = field(default_factory=Observation.unread)
    """Every PCI function that lspci or pci_drivers names, of any vendor."""
    kernel_log: Observation[tuple[Evidence, ...]] = field(default_factory=Observation.unread)
    """The lines of dmesg."""
    cmdline: Observation[str] = field(default_factory=Observation.unread)
    iommu_groups: Observation[tuple[str, ...]] = field(default_factory=Observation.unread)
    """The numbers of the groups under /sys/kernel/iommu_groups; none at all means that the IOMMU is off."""
    busy: Observation[str] = field(default_factory=Observation.unread)
    """Who changes the host at the moment, ``gpufix_swap (process 123)``; empty when nobody does."""
    as_of_recorded: bool = True
    """False when ``as_of`` is only the newest timestamp of the folder: then nothing is too old by it."""
    host_asked: bool = True
    """False when nobody tried to read the host (a snapshot of the cluster alone): then its silence proves nothing."""


# --- what diagnosis says ---------------------------------------------------------------------------------------------


class Status(StrEnum):
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    SUSPECTED = "suspected"
    """Only of a root cause: the evidence points to it and does not prove it."""


@dataclass(frozen=True, slots=True)
class Link:
    """One link of the chain of causes: what it claims, whether that holds, and by what."""

    id: str
    title: str
    status: Status
    detail: str = ""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """A root cause that was considered and put aside, and by what."""

    id: str
    status: Status
    by: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherNode:
    name: str
    can_serve: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class AffectedVm:
    """A VM that cannot run for want of this node. ``resources``: what it asks for, name -> count."""

    namespace: str
    name: str
    status: str
    resources: Mapping[str, int]
    since: datetime | None
    reason: str
    evidence: tuple[Evidence, ...] = ()
    other_nodes: tuple[OtherNode, ...] = ()

    @property
    def servable_elsewhere(self) -> bool | None:
        answers = [other.can_serve for other in self.other_nodes]
        if True in answers:
            return True
        return None if None in answers else False


@dataclass(frozen=True, slots=True)
class Finding:
    """The root cause: its id (docs, "Root cause ids"), how sure, one sentence, and the evidence."""

    id: str
    status: Status
    summary: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    node: str
    as_of: datetime | None
    root_cause: Finding
    chain: tuple[Link, ...]
    alternatives: tuple[Alternative, ...] = ()
    affected: tuple[AffectedVm, ...] = ()
    down_since: datetime | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


ROOT_CAUSES: tuple[str, ...] = (
    "swap-on",
    "kubelet-config-missing",
    "kubelet-flag-removed",
    "cgroup-driver-mismatch",
    "cgroup-v1-unsupported",
    "container-runtime-down",
    "cri-v1-unsupported",
    "client-cert-expired",
    "apiserver-unreachable",
    "kubelet-port-in-use",
    "disk-full",
    "kubelet-stopped",
    "node-cordoned",
    "host-unreachable",
    "cni-not-ready",
    "iommu-off",
    "gpu-bound-to-nouveau",
    "gpu-not-bound-to-vfio",
    "iommu-group-shared",
    "workload-label-wrong",
    "workload-label-missing",
    "device-plugin-down",
    "resource-name-mismatch",
    "vfio-manager-failing",
    "gpu-fell-off-bus",
    "nfd-down",
    "gpu-already-allocated",
    "node-name-mismatch",
    "healthy",
    "unknown",
)
"""Every id a Finding can have: the published list, stable in JSON and in runbooks."""
