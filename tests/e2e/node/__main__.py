"""A real one-node cluster for the end-to-end tests, by hand.

    realnode.sh prepare                get packages and the node's root, as up does; beside build_kubernetes.sh
    realnode.sh up                     build what is missing, bring the node up, healthy in container mode
    realnode.sh incident [MODE]        swap on and in fstab, kubelet crash-looping, node NotReady, both virtual
                                       machines unschedulable; MODE: vm-passthrough (default) or container
    realnode.sh reset MODE [--no-vms]  a healthy node again, in that mode; seconds, no reboot
    realnode.sh heal                   reset container
    realnode.sh fault NAME             one more fault, or its cure; the names are listed below
    realnode.sh status                 what runs, what the node says
    realnode.sh kubectl ARGS...        kubectl as the cluster's administrator
    realnode.sh ssh COMMAND...         as root over SSH
    realnode.sh inside COMMAND...      as root without sshd
    realnode.sh image                  build and load the stand-in image again
    realnode.sh down                   everything gone, whatever happened before

Environment: GPUFIX_REALNODE (work folder, /tmp/gpufix-realnode); WAY, GPUFIX_KUBERNETES and KUBEBUILDER_ASSETS
(see build_kubernetes.sh); XDG_CACHE_HOME; PYTHON.

The work folder has admin.conf (kubeconfig), inventory.ini (the host omen2, as root), id (an SSH key that root,
operator and ops accept; operator may sudo with the password "practice", ops without one) and logs/.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

from .machine import RealNodeError
from .names import PASSTHROUGH, RESOURCE
from .realnode import RealNode


def faults(node: RealNode) -> dict[str, Callable[[], object]]:
    """Name every fault and its cure."""
    return {
        "swap-on": node.swap_on,
        "swap-off": node.swap_off,
        "allow-swap": node.allow_swap,
        "kubelet-bad-flag": lambda: node.kubelet_bad_flag(latent=False),
        "kubelet-bad-flag-latent": node.kubelet_bad_flag,
        "kubelet-port-taken": node.kubelet_port_taken,
        "gpu-job": node.gpu_job,
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
    verb, *rest = arguments or ["--help"]
    if verb == "kubectl":  # what follows is not ours to judge
        os.execv(node.work / "bin" / "kubectl", ["kubectl", f"--kubeconfig={node.kubeconfig}", *rest])
    if verb == "ssh":
        os.execvp("ssh", [*node.ssh_command(), *rest])
    if verb == "inside":
        print(node.inside(" ".join(rest)), end="")
        return 0
    options = parse([verb, *rest], list(faults(node)))
    actions: dict[str, Callable[[], object]] = {
        "prepare": node.prepare,
        "up": node.up,
        "down": node.down,
        "status": lambda: print(node.status(), end=""),
        "image": node.load_image,
        "heal": node.reset,
        "incident": lambda: node.incident(options.mode),
        "reset": lambda: node.reset(options.mode, vms=not options.no_vms),
        "fault": lambda: faults(node)[options.name](),  # noqa: PLW0108  (the name is there for this verb only)
    }
    if options.verb not in ("prepare", "status"):
        node.reserve(wait=0 if options.verb != "down" else 60)
    actions[options.verb]()
    if options.verb != "status":
        say(f"{options.verb}: done")
    if options.verb == "up":
        say(f"kubeconfig {node.kubeconfig}, inventory {node.inventory}, SSH key {node.ssh_key}")
    return 0


def parse(arguments: list[str], fault_names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="realnode.sh",
        description=__doc__,
        epilog="faults: " + ", ".join(fault_names),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for name in ("prepare", "up", "down", "status", "image", "heal"):
        verbs.add_parser(name)
    verbs.add_parser("incident").add_argument("mode", nargs="?", choices=RESOURCE, default=PASSTHROUGH)
    reset = verbs.add_parser("reset")
    reset.add_argument("mode", choices=RESOURCE)
    reset.add_argument("--no-vms", action="store_true", help="leave the virtual machines halted")
    verbs.add_parser("fault").add_argument("name", choices=fault_names)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (RealNodeError, subprocess.CalledProcessError) as error:
        print(f"realnode: {error}", file=sys.stderr)
        sys.exit(1)
