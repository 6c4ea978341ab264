"""The node and its cluster: up, down, the incident, and back to health between tests."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from . import furnish
from .machine import (
    NETNS,
    OWNER,
    RESERVATION,
    Processes,
    RealNodeError,
    cgroups_of_node,
    find_leader,
    kill,
    make_network,
    mounts_below,
    netns_pids,
    remove_cgroups,
    remove_network,
    run,
    swap_devices,
)
from .names import (
    ADDRESS,
    CALLS,
    CONTAINER,
    DEPLOY,
    DEPLOYED_BY,
    ETCD,
    FEATURE,
    FSTAB_FIXED,
    FSTAB_INCIDENT,
    GATEWAY,
    HERE,
    IMAGE,
    NODE,
    OPERANDS,
    PASSTHROUGH,
    PAUSE_IMAGE,
    RESOURCE,
    SERVER,
    USERS,
    VMS,
    WORKLOAD_CONFIG,
    Mode,
)
from .readings import Object, app_of, heartbeat, is_going, is_over, is_running, ready_status, taints

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "gpu-operator", "kubevirt")
BAD_FLAG_DROP_IN = "etc/systemd/system/kubelet.service.d/90-bad-flag.conf"
JOBS = "gpufix-test-*.service"
"""Units that the faults start on the node, and that a reset ends."""
FRESH = 6.0
"""Seconds after which the kubelet's last word is stale: it reports every 2 s."""

T = TypeVar("T")


class RealNode:
    """The node and its cluster. All state lies in the work folder, so any process can take it up.

    ``say`` is told of progress. A method that waits raises RealNodeError with what was awaited when its time is up.
    """

    fstab_incident = FSTAB_INCIDENT
    fstab_fixed = FSTAB_FIXED

    def __init__(self, work: Path | None = None, say: Callable[[str], None] = lambda message: None) -> None:
        self.work = work or Path(os.environ.get("GPUFIX_REALNODE") or "/tmp/gpufix-realnode")
        self.cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufix" / "realnode"
        self.root = self.work / "root"
        self.kubeconfig = self.work / "admin.conf"
        self.inventory = self.work / "inventory.ini"
        self.ssh_key = self.work / "id"
        self.say = say
        self._pki = self.work / "pki"
        self._processes = Processes(self.work)
        self._pristine = furnish.Pristine(self.root, self.work / "pristine")

    # ------------------------------------------------------------------ life

    def up(self) -> None:
        """Bring the node up, healthy in container mode, or leave one that is up as it is."""
        self.reserve()
        if self.is_up():
            self.say("already up")
            return
        self._clear_away()
        if swap_devices():
            devices = ", ".join(swap_devices())
            raise RealNodeError(f"this machine has swap on ({devices}), and the node would share it: swapoff first")
        binaries, plugin, archive = self._ingredients()
        for folder in ("run", "logs", "etcd", "root"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)
        OWNER.write_text(f"{self.work}\n")
        (self.work / "bin").symlink_to(binaries)
        make_network()
        self._make_credentials()
        self._start_etcd()
        self._start_api_server()
        self.say("unpacking the node")
        run(["tar", "-xf", str(archive), "-C", str(self.root), "--numeric-owner"])
        furnish.furnish(self.root, self._pki, self.ssh_key.with_suffix(".pub"), binaries / "kubelet")
        self._start_node()
        self._wait_for_api()
        self._start_controllers()
        self.say("booting the node")
        self._wait_for_boot()
        self._record_cgroups()
        self.load_image(plugin)
        self.kubectl("apply", "-f", str(HERE / "manifests" / "10-crds.yaml"))
        self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        self.kubectl("apply", "-f", str(HERE / "manifests"))
        self.until(lambda: self.node() is not None, "the node to register", 60)
        self._pristine.keep()
        for user in USERS:
            self._wait_for_ssh(user)
        self.reset(CONTAINER)

    def prepare(self) -> None:
        """Get what ``up`` needs besides Kubernetes: packages of this machine, and what is kept in the cache."""
        furnish.install_host_packages()
        furnish.make_stand_in_binary(self.cache)
        furnish.make_root_archive(self.cache)

    def down(self) -> None:
        """Leave nothing behind but the caches and the logs, whatever happened before."""
        self.reserve()
        self._clear_away()
        RESERVATION.give_back()

    def reserve(self, wait: float = 3600) -> None:
        """Keep this machine's node for this process, until ``down`` or its end; waits for another process's turn.

        ``up`` does it by itself. Refuses where a node of another work folder is up, with nobody at it.
        """
        if os.geteuid() != 0:
            raise RealNodeError("root only: it makes namespaces, mounts and swap")
        RESERVATION.take(wait, self.say)
        if OWNER.exists() and not self._owns_machine():
            if netns_pids():
                raise RealNodeError(f"another node is up on this machine, in {OWNER.read_text().strip()}")
            OWNER.write_text(f"{self.work}\n")  # its processes are dead: what is left of it is ours to clear away

    def is_up(self) -> bool:
        """Tell whether the node runs and the cluster's memory does; kubelet, sshd and API may be down."""
        return self._owns_machine() and find_leader() is not None and self._processes.is_alive("etcd")

    def version(self) -> str:
        """Give the version of the binaries, as "v1.34.4"."""
        return run([str(self.work / "bin" / "kubelet"), "--version"]).split()[-1]

    def reboot(self) -> None:
        """Power the node off and on: systemd, containers and kubelet start from nothing.

        The swap that stays on is the one that a whole machine would turn on at boot (see ``swap_at_boot``): a
        container's own systemd leaves swap alone in both directions, and swap is a state of this machine's kernel.
        """
        returning = self.swap_at_boot()
        for device in swap_devices():
            if self._as_seen_inside(device) not in returning:
                self._swap_off(device)
        self._processes.end("node")
        kill(netns_pids())
        self._remove_cgroups()
        self._start_node()
        self._wait_for_boot()
        self._record_cgroups()

    def status(self) -> str:
        """Describe what runs and what the node says, for a person."""
        if not self._owns_machine():
            return "down\n"
        names = (*CONTROL_PLANE, "node")
        lines = [f"{name}: {'up' if self._processes.is_alive(name) else 'down'}" for name in names]
        lines.append(f"swap: {', '.join(swap_devices()) or 'off'}")
        if find_leader():
            lines.append(f"kubelet: {self.version()} {self.unit_state()}")
            lines.append("fstab:\n" + self.read("/etc/fstab"))
            lines.append(f"{CALLS}:\n" + "\n".join(self.calls()[-10:]))
        if self._processes.is_alive("kube-apiserver"):
            lines.append(self.kubectl("get", "node", "-o", "wide", check=False))
            lines.append(self.kubectl("get", "vm,pod", "-A", "-o", "wide", check=False))
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
        """Give the ssh command line that reaches the node, without the remote command."""
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes")
        flags = [flag for option in (*options, "ConnectTimeout=5", "IdentitiesOnly=yes") for flag in ("-o", option)]
        return ["ssh", *flags, "-i", str(self.ssh_key), f"{user}@{ADDRESS}"]

    def inside(self, command: str, check: bool = True, timeout: float = 60) -> str:
        """Run a shell command on the node as root without sshd: through its namespaces, from the host."""
        leader = find_leader()
        if leader is None:
            raise RealNodeError("the node is not running: realnode.sh up")
        enter = ["nsenter", "-t", str(leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w"]
        clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"]
        return run([*enter, *clean, "/bin/sh", "-c", command], None, check, timeout)

    def read(self, path: str) -> str:
        """Read a file of the node's disk (not of its /proc, /run or /tmp), whether it runs or not."""
        return (self.root / path.lstrip("/")).read_text()

    def write(self, path: str, text: str) -> None:
        """Write a file of the node's disk; a reset puts back what lies in /etc, and the kubelet's configuration."""
        (self.root / path.lstrip("/")).write_text(text)

    # ------------------------------------------------------------------ reads

    def node(self) -> Object | None:
        text = self.kubectl("get", "node", NODE, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = (self.node() or {"metadata": {}})["metadata"].get("labels", {})
        return labels

    def is_ready(self) -> bool:
        """Ready=True and no taint left: the two come seconds apart."""
        node = self.node()
        return ready_status(node) == "True" and not taints(node)

    def is_unreachable(self) -> bool:
        """Tell whether the node controller has given the node up: Ready=Unknown, tainted unreachable:NoSchedule.

        The NoExecute taint comes and goes by the moment here: where every node of a cluster is dead, and there is
        one, the controller takes it off again ("master disruption mode").
        """
        node = self.node()
        return ready_status(node) == "Unknown" and ("node.kubernetes.io/unreachable", "NoSchedule") in taints(node)

    def is_refused_for_swap(self) -> bool:
        """Tell whether the kubelet waits for its next start after a last one that refused swap."""
        invocation = self.inside("systemctl show -p InvocationID --value kubelet").strip()
        journal = self.inside(f"journalctl _SYSTEMD_INVOCATION_ID={invocation} -o cat --no-pager")
        return self.unit_state() == "activating/auto-restart" and "running with swap on is not supported" in journal

    def stays_refused(self) -> None:
        """See that the crash loop goes on. One look may fall into the moment of a start, so it is looked again."""
        self.until(self.is_refused_for_swap, "the kubelet to be refused for swap, as before", 15)

    def is_healthy(self, mode: Mode) -> bool:
        """The one definition of healthy: labels, Ready, no taint, operands, allocatable, all read now."""
        node = self.node()
        if ready_status(node) != "True" or node is None or taints(node) or node["spec"].get("unschedulable"):
            return False
        if not self._labels_follow(mode) or self.unit_state() != "active/running":
            return False
        pods = self._operand_pods()
        if {app_of(pod) for pod in pods} != OPERANDS[mode] or not all(is_running(pod) for pod in pods):
            return False
        fresh = time.time() - heartbeat(node) < FRESH
        return fresh and all(self.allocatable(RESOURCE[it]) == int(it == mode) for it in RESOURCE)

    def allocatable(self, resource: str) -> int:
        """Give the node's allocatable of a resource as the API has it; it is frozen while the kubelet is dead."""
        return int(self.all_allocatable().get(resource, "0"))

    def all_allocatable(self) -> dict[str, str]:
        """Give the allocatable of every nvidia.com resource; the kubelet keeps one whose plugin went, with 0."""
        resources: dict[str, str] = (self.node() or {"status": {}})["status"].get("allocatable", {})
        return {name: count for name, count in resources.items() if "nvidia.com/" in name}

    def unit_state(self, unit: str = "kubelet") -> str:
        """``ActiveState/SubState`` of a unit on the node, as "activating/auto-restart"."""
        answer = self.inside(f"systemctl show -p ActiveState -p SubState --value {shlex.quote(unit)}")
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

    def swap_at_boot(self) -> list[str]:
        """Give the swap devices that a boot of a whole machine would turn on from what lies on this node's disk.

        systemd makes none inside a container, so its fstab generator is run here on the node's root without the
        container's marks, and the enabled units that lie on the disk are added. A masked unit does not count.
        """
        generate = (
            "mount -t proc proc /proc && mkdir -p /tmp/n /tmp/e /tmp/l && "
            "/usr/lib/systemd/system-generators/systemd-fstab-generator /tmp/n /tmp/e /tmp/l && "
            "find /tmp/n -name '*.swap' -type f -exec grep -H ^What= {} +; true"
        )
        isolate = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "unshare", "-m", "-p", "-f", "/bin/sh", "-c"]
        enter = f"mount -t tmpfs none {self.root}/tmp && exec chroot {self.root} /bin/sh -c {shlex.quote(generate)}"
        lines = run([*isolate, enter]).splitlines()
        units = {path.rpartition("/")[2]: what for path, _, what in (line.partition(":What=") for line in lines)}
        configured = self.root / "etc/systemd/system"
        for link in configured.glob("swap.target.*/*.swap"):
            for folder in (configured, self.root / "usr/lib/systemd/system"):
                if (folder / link.name).is_file():
                    text = (folder / link.name).read_text()
                    what = (line.partition("=")[2] for line in text.splitlines() if line.startswith("What="))
                    units[link.name] = next(what, "")
                    break
        masked = {unit for unit in units if os.path.lexists(configured / unit) and not (configured / unit).is_file()}
        return [what for unit, what in units.items() if unit not in masked]

    def active_swaps(self) -> list[str]:
        """Give the swap devices as the node's own /proc/swaps lists them."""
        return [line.split()[0] for line in self.inside("cat /proc/swaps").splitlines()[1:]]

    def relabel(self, mode: Mode) -> None:
        """Set the workload label by hand, and nothing else."""
        self.kubectl("label", "node", NODE, "--overwrite", f"{WORKLOAD_CONFIG}={mode}")

    def until(self, holds: Callable[[], T], what: str, timeout: float, interval: float = 0.2) -> T:
        """Poll until ``holds()`` is true and give what it gave; seconds. An error of a read counts as not yet."""
        deadline = time.monotonic() + timeout
        while True:
            last = ""
            try:
                value = holds()
                if value:
                    return value
            except (RealNodeError, OSError, ValueError, KeyError) as error:
                last = f" (last: {error})"
            if time.monotonic() > deadline:
                raise RealNodeError(f"waited {timeout:g} s for {what}{last}; logs in {self.work}/logs")
            time.sleep(interval)

    # ------------------------------------------------------------------ incident and reset

    def incident(self, mode: Mode = PASSTHROUGH, card: str = "nvidia") -> None:
        """The incident: swap on and in fstab, kubelet in a crash loop, node NotReady, both machines unschedulable.

        ``card`` is the driver it would be on; there is none here.
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
            self._wait_for_vm(vm, "ErrorUnschedulable")

    def reset(self, mode: Mode = CONTAINER, vms: bool = True) -> None:
        """Make the node healthy again in a mode, whatever a test left behind, without a reboot.

        With ``vms`` the two machines are started: in container mode both wait for a resource that this mode does
        not offer, in vm-passthrough gpu-fedora runs and rhel9-gpu-vm waits for the one card. The log of calls is
        empty afterwards. The journal is left as it is: a node has a past.
        """
        if not self.is_up():
            raise RealNodeError("the node is not up: realnode.sh up")
        self.api_up()
        self.operator_up()
        self.kubevirt_up()
        self.inside(f"systemctl stop '{JOBS}'")
        self._stop_vms()
        changed = self._pristine.put_back()
        if changed:
            self.say(f"put back: {', '.join(changed)}")
        if changed or swap_devices() or not self.is_healthy(mode):
            self._revive(mode)
        self.until(lambda: self.is_healthy(mode), f"the node to be healthy in {mode} mode", 90)
        self.ssh_up()
        self._drop_leases()
        self.kubectl("delete", "event", "--all", "-n", "default", "--wait=false")
        if vms:
            self.start_vms(settled=mode)
        self.write(CALLS, "")

    def _revive(self, mode: Mode) -> None:
        """Stop the kubelet, take away what it must not find, start it, and see it speak for itself."""
        self.inside("systemctl stop kubelet")
        for device in swap_devices():
            self._swap_off(device)
        runtime = "/run/systemd/system.control /run/systemd/system/*.swap /run/systemd/system/kubelet.service*"
        self.inside(
            f"rm -rf /swapfile {runtime}; systemctl daemon-reload; systemctl reset-failed; systemctl start containerd"
        )
        if self.node() is not None:
            self._label(mode)
            self._remove_stale_pods(mode)
        started = int(time.time())
        self.inside("systemctl start kubelet")
        self.until(lambda: heartbeat(self.node()) > started, "the kubelet to report again", 60)
        self._label(mode)  # the kubelet may have registered the node anew
        self.kubectl("uncordon", NODE)

    def _label(self, mode: Mode) -> None:
        labels = self.labels()
        stale = [name for name in labels if name.startswith(DEPLOY) and labels[name] != "true"]
        wanted = {WORKLOAD_CONFIG: mode, FEATURE: "true"}
        changes = [f"{name}={value}" for name, value in wanted.items() if labels.get(name) != value]
        changes += [f"{name}-" for name in stale]
        if changes:
            self.kubectl("label", "node", NODE, "--overwrite", *changes)
        self.until(lambda: self._labels_follow(mode), "the operator's stand-in to set the deploy labels", 20)

    def _labels_follow(self, mode: Mode) -> bool:
        labels = self.labels()
        deployed = {it for it, label in DEPLOYED_BY.items() if labels.get(label) == "true"}
        return labels.get(WORKLOAD_CONFIG) == mode and deployed == {mode}

    def _operand_pods(self) -> list[Object]:
        pods: list[Object] = self.get("pod", "-n", "gpu-operator", "--field-selector", f"spec.nodeName={NODE}")["items"]
        return pods

    def _remove_stale_pods(self, mode: Mode) -> None:
        """Kill on the host, then forget in the API, every operand that the mode does not want. The kubelet is down."""

        def stale() -> list[Object]:
            return [pod for pod in self._operand_pods() if app_of(pod) not in OPERANDS[mode] or is_going(pod)]

        self.until(lambda: all(is_going(pod) or is_over(pod) for pod in stale()), "the DaemonSets to give up pods", 20)
        for pod in stale():
            self._forget(pod)

    def _forget(self, pod: Object) -> None:
        metadata = pod["metadata"]
        own = shlex.quote(f'labels."io.kubernetes.pod.uid"=={metadata["uid"]}')
        kill_each = f"for c in $(ctr -n k8s.io containers ls -q {own}); do ctr -n k8s.io tasks kill -s SIGKILL $c; done"
        self.inside(kill_each, check=False)
        name = ("-n", metadata["namespace"], metadata["name"], "--ignore-not-found")
        self.kubectl("delete", "pod", *name, "--force", "--grace-period=0", "--wait=false")

    def _drop_leases(self) -> None:
        """Take away the locks of operators that a test left dead."""
        for lease in self.get("lease", "-A")["items"]:
            metadata = lease["metadata"]
            if "gpufix" in metadata["name"]:
                self.kubectl("delete", "lease", "-n", metadata["namespace"], metadata["name"], "--ignore-not-found")

    # ------------------------------------------------------------------ virtual machines

    def start_vms(self, settled: Mode | None = None) -> None:
        """Start both machines; with ``settled``, gpu-fedora first, and wait for where each must come to rest."""
        for vm in VMS:
            self._run_strategy(vm, "Always")
            if settled:
                runs = settled == PASSTHROUGH and vm == VMS[0]
                self._wait_for_vm(vm, "Running" if runs else "ErrorUnschedulable")

    def _stop_vms(self) -> None:
        for vm in VMS:
            self._run_strategy(vm, "Halted")

        def gone() -> bool:
            pods = self.launchers()
            for pod in pods:
                if is_going(pod):
                    self._forget(pod)
            return not pods and not self.get("vmi", "-n", "default")["items"]

        self.until(gone, "the virtual machines to stop", 30)

    def _run_strategy(self, vm: str, strategy: str) -> None:
        patch = json.dumps({"spec": {"runStrategy": strategy}})
        self.kubectl("patch", "vm", vm, "-n", "default", "--type=merge", "-p", patch)

    def _wait_for_vm(self, vm: str, status: str) -> None:
        self.until(lambda: self.vm_status(vm) == status, f"{vm} to be {status}", 40)

    # ------------------------------------------------------------------ faults

    def swap_on(self, path: str = "/swapfile", megabytes: int = 256) -> None:
        """Turn a swap file on, on the node and so on this machine. fstab is left alone."""
        file = shlex.quote(path)
        make = f"dd if=/dev/zero of={file} bs=1M count={megabytes} status=none && mkswap {file} >/dev/null"
        self.inside(f"test -f {file} || (umask 077; {make}); swapon {file}")

    def swap_off(self) -> None:
        for device in swap_devices():
            self._swap_off(device)

    def allow_swap(self) -> None:
        """Let the kubelet run with swap on (failSwapOn: false) and restart it."""
        config = self.read("/var/lib/kubelet/config.yaml").replace("failSwapOn: true", "failSwapOn: false")
        self.write("/var/lib/kubelet/config.yaml", config)
        started = int(time.time())
        self.inside("systemctl restart kubelet")
        self.until(lambda: heartbeat(self.node()) > started and self.is_ready(), "the kubelet to run with swap on", 60)

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
        """Hold the kubelet's port on the node while the kubelet is dead: it gets past swap then, and fails."""
        code = "import socket, time; s = socket.create_server(('', 10250)); time.sleep(1e6)"
        self.inside(f"systemd-run -q --collect --unit gpufix-test-port python3 -c {shlex.quote(code)}")
        self.until(lambda: ":10250" in self.inside("ss -Hltn 'sport = :10250'"), "the port to be held", 10)

    def gpu_job(self) -> None:
        """Start a job on the host that holds /dev/nvidia0 open, as a CUDA job would. The device is an empty file."""
        code = "import time; f = open('/dev/nvidia0', 'w'); time.sleep(1e6)"
        self.inside(f"systemd-run -q --collect --unit gpufix-test-job python3 -c {shlex.quote(code)}")
        self.until(lambda: self.inside("ls -l /proc/[0-9]*/fd 2>/dev/null | grep nvidia0; true"), "the job to run", 10)

    def ssh_down(self) -> None:
        """Stop sshd and end every session: connections are refused."""
        self.inside("systemctl kill -s KILL --kill-who=all ssh.service", check=False)
        self.inside("systemctl stop ssh.service")

    def ssh_up(self) -> None:
        self.inside("systemctl start ssh.service")
        self._wait_for_ssh("root")

    def api_down(self) -> None:
        """Kill the API server: connections are refused."""
        self._processes.end("kube-apiserver")

    def api_up(self) -> None:
        """Start the API server where it does not run, and with it the controllers anew.

        A controller that lived through the outage waits up to a minute before it lists again (the back-off of
        client-go's reflector), and nothing that a test waits for happens until then.
        """
        if not self._processes.is_alive("kube-apiserver"):
            self._processes.end("kube-controller-manager")
            self._processes.end("kube-scheduler")
            self._start_api_server()
        self._wait_for_api()
        self._start_controllers()

    def operator_down(self) -> None:
        """No GPU Operator runs: labels are left as they are."""
        self._processes.end("gpu-operator")

    def operator_up(self) -> None:
        self._start_stand_in("gpu-operator")

    def kubevirt_down(self) -> None:
        """No KubeVirt runs: machines, instances and launchers are left as they are, the heartbeat grows old."""
        self._processes.end("kubevirt")

    def kubevirt_up(self) -> None:
        self._start_stand_in("kubevirt")

    # ------------------------------------------------------------------ the parts

    def _ingredients(self) -> tuple[Path, Path, Path]:
        """Find or make what is cached: the Kubernetes binaries, the device plugin, the node's root."""
        furnish.install_host_packages()
        script = str(HERE / "build_kubernetes.sh")
        self.say("looking for the Kubernetes binaries, else building them (8 min)")
        done = subprocess.run([script], check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise RealNodeError(f"{script} failed with status {done.returncode}")
        self.say("looking for the device plugin and the node's root, else making them (1 min)")
        plugin = furnish.make_stand_in_binary(self.cache)
        return Path(done.stdout.split()[-1]), plugin, furnish.make_root_archive(self.cache)

    def _make_credentials(self) -> None:
        furnish.make_pki(self._pki)
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(furnish.kubeconfig(self._pki, "admin"))
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "realnode", "-f", str(self.ssh_key)])
        self.inventory.write_text(furnish.inventory(self.ssh_key))

    def _start_etcd(self) -> None:
        peers = "--listen-peer-urls=http://127.0.0.1:12380"
        clients = (f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}")
        command = ["etcd", f"--data-dir={self.work}/etcd", *clients, peers, "--unsafe-no-fsync"]
        self._processes.start("etcd", command)

    def _start_api_server(self) -> None:
        flags = {
            "advertise-address": GATEWAY,
            "allow-privileged": "true",
            "authorization-mode": "Node,RBAC",
            "bind-address": GATEWAY,
            "client-ca-file": self._pki / "ca.crt",
            "enable-admission-plugins": "NodeRestriction",
            "etcd-servers": ETCD,
            "kubelet-client-certificate": self._pki / "kubelet-client.crt",
            "kubelet-client-key": self._pki / "kubelet-client.key",
            "secure-port": "6443",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self._pki / "sa.pub",
            "service-account-signing-key-file": self._pki / "sa.key",
            "service-cluster-ip-range": "10.96.0.0/16",
            "tls-cert-file": self._pki / "apiserver.crt",
            "tls-private-key-file": self._pki / "apiserver.key",
        }
        command = [f"{self.work}/bin/kube-apiserver", *(f"--{name}={value}" for name, value in flags.items())]
        self._processes.start("kube-apiserver", command)

    def _start_controllers(self) -> None:
        """Start what is not running of the controller manager, the scheduler and the two stand-ins."""
        common = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false")
        grace = ("--node-monitor-grace-period=12s", "--node-monitor-period=2s")  # NotReady in seconds
        tokens = (f"--service-account-private-key-file={self._pki}/sa.key", f"--root-ca-file={self._pki}/ca.crt")
        for name, extra in (("kube-controller-manager", (*grace, *tokens)), ("kube-scheduler", ())):
            if not self._processes.is_alive(name):
                self._processes.start(name, [f"{self.work}/bin/{name}", *common, *extra])
        self.operator_up()
        self.kubevirt_up()

    def _start_stand_in(self, name: str) -> None:
        if not self._processes.is_alive(name):
            script = [sys.executable, str(HERE / "stand_ins.py"), name]
            self._processes.start(name, [*script, f"--server={SERVER}", f"--pki={self._pki}"])

    def _start_node(self) -> None:
        """Boot the root. Without writable API file systems the kubelet dies on a read-only /proc/sys."""
        identity = ("-D", str(self.root), "-M", NODE, "--register=no", "--keep-unit", "--boot")
        files = ("--bind=/dev/kmsg", "--resolv-conf=off", "--timezone=off")
        rights = ("--capability=all", "--system-call-filter=@swap @keyring @privileged bpf perf_event_open")
        network = f"--network-namespace-path=/run/netns/{NETNS}"
        command = ["systemd-nspawn", "-q", *identity, *files, *rights, network]
        self._processes.start("node", command, {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1"})

    def _record_cgroups(self) -> None:
        leader = find_leader()
        folders = cgroups_of_node(leader) if leader else []
        (self.work / "cgroups").write_text("".join(f"{folder}\n" for folder in folders))

    def load_image(self, plugin: Path | None = None) -> None:
        """Make the one stand-in image and give it to containerd under the names that the manifests use."""
        binary = plugin or furnish.make_stand_in_binary(self.cache)
        archive = self.root / "var/tmp/standin.tar"
        archive.write_bytes(furnish.make_image(self.root, binary, [IMAGE, PAUSE_IMAGE]))
        self.inside("ctr -n k8s.io images import /var/tmp/standin.tar && rm /var/tmp/standin.tar", timeout=120)

    def _wait_for_api(self) -> None:
        def ready() -> bool:
            if not self._processes.is_alive("kube-apiserver"):
                self._start_api_server()  # one that found its port still taken, or died with etcd
            return bool(self.kubectl("get", "--raw=/readyz", timeout=5))

        self.until(ready, "the API server", 60)

    def _wait_for_boot(self) -> None:
        def booted() -> bool:
            state = self.inside("systemctl is-system-running", check=False).strip()
            return state in ("running", "degraded") and bool(self.inside("ctr version"))

        self.until(booted, "the node's systemd to finish booting, and containerd to answer", 60)

    def _wait_for_ssh(self, user: str) -> None:
        self.until(lambda: self.ssh("echo yes", user=user), f"sshd to let {user} in", 30)

    # ------------------------------------------------------------------ clearing away

    def _clear_away(self) -> None:
        """Everything of this work folder, in an order that works after any death: swap, node, host, network, files."""
        swap_is_on = ""
        if self._owns_machine():
            try:
                self.swap_off()
            except RealNodeError as error:
                swap_is_on = str(error)
            self._processes.end("node")
            kill(netns_pids())
        self._processes.end_all()
        if self._owns_machine():
            remove_network()
            self._remove_cgroups()
            OWNER.unlink(missing_ok=True)
        for mount in reversed(mounts_below(self.work)):
            run(["umount", "-l", mount], check=False)
        for entry in self.work.iterdir() if self.work.is_dir() else ():
            if entry.name != "logs" and not (swap_is_on and entry == self.root):
                furnish.remove(entry)
        if swap_is_on:
            OWNER.write_text(f"{self.work}\n")  # so that the next "down" tries again
            raise RealNodeError(swap_is_on)

    def _remove_cgroups(self) -> None:
        record = self.work / "cgroups"
        remove_cgroups(map(Path, record.read_text().splitlines() if record.exists() else ()))

    def _swap_off(self, device: str) -> None:
        """Turn a device of the node off, from outside. A file of this host is not the node's, and is left alone."""
        path = device if device.startswith("/dev/") else str(self.root / self._as_seen_inside(device).lstrip("/"))
        if Path(path).exists():
            done = subprocess.run(["swapoff", path], check=False, capture_output=True, text=True)
            if done.returncode and device in swap_devices():
                raise RealNodeError(f"swap is still on: {done.stderr.strip()}")

    def _as_seen_inside(self, device: str) -> str:
        return device.removeprefix(str(self.root)) if device.startswith(f"{self.root}/") else device

    def _owns_machine(self) -> bool:
        try:
            return OWNER.read_text().strip() == str(self.work)
        except OSError:
            return False
