#!/usr/bin/python
# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""Stops the containers of vfio-manager through the runtime."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpufix_stop_container
short_description: Stop the containers of a DaemonSet's pods through the container runtime
description:
  - Stops the running containers of pods whose name starts with O(name_prefix), through C(crictl), else C(ctr).
  - Stopped this way, a container's preStop hook does not run. That of nvidia-vfio-manager takes the GPU off any driver.
  - Sandboxes and all other containers are left alone.
  - When the runtime cannot be asked the module fails. Not known is not the same as not there.
version_added: "0.1.0"
options:
  name_prefix:
    description:
      - How the pods' names begin.
    type: str
    default: nvidia-vfio-manager-
  unit:
    description:
      - The systemd unit of the kubelet, which tells the runtime's socket. Found when it is not given.
    type: str
    default: ""
  host_root:
    description:
      - The folder that stands for C(/). For practice hosts and tests.
    type: path
    default: /
  grace:
    description:
      - Seconds from SIGTERM to SIGKILL.
    type: int
    default: 10
author:
  - The gpufix authors
attributes:
  check_mode:
    description: Lists the containers that would be stopped.
    support: full
  diff_mode:
    description: One line for each container, with its state before and after.
    support: full
"""

EXAMPLES = r"""
- name: Stop vfio-manager before the kubelet comes back
  gpufix_stop_container:
"""

RETURN = r"""
containers:
  description: The containers that ran, and were stopped unless in check mode.
  returned: always
  type: list
  elements: dict
  sample: [{pod: nvidia-vfio-manager-x1, container: nvidia-vfio-manager, id: 4668b40bfe68, state: RUNNING}]
stopped:
  description: Ids of the containers that are stopped now.
  returned: always
  type: list
  elements: str
  sample: [4668b40bfe68]
msg:
  description: Why there was nothing to do.
  returned: when there was nothing to do
  type: str
  sample: no container of nvidia-vfio-manager- runs on this host
"""

import time
from typing import Any, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufix_busy import Busy, holding
from ansible.module_utils.gpufix_containers import Container, crictl, ctr, read_containers
from ansible.module_utils.gpufix_host import Host
from ansible.module_utils.gpufix_kubelet import read_kubelet

PATIENCE = 10.0
"""Seconds in which the runtime must say that a container it stopped does not run any more."""


def choose(containers: List[Container], prefix: str) -> List[Container]:
    """Pure. Those of ``containers`` that run, belong to a pod of ``prefix`` and are no sandbox."""
    return [
        container
        for container in containers
        if container.runs
        and container.container != "-"
        and (container.pod.startswith(prefix) or container.container == prefix.rstrip("-"))
    ]


def stop(host: Host, container: Container, grace: int) -> str:
    """Ask the runtime to stop a container. Returns why it refused, empty when it did not."""
    if container.tool == "crictl":
        return host.run(crictl(container.socket, "stop", "--timeout", str(grace), container.id), grace + 30).why
    for signal, wait in (("SIGTERM", float(grace)), ("SIGKILL", 5.0)):
        why = host.run(ctr(container.socket, "task", "kill", "-s", signal, container.id)).why
        if why and "not found" not in why and "already finished" not in why:
            return why
        end = time.monotonic() + wait
        while time.monotonic() < end:
            if not _task_runs(host, container):
                return ""
            time.sleep(0.2)
    return ""


def _task_runs(host: Host, container: Container) -> bool:
    done = host.run(ctr(container.socket, "tasks", "list"))
    return bool(done.why) or any(
        line.split()[:1] == [container.id] and "STOPPED" not in line.split() for line in done.out.split("\n")
    )


def wait_stopped(host: Host, where: Tuple[str, str], prefix: str, seconds: float) -> Tuple[List[Container], str]:
    """Those that still run after at most ``seconds``, or why that is not known."""
    end = time.monotonic() + seconds
    while True:
        found, why = read_containers(host, *where)
        left = choose(found, prefix) if found is not None else []
        if (found is not None and not left) or time.monotonic() > end:
            return left, why
        time.sleep(0.3)


def act(
    module: AnsibleModule, host: Host, where: Tuple[str, str], running: List[Container], result: Dict[str, Any]
) -> None:
    """Stop ``running`` and end the module with what came of it."""
    prefix, grace = module.params["name_prefix"], module.params["grace"]
    refusals = []
    for container in running:
        refusal = stop(host, container, grace)
        if refusal:
            refusals.append(f"{container.id[:13]}: {refusal}")
    left, why = wait_stopped(host, where, prefix, PATIENCE)
    result["stopped"] = [] if why else [one.id for one in running if one.id not in {other.id for other in left}]
    if left or why:
        reasons = "; ".join(refusals + ([why] if why else [])) or "the runtime was asked to stop it and it runs on"
        names = ", ".join(f"{one.container} ({one.id[:13]})" for one in left) or "the containers"
        module.fail_json(**dict(result, msg=f"Not stopped for certain: {names}: {reasons}"))
    module.exit_json(**result)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name_prefix": {"type": "str", "default": "nvidia-vfio-manager-"},
            "unit": {"type": "str", "default": ""},
            "host_root": {"type": "path", "default": "/"},
            "grace": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["host_root"])
    prefix = module.params["name_prefix"]
    if not prefix:
        module.fail_json(msg="name_prefix is empty: that would be every container")
    kubelet = read_kubelet(host, module.params["unit"])
    where = (kubelet.unit.name, kubelet.endpoint)
    found, why = read_containers(host, *where)
    if found is None:
        module.fail_json(msg=f"It is not known whether a container of {prefix} runs: {why}", containers=[], stopped=[])
    running = choose(found, prefix)
    result = {
        "changed": bool(running),
        "containers": [
            {"pod": one.pod, "container": one.container, "id": one.id, "state": one.state} for one in running
        ],
        "stopped": [],
    }
    if not running:
        module.exit_json(msg=f"no container of {prefix} runs on this host", **result)
    result["diff"] = {
        "before_header": "containers on the host",
        "after_header": "containers on the host",
        "before": "".join(f"{one.pod} {one.container} {one.id[:13]} {one.state}\n" for one in running),
        "after": "".join(f"{one.pod} {one.container} {one.id[:13]} EXITED\n" for one in running),
    }
    if module.check_mode:
        module.exit_json(**result)
    try:
        with holding(host, "gpufix_stop_container"):
            act(module, host, where, running, result)
    except Busy as busy:
        text = str(busy)
        module.fail_json(**dict(result, changed=False, msg=text[:1].upper() + text[1:]))


if __name__ == "__main__":
    main()
