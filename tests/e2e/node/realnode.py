#!/usr/bin/env python3
"""A real one-node cluster for the end-to-end tests.

    realnode.sh up                     build what is missing, bring the node up, healthy in container mode
    realnode.sh incident [MODE]        the incident: swap on and in fstab, kubelet crash-looping, node NotReady,
                                       both virtual machines unschedulable (MODE: vm-passthrough, container)
    realnode.sh reset MODE             a healthy node again, in that mode; seconds, no reboot
    realnode.sh heal                   reset container
    realnode.sh fault NAME             one more fault; NAME is one of those that "realnode.sh" alone lists
    realnode.sh status                 what runs, what the node says
    realnode.sh kubectl ARGS...        kubectl with the cluster's administrator
    realnode.sh ssh COMMAND            as root, over SSH; "inside COMMAND" needs no sshd
    realnode.sh image                  build and load the stand-in image again
    realnode.sh down                   everything gone, whatever happened before

What is real: etcd, kube-apiserver, kube-controller-manager, kube-scheduler (on this host) and the node
``omen2``, booted by systemd-nspawn with its own systemd, sshd, journald, containerd and kubelet. Its swap
is real too, so it is this whole machine's: ``up`` refuses where swap is on, ``down`` turns it off from
outside. What stands in: the card and everything that needs one (see manifests/, stand_ins.py and
deviceplugin/main.go), and the images, which are all one image made here (nothing can be pulled).

Root only; Debian with apt, or the commands of ``PACKAGES`` already there. One node at a time on a machine.
Environment: GPUFIX_REALNODE (work folder, /tmp/gpufix-realnode), WAY, GPUFIX_KUBERNETES and
KUBEBUILDER_ASSETS (see build_kubernetes.sh), XDG_CACHE_HOME.

The work folder has ``admin.conf`` (kubeconfig), ``inventory.ini`` (the host ``omen2``, as root), ``id`` (an
SSH key that root, ``operator`` and ``ops`` accept; ``operator`` may sudo with the password "practice",
``ops`` without one) and ``logs/``.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

HERE = Path(__file__).resolve().parent

NODE = "omen2"
ADDRESS = "10.99.0.10"
GATEWAY = "10.99.0.1"
SERVER = f"https://{GATEWAY}:6443"
ETCD = "http://127.0.0.1:12379"
NETNS = f"gpufix-{NODE}"
BRIDGE = "br-gpufix"
VETH = "v-gpufix"
OWNER = Path("/run/gpufix-realnode")
"""Names the work folder of the node that is up on this machine."""
MARK = "GPUFIX_REALNODE_CHILD"
"""Environment variable of every process that is started on the host, so that none is ever lost."""

Mode = Literal["container", "vm-passthrough"]
CONTAINER: Mode = "container"
PASSTHROUGH: Mode = "vm-passthrough"
WORKLOAD_CONFIG = "nvidia.com/gpu.workload.config"
DEPLOY = "nvidia.com/gpu.deploy."
FEATURE = "feature.node.kubernetes.io/pci-10de.present"
GPU = "nvidia.com/gpu"
RTX_5090 = "nvidia.com/GB202_GEFORCE_RTX_5090"
RESOURCE: dict[Mode, str] = {CONTAINER: GPU, PASSTHROUGH: RTX_5090}
OPERANDS: dict[Mode, frozenset[str]] = {
    CONTAINER: frozenset({"nvidia-device-plugin-daemonset"}),
    PASSTHROUGH: frozenset({"nvidia-sandbox-device-plugin-daemonset", "nvidia-vfio-manager"}),
}
MARKER_LABEL: dict[Mode, str] = {CONTAINER: DEPLOY + "device-plugin", PASSTHROUGH: DEPLOY + "vfio-manager"}
VMS = ("gpu-fedora", "rhel9-gpu-vm")
CALLS = "/var/log/gpufix-calls"
"""On the node: one line for each call of vfio-manage.sh, with its time and its pod."""
SUDO_PASSWORD = "practice"  # a node that is thrown away, reachable from this host only

FSTAB_HEALTHY = """\
# /etc/fstab: static file system information.
UUID=11111111-2222-3333-4444-555555555555 /data/swap-archive ext4 noauto,nofail 0 0
#/old.swap none swap sw 0 0
"""
FSTAB_INCIDENT = """\
# /etc/fstab: static file system information.
UUID=11111111-2222-3333-4444-555555555555 /data/swap-archive ext4 noauto,nofail 0 0
/swapfile none swap sw 0 0
#/old.swap none swap sw 0 0
"""
FSTAB_FIXED = """\
# /etc/fstab: static file system information.
UUID=11111111-2222-3333-4444-555555555555 /data/swap-archive ext4 noauto,nofail 0 0
#/swapfile none swap sw 0 0
#/old.swap none swap sw 0 0
"""
"""What FSTAB_INCIDENT must become, byte for byte: a data mount and a comment that say "swap" are left alone."""

PACKAGES = {
    "etcd": "etcd-server",
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "openssl": "openssl",
    "nsenter": "util-linux",
}
NODE_PACKAGES = (
    "systemd systemd-sysv dbus openssh-server python3 iproute2 containerd containernetworking-plugins iptables kmod "
    "util-linux mount udev sudo procps conntrack busybox-static bash-static"
).split()
IMAGE = "registry.invalid/gpufix/standin:v1"
PAUSE_IMAGE = "registry.invalid/gpufix/pause:v1"

PRISTINE = ("etc", "usr/lib/systemd/system/kubelet.service", "usr/lib/systemd/system/kubelet.service.d")
PRISTINE_KUBELET = ("var/lib/kubelet/config.yaml", "var/lib/kubelet/kubeadm-flags.env")
NOT_RESTORED = frozenset({"etc/machine-id", "etc/mtab", "etc/resolv.conf", "etc/.updated", "etc/.pwd.lock"})

CONTAINERD_CONFIG = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true  # no score may be lowered inside nspawn
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""
CNI_CONFIG = {
    "cniVersion": "0.4.0",
    "name": "realnode",
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": True,
    "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"},
}
KUBELET_CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook}
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: true
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 2s
nodeLeaseDurationSeconds: 8
"""
# kubeadm's own unit and drop-in, but for RestartSec (10 there), so that a crash loop shows in seconds
KUBELET_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target containerd.service

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=3

[Install]
WantedBy=multi-user.target
"""
KUBELET_DROP_IN = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
# nspawn leaves the cgroup v1 controllers read-only; runc must write to them
CGROUP_UNIT = """\
[Unit]
Description=Make the cgroup controllers writable for the container runtime
Before=containerd.service

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for d in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,rw $d || mount -o remount,bind,rw $d; done 2>/dev/null; true'

[Install]
WantedBy=multi-user.target
"""
BAD_FLAG_DROP_IN = "etc/systemd/system/kubelet.service.d/90-bad-flag.conf"
PORT_HOLDER = "port-holder"

T = TypeVar("T")
Object = dict[str, Any]


class RealNodeError(Exception):
    """The node is not, or did not get, as it was asked to be."""


class RealNode:
    """The node and its cluster. All state lies in the work folder, so any process can take it up."""

    def __init__(self, work: Path | None = None, say: Callable[[str], None] = lambda message: None) -> None:
        self.work = work or Path(os.environ.get("GPUFIX_REALNODE") or "/tmp/gpufix-realnode")  # noqa: S108
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.cache = cache / "gpufix" / "realnode"
        self.root = self.work / "root"
        self.pki = self.work / "pki"
        self.kubeconfig = self.work / "admin.conf"
        self.inventory = self.work / "inventory.ini"
        self.ssh_key = self.work / "id"
        self.say = say

    # ------------------------------------------------------------------ life

    def up(self) -> None:
        """Bring the node up, healthy in container mode, or leave one that is up as it is."""
        self._require_root()
        with self._one_at_a_time():
            if self.is_up():
                self.say("already up")
                return
            self._clear_away()
            if swap_devices():
                raise RealNodeError(
                    f"this machine has swap on ({', '.join(swap_devices())}); the node would share it: swapoff first"
                )
            self._install_tools()
            binaries = self._binaries()
            plugin = self._stand_in_binary()
            archive = self._root_archive()
            for folder in ("run", "logs", "etcd"):
                (self.work / folder).mkdir(parents=True, exist_ok=True)
            OWNER.write_text(f"{self.work}\n")
            self._link_binaries(binaries)
            self._make_network()
            self._make_pki()
            self._start_etcd()
            self._start_api_server()
            self.say("unpacking the node")
            self.root.mkdir()
            run(["tar", "-xf", str(archive), "-C", str(self.root), "--numeric-owner"])
            self._furnish_root(binaries)
            self._start_node()
            self._wait_for_api()
            self._start_controllers()
            self.say("waiting for the node")
            self.until(self._node_booted, "the node's systemd to finish booting", 60)
            self.load_image(plugin)
            self.kubectl("apply", "-f", str(HERE / "manifests" / "10-crds.yaml"))
            self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
            self.kubectl("apply", "-f", str(HERE / "manifests"))
            self.until(lambda: self._node() is not None, "the node to register", 60)
            self._save_pristine()
        self.reset(CONTAINER)

    def down(self) -> None:
        """Leave nothing behind but the caches and the logs, whatever happened before."""
        self._require_root()
        with self._one_at_a_time():
            self._clear_away()

    def is_up(self) -> bool:
        """Tell whether API server and node both run (the node need not be Ready)."""
        return self._owns_machine() and self._leader() is not None and self._alive("kube-apiserver")

    def reboot(self) -> None:
        """Boot the node anew: systemd, containers and kubelet start from nothing.

        The swap that stays on is the one that a whole machine would turn on at boot (see ``swap_at_boot``): a
        container's own systemd leaves swap alone in both directions, and swap is a state of this machine's kernel.
        """
        before = self._leader()
        returning = {unit["what"] for unit in self.swap_at_boot()}
        for device in swap_devices():
            if self._as_seen_inside(device) not in returning:
                self._swap_off(device)
        self.inside("systemctl --no-block reboot")
        self.until(lambda: self._leader() not in (None, before), "the node to boot again", 60)
        self.until(self._node_booted, "the node's systemd to finish booting", 60)

    def status(self) -> str:
        """Describe what runs and what the node says, for a person."""
        if not self._owns_machine():
            return "down\n"
        processes = (*self._host_processes(), "node")
        lines = [f"{name}: {'up' if self._alive(name) else 'down'}" for name in processes]
        lines.append(f"swap: {', '.join(swap_devices()) or 'off'}")
        if self._leader():
            lines.append(f"kubelet: {self.unit_state()}")
            lines.append("fstab:\n" + self.read("/etc/fstab"))
            lines.append(f"{CALLS}:\n" + "\n".join(self.calls()[-10:]))
        if self._alive("kube-apiserver"):
            lines.append(self.kubectl("get", "node", "-o", "wide", check=False))
            lines.append(self.kubectl("get", "pod,vm", "-A", "-o", "wide", check=False))
            lines.append(f"mode label: {self.labels().get(WORKLOAD_CONFIG)}, allocatable: {self.all_allocatable()}")
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------------ talk

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 60) -> str:
        """Run kubectl as the cluster's administrator and give its output."""
        command = [str(self.work / "bin" / "kubectl"), f"--kubeconfig={self.kubeconfig}"]
        return run([*command, f"--cache-dir={self.work}/kubectl-cache", *arguments], stdin, check, timeout)

    def get(self, *arguments: str) -> Object:
        """``kubectl get ARGUMENTS -o json``."""
        answer: Object = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return answer

    def ssh(self, command: str, user: str = "root", check: bool = True, timeout: float = 60) -> str:
        """Run a shell command on the node over SSH and give its output."""
        return run([*self.ssh_command(user), command], None, check, timeout)

    def ssh_command(self, user: str = "root") -> list[str]:
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes")
        flags = [flag for option in (*options, "ConnectTimeout=5", "IdentitiesOnly=yes") for flag in ("-o", option)]
        return ["ssh", *flags, "-i", str(self.ssh_key), f"{user}@{ADDRESS}"]

    def inside(self, command: str, check: bool = True, timeout: float = 60) -> str:
        """Run a shell command on the node as root without sshd: through its namespaces, from the host."""
        leader = self._leader()
        if leader is None:
            raise RealNodeError("the node is not running: realnode.sh up")
        enter = ["nsenter", "-t", str(leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w"]
        clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"]
        return run([*enter, *clean, "/bin/sh", "-c", command], None, check, timeout)

    def read(self, path: str) -> str:
        """Read a file of the node's disk (not of its /proc, /run or /tmp), whether it runs or not."""
        return (self.root / path.lstrip("/")).read_text()

    def write(self, path: str, text: str) -> None:
        (self.root / path.lstrip("/")).write_text(text)

    # ------------------------------------------------------------------ reads

    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = (self._node() or {"metadata": {}})["metadata"].get("labels", {})
        return labels

    def is_ready(self) -> bool:
        """Ready=True and no taint of the node controller left: the two come seconds apart."""
        node = self._node()
        return node is not None and ready_status(node) == "True" and not node["spec"].get("taints")

    def allocatable(self, resource: str) -> int:
        """Give the node's allocatable of a resource as the API has it; it is frozen while the kubelet is dead."""
        return int(self.all_allocatable().get(resource, "0"))

    def all_allocatable(self) -> dict[str, str]:
        node = self._node() or {"status": {}}
        resources: dict[str, str] = node["status"].get("allocatable", {})
        return {name: count for name, count in resources.items() if "nvidia.com/" in name}

    def unit_state(self, unit: str = "kubelet") -> str:
        """``ActiveState/SubState`` of a unit on the node, as "activating/auto-restart"."""
        answer = self.inside(f"systemctl show -p ActiveState,SubState --value {shlex.quote(unit)}")
        return "/".join(answer.split())

    def calls(self, verb: str = "") -> list[str]:
        """Give the logged calls of vfio-manage.sh since the last reset, those of one verb if named (bind, unbind)."""
        log = self.root / CALLS.lstrip("/")
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if f" vfio-manage.sh {verb}" in line]

    def containers(self, name: str) -> list[str]:
        """Give the ids of the running containers of that name on the node, asked from the runtime."""
        wanted = f'labels."io.kubernetes.container.name"=={name}'
        known = self.inside(f"ctr -n k8s.io containers ls -q {shlex.quote(wanted)}").split()
        tasks = [line.split() for line in self.inside("ctr -n k8s.io tasks ls").splitlines()[1:]]
        running = {task[0] for task in tasks if task[-1] == "RUNNING"}
        return [container for container in known if container in running]

    def launchers(self) -> list[Object]:
        pods: list[Object] = self.get("pod", "-n", "default", "-l", "kubevirt.io=virt-launcher")["items"]
        return pods

    def vm_status(self, name: str) -> str:
        """Give the printableStatus of a virtual machine, as "ErrorUnschedulable"."""
        return str(self.get("vm", "-n", "default", name).get("status", {}).get("printableStatus", ""))

    def swap_at_boot(self) -> list[dict[str, str]]:
        """Give the swap units that a boot of a whole machine would make from this node's disk: {unit, what}.

        systemd makes none inside a container, so its generators are run here on the node's root without the
        container's marks, and the units that lie on the disk are added.
        """
        script = (
            "mount -t proc proc /proc; mkdir -p /tmp/g/n /tmp/g/e /tmp/g/l; "
            "/usr/lib/systemd/system-generators/systemd-fstab-generator /tmp/g/n /tmp/g/e /tmp/g/l 2>/dev/null; "
            "for d in /tmp/g/n /etc/systemd/system /usr/lib/systemd/system; do for u in $d/*.swap; do "
            "[ -e $u ] && [ ! -L /etc/systemd/system/${u##*/} ] && "
            'echo "${u##*/} $(sed -n s/^What=//p $u)"; done; done; true'
        )
        mount = "mount -t tmpfs none tmp && exec chroot . /bin/sh -c "
        command = ["env", "-u", "container", "unshare", "-m", "-p", "-f", "/bin/sh", "-c"]
        text = run([*command, f"cd {shlex.quote(str(self.root))} && {mount} {shlex.quote(script)}"])
        pairs = (line.split(maxsplit=1) for line in text.splitlines())
        return [{"unit": pair[0], "what": pair[1] if len(pair) > 1 else ""} for pair in pairs]

    def until(self, holds: Callable[[], T], what: str, timeout: float, interval: float = 0.2) -> T:
        """Poll until ``holds()`` is true and give what it gave; seconds. An error of a read counts as not yet."""
        deadline = time.monotonic() + timeout
        last = ""
        while True:
            try:
                value = holds()
                last = ""
            except (RealNodeError, OSError, ValueError, KeyError) as error:
                value, last = None, f" ({error})"  # type: ignore[assignment]
            if value:
                return value
            if time.monotonic() > deadline:
                raise RealNodeError(f"waited {timeout:g} s for {what}{last}; logs in {self.work}/logs")
            time.sleep(interval)

    # ------------------------------------------------------------------ incident and reset

    def incident(self, mode: Mode = PASSTHROUGH) -> None:
        """The incident: swap on and in fstab, kubelet in a crash loop, node NotReady, both machines unschedulable.

        The operands of ``mode`` run before the kubelet dies, and their containers go on running on the host.
        """
        self.reset(mode, vms=False)
        self.swap_on()
        self.write("/etc/fstab", FSTAB_INCIDENT)
        self.inside("systemctl daemon-reload; systemctl restart kubelet")
        self.until(self.is_refused_for_swap, "the kubelet to refuse swap and crash-loop", 30)
        self.until(self.is_unreachable, "the node to be NotReady and tainted unreachable", 60)
        self.start_vms()
        for vm in VMS:
            self.until(lambda vm=vm: self.vm_status(vm) == "ErrorUnschedulable", f"{vm} to be unschedulable", 30)  # type: ignore[misc]

    def reset(self, mode: Mode = CONTAINER, vms: bool = True) -> None:
        """Make the node healthy again in a mode, whatever a test left behind, without a reboot.

        With ``vms`` the two machines are started: in container mode both wait for a resource that this mode does
        not offer, in vm-passthrough gpu-fedora runs and rhel9-gpu-vm waits for the one card. The log of calls is
        empty afterwards.
        """
        if not self.is_up():
            raise RealNodeError("the node is not up: realnode.sh up")
        self.api_up()
        self.operator_up()
        self.kubevirt_up()
        self._kill("run", PORT_HOLDER)
        self._stop_vms()
        changed = self._restore_pristine()
        if changed or swap_devices() or not self._is_settled(mode):
            self._revive(mode, changed)
        self.until(lambda: self._is_settled(mode), f"the node to be healthy in {mode} mode", 90)
        self.ssh_up()
        self._drop_leases()
        self.kubectl("delete", "event", "--all", "-n", "default", "--wait=false")
        if vms:
            self.start_vms(settled=mode)
        (self.root / CALLS.lstrip("/")).write_text("")

    def _revive(self, mode: Mode, changed: list[str]) -> None:
        """Stop the kubelet, take away what it must not find, start it, and see it speak for itself."""
        if changed:
            self.say(f"put back: {', '.join(changed)}")
        self.inside("systemctl stop kubelet")
        for device in swap_devices():
            self._swap_off(device)
        self.inside(
            "rm -rf /swapfile /run/systemd/system/*.swap /run/systemd/system/kubelet.service* "
            "/run/systemd/system.control; systemctl daemon-reload; systemctl reset-failed; systemctl start containerd"
        )
        if self._node() is not None:
            self._label(mode)
            self._remove_stale_pods(mode)
        started = int(time.time())
        self.inside("systemctl start kubelet")
        self.until(lambda: heartbeat(self._node()) > started, "the kubelet to report again", 60)
        self._label(mode)  # the kubelet may have registered the node anew
        self.kubectl("uncordon", NODE)

    def _label(self, mode: Mode) -> None:
        labels = self.labels()
        deploy = [name for name in labels if name.startswith(DEPLOY)]
        stale = [name for name in deploy if labels[name] != "true" or name == DEPLOY + "operands"]
        wanted = {WORKLOAD_CONFIG: mode, FEATURE: "true"}
        changes = [f"{name}={value}" for name, value in wanted.items() if labels.get(name) != value]
        changes += [f"{name}-" for name in stale]
        if changes:
            self.kubectl("label", "node", NODE, "--overwrite", *changes)
        self.until(lambda: self._labels_follow(mode), "the operator's stand-in to set the deploy labels", 20)

    def _labels_follow(self, mode: Mode) -> bool:
        labels = self.labels()
        other = PASSTHROUGH if mode == CONTAINER else CONTAINER
        return (
            labels.get(WORKLOAD_CONFIG) == mode and MARKER_LABEL[mode] in labels and MARKER_LABEL[other] not in labels
        )

    def _remove_stale_pods(self, mode: Mode) -> None:
        """Kill on the host, then forget in the API, every operand that the mode does not want. The kubelet is down."""

        def stale() -> list[Object]:
            return [pod for pod in self._operand_pods() if not is_wanted(pod, OPERANDS[mode])]

        self.until(
            lambda: all("deletionTimestamp" in pod["metadata"] for pod in stale() if not is_over(pod)),
            "the DaemonSets to give up their pods",
            20,
        )
        for pod in stale():
            self._forget(pod)

    def _forget(self, pod: Object) -> None:
        metadata = pod["metadata"]
        wanted = f'labels."io.kubernetes.pod.uid"=={metadata["uid"]}'
        self.inside(
            f"for c in $(ctr -n k8s.io containers ls -q {shlex.quote(wanted)}); do "
            "ctr -n k8s.io tasks kill -s SIGKILL $c; done 2>/dev/null; true"
        )
        self.kubectl(
            *("delete", "pod", "-n", metadata["namespace"], metadata["name"]),
            *("--force", "--grace-period=0", "--ignore-not-found", "--wait=false"),
        )

    def _is_settled(self, mode: Mode) -> bool:
        """The one definition of healthy: labels, Ready, no taint, operands, allocatable, all read now."""
        node = self._node()
        if node is None or not self._labels_follow(mode):
            return False
        if ready_status(node) != "True" or node["spec"].get("taints") or node["spec"].get("unschedulable"):
            return False
        if self.unit_state() != "active/running" or time.time() - heartbeat(node) > 6:
            return False
        pods = self._operand_pods()
        if {app_of(pod) for pod in pods} != OPERANDS[mode] or not all(is_running(pod) for pod in pods):
            return False
        resources = self.all_allocatable()
        return all(int(resources.get(RESOURCE[it], "0")) == int(it == mode) for it in RESOURCE)

    def _operand_pods(self) -> list[Object]:
        pods: list[Object] = self.get("pod", "-n", "gpu-operator", "--field-selector", f"spec.nodeName={NODE}")["items"]
        return pods

    def is_refused_for_swap(self) -> bool:
        """Tell whether the kubelet waits for its next start after a last one that refused swap."""
        last = self.inside("journalctl -u kubelet -o cat -n 400 --no-pager")
        return (
            self.unit_state() == "activating/auto-restart" and "running with swap on is not supported" in last.lower()
        )

    def is_unreachable(self) -> bool:
        """Tell whether the node controller has given the node up: Ready=Unknown and both taints."""
        node = self._node() or {"spec": {}, "status": {}}
        taints = {(taint["key"], taint["effect"]) for taint in node["spec"].get("taints", [])}
        unreachable = {("node.kubernetes.io/unreachable", effect) for effect in ("NoSchedule", "NoExecute")}
        return ready_status(node) == "Unknown" and unreachable <= taints

    # ------------------------------------------------------------------ virtual machines

    def start_vms(self, settled: Mode | None = None) -> None:
        """Start both machines; with ``settled``, gpu-fedora first, and wait for where each must come to rest."""
        for vm in VMS:
            self.kubectl(
                "patch", "vm", vm, "-n", "default", "--type=merge", "-p", '{"spec": {"runStrategy": "Always"}}'
            )
            if settled:
                state = "Running" if settled == PASSTHROUGH and vm == VMS[0] else "ErrorUnschedulable"
                self.until(lambda vm=vm, state=state: self.vm_status(vm) == state, f"{vm} to be {state}", 40)  # type: ignore[misc]

    def _stop_vms(self) -> None:
        for vm in VMS:
            self.kubectl(
                "patch", "vm", vm, "-n", "default", "--type=merge", "-p", '{"spec": {"runStrategy": "Halted"}}'
            )

        def gone() -> bool:
            pods = self.launchers()
            for pod in pods:
                if "deletionTimestamp" in pod["metadata"]:
                    self._forget(pod)
            return not pods and not self.get("vmi", "-n", "default")["items"]

        self.until(gone, "the virtual machines to stop", 30)

    # ------------------------------------------------------------------ faults

    def swap_on(self, path: str = "/swapfile", megabytes: int = 256) -> None:
        """Turn a swap file on, on the node and so on this machine. fstab is left alone."""
        q = shlex.quote(path)
        self.inside(
            f"test -f {q} || (umask 077; dd if=/dev/zero of={q} bs=1M count={megabytes} status=none; mkswap {q} >/dev/null); "
            f"swapon {q}"
        )

    def swap_off(self) -> None:
        for device in swap_devices():
            self._swap_off(device)

    def allow_swap(self) -> None:
        """Let the kubelet run with swap on (failSwapOn: false) and restart it."""
        config = self.read("/var/lib/kubelet/config.yaml").replace("failSwapOn: true", "failSwapOn: false")
        self.write("/var/lib/kubelet/config.yaml", config)
        started = int(time.time())
        self.inside("systemctl restart kubelet")
        self.until(lambda: heartbeat(self._node()) > started and self.is_ready(), "the kubelet to run with swap on", 60)

    def kubelet_bad_flag(self, flag: str = "--no-such-flag=1", latent: bool = True) -> None:
        """Make the kubelet fail for another reason than swap: a flag that it does not know.

        ``latent``: the flag lies in a drop-in that systemd has not read, so that the crash loop goes on as before
        and the flag counts from the next ``systemctl daemon-reload`` on. Otherwise systemd reads it now, and the
        next start of the kubelet (a crash loop's too) fails over it.
        """
        drop_in = self.root / BAD_FLAG_DROP_IN
        drop_in.parent.mkdir(parents=True, exist_ok=True)
        drop_in.write_text(f'[Service]\nEnvironment="KUBELET_EXTRA_ARGS={flag}"\n')
        if not latent:
            self.inside("systemctl daemon-reload")

    def kubelet_port_taken(self) -> None:
        """Hold the kubelet's port on the node (when the kubelet does not): it starts past swap, and then fails."""
        leader = self._leader()
        holder = (
            f"import socket, time; s = socket.create_server(('', 10250)); print('held', flush=True); time.sleep(1e6)"
        )
        enter = ["nsenter", "-t", str(leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w"]
        self._spawn(PORT_HOLDER, [*enter, "/usr/bin/python3", "-c", holder])
        self.until(lambda: "held" in (self.work / "logs" / f"{PORT_HOLDER}.log").read_text(), "the port to be held", 10)

    def ssh_down(self) -> None:
        """Stop sshd and end every session: connections are refused."""
        self.inside(
            "systemctl stop ssh.socket ssh.service 2>/dev/null; systemctl kill -s KILL --kill-who=all ssh.service",
            check=False,
        )

    def ssh_up(self) -> None:
        self.inside("systemctl start ssh.service")
        for user in ("root", "operator", "ops"):
            self.until(lambda user=user: self.ssh("echo yes", user=user), f"sshd to let {user} in", 30)  # type: ignore[misc]

    def api_down(self) -> None:
        """Kill the API server: connections are refused."""
        self._kill("run", "kube-apiserver")

    def api_up(self) -> None:
        if not self._alive("kube-apiserver"):
            self._start_api_server()
        self._wait_for_api()
        self._start_controllers(only_missing=True)

    def operator_down(self) -> None:
        """No GPU Operator runs: labels are left as they are."""
        self._kill("run", "gpu-operator")

    def operator_up(self) -> None:
        self._start_stand_in("gpu-operator")

    def kubevirt_down(self) -> None:
        self._kill("run", "kubevirt")

    def kubevirt_up(self) -> None:
        self._start_stand_in("kubevirt")

    def _drop_leases(self) -> None:
        """Take away the locks of operators that a test left dead."""
        for lease in self.get("lease", "-A")["items"]:
            metadata = lease["metadata"]
            if "gpufix" in metadata["name"]:
                self.kubectl("delete", "lease", "-n", metadata["namespace"], metadata["name"], "--ignore-not-found")

    # ------------------------------------------------------------------ the node's parts

    def _node(self) -> Object | None:
        text = self.kubectl("get", "node", NODE, "-o", "json", "--ignore-not-found")
        node: Object | None = json.loads(text) if text.strip() else None
        return node

    def _node_booted(self) -> bool:
        state = self.inside("systemctl is-system-running", check=False).strip()
        return state in ("running", "degraded") and bool(self.inside("ctr version"))

    def _install_tools(self) -> None:
        missing = [package for command, package in PACKAGES.items() if not shutil.which(command)]
        if not missing:
            return
        if not shutil.which("apt-get"):
            raise RealNodeError(f"needed on this machine: {', '.join(missing)}")
        self.say(f"installing {', '.join(missing)}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            subprocess.run(["apt-get", "-qq", *arguments], check=True, env=environment, stdout=sys.stderr)

    def _binaries(self) -> Path:
        script = HERE / "build_kubernetes.sh"
        done = subprocess.run([str(script)], check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise RealNodeError(f"{script} failed with status {done.returncode}")
        return Path(done.stdout.split()[-1])

    def _link_binaries(self, binaries: Path) -> None:
        link = self.work / "bin"
        link.unlink(missing_ok=True)
        link.symlink_to(binaries)

    def _stand_in_binary(self) -> Path:
        """Build the device plugin where its sources changed. Static, so that it runs in the stand-in image."""
        source = HERE / "deviceplugin"
        digest = hashlib.sha256(b"".join((source / name).read_bytes() for name in ("main.go", "go.mod", "go.sum")))
        binary = self.cache / f"device-plugin-{digest.hexdigest()[:12]}"
        if not binary.exists():
            if not shutil.which("go"):
                raise RealNodeError("Go >= 1.24 is needed to build tests/e2e/node/deviceplugin")
            self.say("building the device plugin")
            with self._partial(binary) as partial:
                environment = {**os.environ, "CGO_ENABLED": "0"}
                build = ["go", "build", "-C", str(source), "-trimpath", "-ldflags", "-s -w", "-o", str(partial), "."]
                subprocess.run(build, check=True, env=environment, stdout=sys.stderr)
        return binary

    def _root_archive(self) -> Path:
        """Make the node's root with mmdebstrap where it is not cached: Debian bookworm and nothing of a test."""
        digest = hashlib.sha256(" ".join(NODE_PACKAGES).encode()).hexdigest()
        archive = self.cache / f"bookworm-{digest[:12]}.tar"
        if not archive.exists():
            self.say("making the node's root (a minute)")
            excluded = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
            with self._partial(archive) as partial:
                options = [f"--dpkgopt=path-exclude={path}" for path in excluded]
                options += ['--aptopt=Acquire::Languages "none"', f"--include={','.join(NODE_PACKAGES)}"]
                command = ["mmdebstrap", "-q", "--variant=minbase", "--format=tar", *options, "bookworm", str(partial)]
                subprocess.run(command, check=True, stdout=sys.stderr)
        return archive

    @contextmanager
    def _partial(self, target: Path) -> Iterator[Path]:
        """Give a path to write to that becomes ``target`` once it is whole."""
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            yield partial
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _make_network(self) -> None:
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
        run(["ip", "netns", "add", NETNS])
        run(["ip", "link", "add", VETH, "type", "veth", "peer", "name", "host0", "netns", NETNS])
        run(["ip", "link", "set", VETH, "master", BRIDGE, "up"])
        for arguments in (
            ["addr", "add", f"{ADDRESS}/24", "dev", "host0"],
            ["link", "set", "host0", "up"],
            ["link", "set", "lo", "up"],
            ["route", "add", "default", "via", GATEWAY],
        ):
            run(["ip", "-n", NETNS, *arguments])

    def _make_pki(self) -> None:
        """A certificate authority of this run, and what it signs. Nothing outside the work folder trusts it."""
        self.pki.mkdir(mode=0o700)
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        usage = "keyUsage=critical,digitalSignature,keyCertSign,cRLSign"
        run(
            ["openssl", "req", "-x509", *new_key, "-keyout", f"{self.pki}/ca.key", "-out", f"{self.pki}/ca.crt"]
            + ["-days", "365", "-subj", "/CN=realnode-ca", "-addext", usage]
        )
        names = f"subjectAltName=IP:{GATEWAY},IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default.svc"
        for name, subject, extension in (
            ("apiserver", "/CN=kube-apiserver", f"extendedKeyUsage=serverAuth\n{names}"),
            ("admin", "/O=system:masters/CN=kubernetes-admin", "extendedKeyUsage=clientAuth"),
            ("kubelet", f"/O=system:nodes/CN=system:node:{NODE}", "extendedKeyUsage=clientAuth"),
            ("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", "extendedKeyUsage=clientAuth"),
        ):
            base = str(self.pki / name)
            Path(f"{base}.ext").write_text(
                f"{extension}\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\nbasicConstraints=CA:FALSE\n"
            )
            run(["openssl", "req", *new_key, "-keyout", f"{base}.key", "-out", f"{base}.csr", "-subj", subject])
            signer = ["-CA", f"{self.pki}/ca.crt", "-CAkey", f"{self.pki}/ca.key", "-CAcreateserial", "-days", "365"]
            run(
                [
                    "openssl",
                    "x509",
                    "-req",
                    "-in",
                    f"{base}.csr",
                    "-out",
                    f"{base}.crt",
                    *signer,
                    "-extfile",
                    f"{base}.ext",
                ]
            )
        run(["openssl", "genrsa", "-out", f"{self.pki}/sa.key", "2048"])
        run(["openssl", "rsa", "-in", f"{self.pki}/sa.key", "-pubout", "-out", f"{self.pki}/sa.pub"])
        self.kubeconfig.write_text(self._kubeconfig("admin"))
        self.kubeconfig.chmod(0o600)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "realnode", "-f", str(self.ssh_key)])
        common = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
        self.inventory.write_text(
            f"[gpu_nodes]\n{NODE} ansible_host={ADDRESS} ansible_user=root "
            f"ansible_ssh_private_key_file={self.ssh_key} ansible_python_interpreter=/usr/bin/python3 "
            f"ansible_ssh_common_args='{common}'\n"
        )

    def _kubeconfig(self, user: str) -> str:
        def embedded(name: str) -> str:
            return base64.b64encode((self.pki / name).read_bytes()).decode()

        return (
            "apiVersion: v1\nkind: Config\ncurrent-context: realnode\n"
            "contexts:\n- {name: realnode, context: {cluster: realnode, user: " + user + "}}\n"
            f"clusters:\n- name: realnode\n  cluster:\n    server: {SERVER}\n"
            f"    certificate-authority-data: {embedded('ca.crt')}\n"
            f"users:\n- name: {user}\n  user:\n    client-certificate-data: {embedded(user + '.crt')}\n"
            f"    client-key-data: {embedded(user + '.key')}\n"
        )

    def _furnish_root(self, binaries: Path) -> None:
        root = self.root
        shutil.copy2(binaries / "kubelet", root / "usr/bin/kubelet")
        version = run([str(binaries / "kubelet"), "--version"]).split()[-1]
        minor = int(version.split(".")[1])
        config, flags = KUBELET_CONFIG, [f"--hostname-override={NODE}", f"--node-ip={ADDRESS}"]
        socket = "unix:///run/containerd/containerd.sock"
        if minor < 24:  # dockershim was still the default
            flags.append("--container-runtime=remote")
        if minor < 27:
            flags.append(f"--container-runtime-endpoint={socket}")
        else:
            config += f"containerRuntimeEndpoint: {socket}\n"
        if minor >= 31:
            config += "failCgroupV1: false\n"
        files = {
            "etc/hostname": f"{NODE}\n",
            "etc/hosts": f"127.0.0.1 localhost\n{ADDRESS} {NODE}\n",
            "etc/fstab": FSTAB_HEALTHY,
            "etc/kubernetes/kubelet.conf": self._kubeconfig("kubelet"),
            "etc/kubernetes/pki/ca.crt": (self.pki / "ca.crt").read_text(),
            "etc/cni/net.d/10-bridge.conf": json.dumps(CNI_CONFIG),
            "etc/containerd/config.toml": CONTAINERD_CONFIG,
            "etc/ssh/sshd_config.d/realnode.conf": "UseDNS no\nPermitRootLogin prohibit-password\n",
            "etc/sudoers.d/realnode": "operator ALL=(ALL:ALL) ALL\nops ALL=(ALL:ALL) NOPASSWD: ALL\n",
            "etc/systemd/system/cgroup-rw.service": CGROUP_UNIT,
            "usr/lib/systemd/system/kubelet.service": KUBELET_UNIT,
            "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": KUBELET_DROP_IN,
            "var/lib/kubelet/config.yaml": config,
            "var/lib/kubelet/kubeadm-flags.env": f'KUBELET_KUBEADM_ARGS="{" ".join(flags)}"\n',
        }
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        (root / "etc/sudoers.d/realnode").chmod(0o440)
        (root / "etc/kubernetes/kubelet.conf").chmod(0o600)
        wants = root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(parents=True, exist_ok=True)
        (wants / "kubelet.service").symlink_to("/usr/lib/systemd/system/kubelet.service")
        (wants / "cgroup-rw.service").symlink_to("/etc/systemd/system/cgroup-rw.service")
        for user, group in (("operator", "operator"), ("ops", "users")):  # Debian has a group "operator"
            run(["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", "--gid", group, user])
        run(["chroot", str(root), "chpasswd"], stdin=f"operator:{SUDO_PASSWORD}\n")
        for home, owner in (("root", 0), ("home/operator", None), ("home/ops", None)):
            folder = root / home / ".ssh"
            folder.mkdir(mode=0o700, exist_ok=True)
            key = folder / "authorized_keys"
            shutil.copyfile(self.ssh_key.with_suffix(".pub"), key)
            who = os.stat(root / home)
            for path in (folder, key):
                os.chown(path, owner if owner is not None else who.st_uid, who.st_gid)

    def _start_etcd(self) -> None:
        peers = ["--listen-peer-urls=http://127.0.0.1:12380"]
        clients = [f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}"]
        self._spawn("etcd", ["etcd", f"--data-dir={self.work}/etcd", *clients, *peers, "--unsafe-no-fsync"])

    def _start_api_server(self) -> None:
        flags = {
            "etcd-servers": ETCD,
            "bind-address": GATEWAY,
            "advertise-address": GATEWAY,
            "secure-port": "6443",
            "client-ca-file": self.pki / "ca.crt",
            "tls-cert-file": self.pki / "apiserver.crt",
            "tls-private-key-file": self.pki / "apiserver.key",
            "kubelet-client-certificate": self.pki / "kubelet-client.crt",
            "kubelet-client-key": self.pki / "kubelet-client.key",
            "service-account-key-file": self.pki / "sa.pub",
            "service-account-signing-key-file": self.pki / "sa.key",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
        }
        self._spawn("kube-apiserver", [f"{self.work}/bin/kube-apiserver", *(f"--{k}={v}" for k, v in flags.items())])

    def _wait_for_api(self) -> None:
        self.until(lambda: self.kubectl("get", "--raw=/readyz", timeout=5), "the API server", 60)

    def _start_controllers(self, only_missing: bool = False) -> None:
        """The controller manager and the scheduler, and the stand-ins beside them."""
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"]
        grace = ["--node-monitor-grace-period=12s", "--node-monitor-period=2s"]  # NotReady in seconds
        tokens = [f"--service-account-private-key-file={self.pki}/sa.key", f"--root-ca-file={self.pki}/ca.crt"]
        for name, extra in (("kube-controller-manager", [*grace, *tokens]), ("kube-scheduler", [])):
            if not (only_missing and self._alive(name)):
                self._spawn(name, [f"{self.work}/bin/{name}", *common, *extra])
        if not only_missing:
            self.operator_up()
            self.kubevirt_up()

    def _start_stand_in(self, name: str) -> None:
        if not self._alive(name):
            script = [sys.executable, str(HERE / "stand_ins.py"), name]
            self._spawn(name, [*script, f"--server={SERVER}", f"--pki={self.pki}"])

    def _start_node(self) -> None:
        """Boot the root. Without writable API file systems the kubelet dies on a read-only /proc/sys."""
        self._spawn(
            "node",
            ["systemd-nspawn", "-q", "-D", str(self.root), "-M", NODE, "--register=no", "--keep-unit"]
            + [f"--network-namespace-path=/run/netns/{NETNS}", "--capability=all"]
            + ["--system-call-filter=@swap @keyring @privileged bpf perf_event_open"]
            + ["--bind=/dev/kmsg", "--resolv-conf=off", "--timezone=off", "--boot"],
            {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1"},
        )

    def load_image(self, plugin: Path | None = None) -> None:
        """Make the one stand-in image and give it to containerd under the names that the manifests use."""
        binary = plugin or self._stand_in_binary()
        archive = self.root / "var/tmp/standin.tar"
        archive.write_bytes(image_archive(self._image_layer(binary), [IMAGE, PAUSE_IMAGE]))
        self.inside("ctr -n k8s.io images import /var/tmp/standin.tar && rm /var/tmp/standin.tar", timeout=120)

    def _image_layer(self, plugin: Path) -> bytes:
        """busybox as the shell, bash, the device plugin, which is the pause process too, and vfio-manage.sh."""
        busybox = self.root / "bin/busybox"
        applets = set(run([str(busybox), "--list"]).split()) - {"busybox", "bash"}
        files = {
            "bin/busybox": busybox,
            "bin/bash": self.root / "bin/bash-static",
            "bin/vfio-manage.sh": HERE / "image" / "vfio-manage.sh",
            "device-plugin": plugin,
        }
        links = {**{f"bin/{applet}": "busybox" for applet in applets}, "pause": "device-plugin"}
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            for folder in ("bin", "tmp", "host"):
                member = tarfile.TarInfo(folder)
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
            for name, source in files.items():
                content = source.read_bytes()
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755
                archive.addfile(member, io.BytesIO(content))
            for name, target in sorted(links.items()):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = tarfile.SYMTYPE, target
                archive.addfile(member)
        return layer.getvalue()

    # ------------------------------------------------------------------ put back

    def _save_pristine(self) -> None:
        """Keep what a test may change on the node's disk, as it is after the first boot."""
        for path in (*PRISTINE, *PRISTINE_KUBELET):
            source, target = self.root / path, self.work / "pristine" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            run(["cp", "-a", str(source), str(target)])

    def _restore_pristine(self) -> list[str]:
        """Put back what changed, and give the paths."""
        changed: list[str] = []
        for path in (*PRISTINE, *PRISTINE_KUBELET):
            self._restore(path, changed)
        return changed

    def _restore(self, path: str, changed: list[str]) -> None:
        if path in NOT_RESTORED:
            return
        saved, current = self.work / "pristine" / path, self.root / path
        both = [it for it in (saved, current) if it.is_dir() and not it.is_symlink()]
        if len(both) == 2 and same_owner_and_mode(saved, current):
            for name in sorted({entry.name for folder in both for entry in folder.iterdir()}):
                self._restore(f"{path}/{name}", changed)
        elif not same_file(saved, current):
            changed.append(path)
            if current.is_dir() and not current.is_symlink():
                shutil.rmtree(current)
            else:
                current.unlink(missing_ok=True)
            if saved.exists() or saved.is_symlink():
                run(["cp", "-a", str(saved), str(current)])

    # ------------------------------------------------------------------ processes of this host

    def _host_processes(self) -> Iterable[str]:
        return ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "gpu-operator", "kubevirt")

    def _spawn(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Start a process that outlives this one, with its output in logs/ and its identity in run/."""
        log = self.work / "logs" / f"{name}.log"
        detach = ["/bin/sh", "-c", 'log=$1; shift; setsid "$@" </dev/null >"$log" 2>&1 & echo $!', "sh", str(log)]
        marked = {**os.environ, **(environment or {}), MARK: str(self.work)}
        marked.pop("KUBECONFIG", None)
        done = subprocess.run([*detach, *command], check=True, stdout=subprocess.PIPE, text=True, env=marked)
        pid = int(done.stdout)
        (self.work / "run" / name).write_text(f"{pid} {start_time(pid)}\n")

    def _alive(self, name: str) -> bool:
        return self._pid(name) is not None

    def _pid(self, name: str) -> int | None:
        """Give the id of a recorded process, if it is still that process and no other that took its number."""
        try:
            pid, started = (self.work / "run" / name).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == started else None

    def _kill(self, folder: str, name: str) -> None:
        pid = self._pid(name)
        if pid is not None:
            kill([pid])
        (self.work / folder / name).unlink(missing_ok=True)

    def _leader(self) -> int | None:
        """Give the host's id of the node's first process: number 1 of a PID namespace, in the node's network."""
        for pid in netns_pids():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
            if len(numbers) == 2 and numbers[1] == "1":
                return pid
        return None

    # ------------------------------------------------------------------ swap, which is the machine's

    def _swap_off(self, device: str) -> None:
        """Turn a device off from outside the node. Its path may be told as the node sees it or as the host does."""
        errors = []
        for path in dict.fromkeys((str(self.root / self._as_seen_inside(device).lstrip("/")), device)):
            done = subprocess.run(["swapoff", path], check=False, capture_output=True, text=True)
            if done.returncode == 0:
                return
            errors.append(done.stderr.strip())
        raise RealNodeError(f"swap is still on: {'; '.join(errors)}")

    def _as_seen_inside(self, device: str) -> str:
        return device.removeprefix(str(self.root)) if device.startswith(f"{self.root}/") else device

    # ------------------------------------------------------------------ clearing away

    def _clear_away(self) -> None:
        """Everything of this work folder, in an order that works after any death: swap, node, host, network, files."""
        failures: list[str] = []
        mine = self._owns_machine()
        if mine:
            for device in swap_devices():
                try:
                    self._swap_off(device)
                except RealNodeError as error:
                    failures.append(str(error))
            kill(pid for pid in (self._pid("node"),) if pid)
            kill(netns_pids())
        kill(pid for pid in (self._pid(entry.name) for entry in self._entries("run")) if pid)
        kill(self._marked())
        if mine:
            remove_network()
            remove_empty_cgroups()
            OWNER.unlink(missing_ok=True)
        for mount in reversed(mounts_below(self.work)):
            run(["umount", "-l", mount], check=False)
        for entry in self._entries("."):
            if entry.name == "logs" or (failures and entry == self.root):
                continue
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        if failures:
            raise RealNodeError("; ".join(failures))

    def _entries(self, folder: str) -> list[Path]:
        path = self.work / folder
        return sorted(path.iterdir()) if path.is_dir() else []

    def _marked(self) -> list[int]:
        """Find the processes that were started for this work folder, by the mark in their environment."""
        mark = f"{MARK}={self.work}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found

    def _owns_machine(self) -> bool:
        try:
            return OWNER.read_text().strip() == str(self.work)
        except OSError:
            return False

    def _require_root(self) -> None:
        if os.geteuid() != 0:
            raise RealNodeError("root only: it makes namespaces, mounts and swap")
        if OWNER.exists() and not self._owns_machine() and netns_pids():
            raise RealNodeError(f"another node is up on this machine, in {OWNER.read_text().strip()}")
        if OWNER.exists() and not netns_pids() and not self._owns_machine():
            OWNER.write_text(f"{self.work}\n")  # its owner is dead: what is left of it is ours to clear away

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        with Path(f"{OWNER}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


# ---------------------------------------------------------------------- what the host says


def run(command: list[str], stdin: str | None = None, check: bool = True, timeout: float = 60) -> str:
    """Run a command and give its output; an error names the command and what it said."""
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),  # type: ignore[arg-type]
        )
    except subprocess.TimeoutExpired as error:
        raise RealNodeError(f"{shlex.join(command)[:300]}: no answer in {timeout:g} s") from error
    if check and done.returncode:
        raise RealNodeError(f"{shlex.join(command)[:300]}: status {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


def swap_devices() -> list[str]:
    """Give the swap devices that are on, on this machine."""
    return [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]


def start_time(pid: int) -> str:
    """Give the start time of a process in clock ticks, or "" where it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def kill(pids: Iterable[int]) -> None:
    """End processes at once and see them gone: everything here is thrown away."""
    ending = []
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            ending.append(pid)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 20
    while any(start_time(pid) for pid in ending):
        if time.monotonic() > deadline:
            raise RealNodeError(f"not ended by SIGKILL in 20 s: {[pid for pid in ending if start_time(pid)]}")
        time.sleep(0.05)


def netns_pids() -> list[int]:
    """Give the processes in the node's network namespace: the node, and nothing else of this machine."""
    if not Path("/run/netns", NETNS).exists():
        return []
    return [int(pid) for pid in run(["ip", "netns", "pids", NETNS], check=False).split()]


def remove_network() -> None:
    run(["ip", "netns", "del", NETNS], check=False)
    for link in (VETH, BRIDGE):
        run(["ip", "link", "del", link], check=False)


def remove_empty_cgroups() -> None:
    """Remove the groups that the node's containers left: they are the host's, and outlive the node."""
    for top in Path("/sys/fs/cgroup").glob("*/k8s.io"):
        for folder in sorted(top.rglob("*/"), reverse=True):
            if folder.is_dir():
                try_rmdir(folder)
        try_rmdir(top)


def try_rmdir(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # not empty: not ours, or not dead


def mounts_below(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]


def same_owner_and_mode(one: Path, other: Path) -> bool:
    a, b = one.lstat(), other.lstat()
    return (a.st_mode, a.st_uid, a.st_gid) == (b.st_mode, b.st_uid, b.st_gid)


def same_file(one: Path, other: Path) -> bool:
    if not all(path.exists() or path.is_symlink() for path in (one, other)):
        return not any(path.exists() or path.is_symlink() for path in (one, other))
    if not same_owner_and_mode(one, other):
        return False
    if one.is_symlink():
        return os.readlink(one) == os.readlink(other)
    return one.is_file() and one.read_bytes() == other.read_bytes()


def image_archive(layer: bytes, names: list[str]) -> bytes:
    """Give an image of one layer in the format of ``docker save``, which ``ctr images import`` takes."""
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": os.uname().machine.replace("x86_64", "amd64").replace("aarch64", "arm64"),
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": names, "Layers": [f"{digest}/layer.tar"]}]).encode()
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as archive:
        for name, content in ((config_name, config), (f"{digest}/layer.tar", layer), ("manifest.json", manifest)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return image.getvalue()


# ---------------------------------------------------------------------- what the API says


def ready_condition(node: Object | None) -> Object:
    conditions = (node or {}).get("status", {}).get("conditions", [])
    return next((it for it in conditions if it["type"] == "Ready"), {})


def ready_status(node: Object | None) -> str:
    return str(ready_condition(node).get("status", ""))


def heartbeat(node: Object | None) -> float:
    """Give the Unix time at which the kubelet last spoke for the node, 0 for never."""
    text = ready_condition(node).get("lastHeartbeatTime")
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() if text else 0.0


def app_of(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("app", ""))


def is_over(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")


def is_wanted(pod: Object, apps: frozenset[str]) -> bool:
    return app_of(pod) in apps and "deletionTimestamp" not in pod["metadata"] and not is_over(pod)


def is_running(pod: Object) -> bool:
    ready = any(it["type"] == "Ready" and it["status"] == "True" for it in pod["status"].get("conditions", []))
    return ready and pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


# ---------------------------------------------------------------------- the command line


def faults(node: RealNode) -> dict[str, Callable[[], object]]:
    """Name every fault and its cure for the command line."""
    return {
        "swap-on": node.swap_on,
        "swap-off": node.swap_off,
        "allow-swap": node.allow_swap,
        "kubelet-bad-flag": lambda: node.kubelet_bad_flag(latent=False),
        "kubelet-bad-flag-latent": node.kubelet_bad_flag,
        "kubelet-port-taken": node.kubelet_port_taken,
        "ssh-down": node.ssh_down,
        "ssh-up": node.ssh_up,
        "api-down": node.api_down,
        "api-up": node.api_up,
        "operator-down": node.operator_down,
        "operator-up": node.operator_up,
        "kubevirt-down": node.kubevirt_down,
        "kubevirt-up": node.kubevirt_up,
        "reboot": node.reboot,
    }


def main(arguments: list[str]) -> int:
    began = time.monotonic()

    def say(message: str) -> None:
        print(f"realnode: [{time.monotonic() - began:5.1f} s] {message}", file=sys.stderr, flush=True)

    node = RealNode(say=say)
    if arguments and arguments[0] in ("kubectl", "ssh", "inside"):  # their arguments are not ours to judge
        if arguments[0] == "kubectl":
            os.execv(node.work / "bin" / "kubectl", ["kubectl", f"--kubeconfig={node.kubeconfig}", *arguments[1:]])
        if arguments[0] == "ssh":
            os.execvp("ssh", [*node.ssh_command(), *arguments[1:]])
        print(node.inside(" ".join(arguments[1:])), end="")
        return 0
    parser = argparse.ArgumentParser(
        prog="realnode.sh",
        description=__doc__,
        epilog="faults: " + ", ".join(faults(node)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in ("up", "down", "status", "image", "heal"):
        commands.add_parser(name)
    commands.add_parser("incident").add_argument("mode", nargs="?", choices=RESOURCE, default=PASSTHROUGH)
    reset = commands.add_parser("reset")
    reset.add_argument("mode", choices=RESOURCE)
    reset.add_argument("--no-vms", action="store_true", help="leave the virtual machines halted")
    commands.add_parser("fault").add_argument("name", choices=faults(node))
    options = parser.parse_args(arguments)
    actions: dict[str, Callable[[], object]] = {
        "up": node.up,
        "down": node.down,
        "status": lambda: print(node.status(), end=""),
        "image": node.load_image,
        "heal": node.reset,
        "incident": lambda: node.incident(options.mode),
        "reset": lambda: node.reset(options.mode, vms=not options.no_vms),
        "fault": lambda: faults(node)[options.name](),
    }
    actions[options.command]()
    if options.command != "status":
        say(f"{options.command}: done")
    if options.command == "up":
        say(f"KUBECONFIG={node.kubeconfig}  inventory {node.inventory}  key {node.ssh_key}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (RealNodeError, subprocess.CalledProcessError) as error:
        print(f"realnode: {error}", file=sys.stderr)
        sys.exit(1)
