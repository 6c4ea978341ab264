#!/usr/bin/python
# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""Holds, starts or restarts the unit that runs the kubelet."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpufix_kubelet_unit
short_description: Hold, start or restart the unit that runs the kubelet
description:
  - Finds the unit that runs the kubelet on this host (kubelet, k3s, RKE2, MicroK8s) and brings it to a state.
  - A crash-looping unit comes alive by itself as soon as its obstacle goes, so it is held before that is removed.
  - Returns as soon as systemd does. Whether the node becomes Ready is not judged here.
version_added: "0.1.0"
options:
  state:
    description:
      - C(held) stops the unit, so that systemd does not start it by itself. Nothing to do when it is down for good.
      - C(started) starts it when it does not run.
      - C(restarted) starts it anew, always.
    type: str
    required: true
    choices: [held, started, restarted]
  unit:
    description:
      - The systemd unit. Found when it is not given.
    type: str
    default: ""
  host_root:
    description:
      - The folder that stands for C(/). For practice hosts and tests.
    type: path
    default: /
  timeout:
    description:
      - Seconds that systemd may take to stop or start the unit.
    type: int
    default: 180
author:
  - The gpufix authors
attributes:
  check_mode:
    description: Says what would be done; nothing is stopped or started.
    support: full
  diff_mode:
    description: The unit's states before and after.
    support: full
"""

EXAMPLES = r"""
- name: Hold the kubelet while its obstacle is removed
  gpufix_kubelet_unit:
    state: held

- name: Start the kubelet anew
  gpufix_kubelet_unit:
    state: restarted
"""

RETURN = r"""
unit:
  description: The unit.
  returned: always
  type: str
  sample: kubelet.service
before:
  description: ActiveState/SubState before.
  returned: always
  type: str
  sample: activating/auto-restart
after:
  description: ActiveState/SubState after; in check mode what is expected.
  returned: always
  type: str
  sample: inactive/dead
unit_file_state:
  description: Whether systemd starts the unit at boot.
  returned: always
  type: str
  sample: enabled
commands:
  description: What was run, or in check mode would be run.
  returned: always
  type: list
  elements: str
  sample: [systemctl stop kubelet.service]
"""

import time
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufix_busy import Busy, holding
from ansible.module_utils.gpufix_host import Host
from ansible.module_utils.gpufix_kubelet import Unit, find_unit

HOLD_PATIENCE = 10.0
"""Seconds in which a unit that was stopped must be down."""


def plan(unit: Unit, state: str) -> List[List[str]]:
    """Pure. The commands that bring ``unit`` to ``state``; none when it is there."""
    if state == "held":
        return [["systemctl", "stop", unit.name]] if unit.running_or_about_to else []
    if state == "started" and unit.active == "active":
        return []
    verb = "restart" if state == "restarted" else "start"
    return [["systemctl", "reset-failed", unit.name], ["systemctl", verb, unit.name]]


def states(unit: Unit) -> str:
    return "{}/{}".format(unit.active or "unknown", unit.sub or "unknown")


def reason(unit: Unit, state: str) -> str:
    """Pure. Why there is nothing to do."""
    if state == "held":
        return f"{unit.name} is {states(unit)} and systemd will not start it by itself"
    return f"{unit.name} runs already"


def act(module: AnsibleModule, host: Host, unit: Unit, commands: List[List[str]], result: Dict[str, Any]) -> None:
    """Run ``commands`` and end the module with what came of it."""
    state = module.params["state"]
    for command in commands:
        done = host.run(command, float(module.params["timeout"]))
        if done.why and command[1] != "reset-failed":  # which fails for a unit that never failed
            result["after"] = states(find_unit(host, unit.name))
            module.fail_json(**dict(result, msg="{}: {}".format(" ".join(command), done.why)))
    after = find_unit(host, unit.name)
    if state == "held":
        end = time.monotonic() + HOLD_PATIENCE
        while after.running_or_about_to and time.monotonic() < end:
            time.sleep(0.2)
            after = find_unit(host, unit.name)
    result["after"] = states(after) if after.name else "unknown"
    if not after.name:
        module.fail_json(**dict(result, msg=f"The state of {unit.name} cannot be read again: {after.why}"))
    if state == "held" and after.running_or_about_to:
        module.fail_json(
            **dict(result, msg=f"{unit.name} was stopped and is {states(after)} again: something starts it")
        )
    if state != "held" and after.active in ("failed", "inactive"):
        module.fail_json(
            **dict(
                result,
                msg=f"{unit.name} is {states(after)} right after its start; see: journalctl -u {unit.name} -n 50",
            )
        )
    module.exit_json(**result)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["held", "started", "restarted"]},
            "unit": {"type": "str", "default": ""},
            "host_root": {"type": "path", "default": "/"},
            "timeout": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["host_root"])
    state = module.params["state"]
    unit = find_unit(host, module.params["unit"])
    if not unit.name:
        module.fail_json(msg=f"The kubelet's unit cannot be told: {unit.why}")
    if unit.load == "masked" and state != "held":
        module.fail_json(
            msg=f"{unit.name} is masked, so it cannot be started. See why, then: systemctl unmask {unit.name}",
            unit=unit.name,
            before=states(unit),
        )
    commands = plan(unit, state)
    expected = states(unit) if not commands else "inactive/dead" if state == "held" else "active/running"
    result = {
        "changed": bool(commands),
        "unit": unit.name,
        "before": states(unit),
        "after": expected,
        "unit_file_state": unit.file_state,
        "commands": [" ".join(command) for command in commands],
    }
    if commands:
        now = states(unit)
        if now == expected:  # a restart of a unit that runs: the states are the same, and yet it is started anew
            expected += ", started anew"
        result["diff"] = {
            "before_header": f"{unit.name}, ActiveState/SubState",
            "after_header": f"{unit.name}, ActiveState/SubState",
            "before": f"{now}\n",
            "after": f"{expected}\n",
        }
    else:
        result["msg"] = reason(unit, state)
    if module.check_mode or not commands:
        module.exit_json(**result)
    try:
        with holding(host, "gpufix_kubelet_unit"):
            act(module, host, unit, commands, result)
    except Busy as busy:
        text = str(busy)
        module.fail_json(**dict(result, changed=False, after=states(unit), msg=text[:1].upper() + text[1:]))


if __name__ == "__main__":
    main()
