#!/usr/bin/python
# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""Turns swap off, now and at boot."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpufix_swap
short_description: Turn swap off, now and at every boot
description:
  - Finds the swap devices and all that would bring them back at boot, and turns them off.
  - "First it checks that memory can hold what is swapped out; then, in this order: the services that make swap are
    disabled, each device is switched off, the swap lines of /etc/fstab are commented, systemd reads its units again,
    and units that would still bring swap back are masked."
  - A backup of /etc/fstab is made before anything is changed.
version_added: "0.1.0"
options:
  expect_fstab_sha256:
    description:
      - The RV(fstab_sha256) of the preview. When /etc/fstab is not the same any more, nothing is changed.
    type: str
    default: ""
  expect_swaps_sha256:
    description:
      - The RV(swaps_sha256) of the preview. When other devices are swap by now, nothing is changed.
    type: str
    default: ""
  swapoff_timeout:
    description:
      - Seconds that switching a device off may go on without swap getting smaller. Slow progress is waited for.
    type: int
    default: 1800
  host_root:
    description:
      - The folder that stands for C(/). For practice hosts and tests.
    type: path
    default: /
author:
  - The gpufix authors
attributes:
  check_mode:
    description: Does all the checks and says what would be changed.
    support: full
  diff_mode:
    description: One part each for /etc/fstab, the swap devices, and the units and services.
    support: full
"""

EXAMPLES = r"""
- name: Turn swap off, now and at boot
  gpufix_swap:
"""

RETURN = r"""
fstab_sha256:
  description: Digest of /etc/fstab before, empty when there is none.
  returned: always
  type: str
fstab_sha256_after:
  description: Digest of /etc/fstab after; in check mode what it would be.
  returned: always
  type: str
swaps_sha256:
  description:
    - Digest of which devices are swap. The sha256 of their paths as the first column of /proc/swaps writes them (octal
      escapes kept), sorted, joined by single newlines, without one at the end.
  returned: always
  type: str
backup:
  description: The copy of /etc/fstab as it was, empty when that is not changed. In check mode where it would be.
  returned: always
  type: str
  sample: /etc/fstab.gpufix-0123456789ab
devices:
  description: The swap devices before, with sizes in KiB and priorities.
  returned: always
  type: list
  elements: dict
  sample: [{path: /swapfile, type: file, size_kib: 262140, used_kib: 28, priority: -2}]
memory:
  description: The arithmetic that allows it.
  returned: when a device is on
  type: str
units:
  description: Units that would bring swap back, with their state before and what is done to each (mask or disable).
  returned: always
  type: list
  elements: dict
services:
  description: Services that make swap, with their state before.
  returned: always
  type: list
  elements: dict
plan:
  description: What is to be done, in order. Empty when there is nothing to do.
  returned: always
  type: list
  elements: str
done:
  description: What was done, in order. It is there after a failure too.
  returned: always
  type: list
  elements: str
"""

import os
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufix_busy import Busy, holding
from ansible.module_utils.gpufix_fstab import (
    FstabChanged,
    back_up,
    backup_path,
    comment_swap,
    decode,
    encode,
    follow,
    replace_file,
    sha256,
    swap_lines,
    why_not_writable,
)
from ansible.module_utils.gpufix_host import Host, kill_group, one_line, show_blocks
from ansible.module_utils.gpufix_swaps import (
    DELETED,
    SERVICES,
    Device,
    Service,
    SwapUnit,
    choose_verb,
    fstab_whats,
    judge_memory,
    mib,
    parse_meminfo,
    parse_services,
    parse_swaps,
    parse_units,
    swaps_sha256,
)
from ansible.module_utils.gpufix_swapworld import (
    FSTAB,
    Refusal,
    as_host,
    must,
    part,
    read_devices,
    read_fstab,
    sentence,
    shown,
)


class World(NamedTuple):
    """Swap and what makes it, as read at one moment. ``fstab`` is None where there is no such file."""

    devices: List[Device]
    fstab: Optional[bytes]
    units: List[SwapUnit]
    services: List[Service]


def read_world(host: Host) -> World:
    """Raises Refusal where something cannot be read: unknown is not off."""
    fstab = read_fstab(host)
    return World(read_devices(host), fstab, read_units(host, fstab), read_services(host))


def read_units(host: Host, fstab: Optional[bytes]) -> List[SwapUnit]:
    done = host.run(
        [
            "systemctl",
            "show",
            "*.swap",
            "--all",
            "-p",
            "Id,What,FragmentPath,ActiveState,UnitFileState,LoadState,SourcePath,Documentation",
        ]
    )
    if done.why:
        raise Refusal(f"what brings swap back at boot is not known: {done.why}")
    return parse_units(show_blocks(done.out), fstab_whats(swap_lines(decode(fstab or b""))))


def read_services(host: Host) -> List[Service]:
    done = host.run(["systemctl", "show"] + list(SERVICES) + ["-p", "Id,LoadState,ActiveState,UnitFileState"])
    if done.why:
        raise Refusal(f"which services make swap is not known: {done.why}")
    return parse_services(show_blocks(done.out))


# --- what is to be done ---------------------------------------------------------------------------


class UnitAction(NamedTuple):
    """How a unit is kept from bringing swap back. ``verb`` is mask | disable | set-aside (``choose_verb``)."""

    unit: SwapUnit
    verb: str

    @property
    def moved_to(self) -> str:
        return self.unit.fragment + ".gpufix-aside" if self.verb == "set-aside" else ""

    def describe(self) -> Dict[str, str]:
        return {
            "unit": self.unit.name,
            "origin": self.unit.origin,
            "unit_file_state": self.unit.file_state,
            "fragment": self.unit.fragment,
            "action": self.verb,
            "moved_to": self.moved_to,
        }


class Plan(NamedTuple):
    devices: List[Device]
    memory: str
    new_fstab: Optional[bytes]
    services: List[Service]
    units: List[UnitAction]

    def steps(self) -> List[str]:
        steps = []
        if self.new_fstab is not None:
            steps.append(f"back up {FSTAB}")
        steps += [f"disable and stop {service.name}" for service in self.services]
        steps += [f"swapoff {device.name}" for device in self.devices]
        if self.new_fstab is not None:
            steps.append(f"comment the swap lines of {FSTAB}")
        if self.new_fstab is not None or self.units:
            steps.append("systemctl daemon-reload")
        steps += [f"{action.verb} {action.unit.name}" for action in self.units]
        return steps


def make_plan(world: World, memory: Dict[str, int], overcommit: Optional[int]) -> Plan:
    """Pure. What turns swap off in ``world``. Raises Refusal where that must not or cannot be done."""
    arithmetic = ""
    if world.devices:
        for device in world.devices:
            if DELETED in device.path:
                raise Refusal(
                    f"the swap file {device.name} was deleted while in use: only a reboot ends it, "
                    "it cannot be switched off by its path"
                )
        enough, arithmetic = judge_memory(world.devices, memory, overcommit)
        if not enough:
            raise Refusal(f"swap stays on: {arithmetic}")
    new_fstab = None
    if world.fstab is not None:
        edited = encode(comment_swap(decode(world.fstab)))
        new_fstab = edited if edited != world.fstab else None
    return Plan(
        world.devices,
        arithmetic,
        new_fstab,
        [service for service in world.services if service.makes_swap],
        [UnitAction(unit, choose_verb(unit.fragment, unit.file_state)) for unit in world.units if unit.returns_at_boot],
    )


def make_diff(world: World, plan: Plan) -> List[Dict[str, str]]:
    """Pure. What Ansible shows: fstab as text, then the devices, then the units and services."""
    parts = []
    if plan.new_fstab is not None and world.fstab is not None:
        parts.append(part(FSTAB, shown(world.fstab), shown(plan.new_fstab)))
    if plan.devices:
        head = f"# {plan.memory}\n"
        lines = [
            f"{one.name} ({one.kind}, {mib(one.size_kib)}, {mib(one.used_kib)} used, priority {one.priority})\n"
            for one in plan.devices
        ]
        parts.append(part("swap devices", head + "".join(lines), head))
    before, after = [], []
    for service in plan.services:
        before.append("{}: {}, {}\n".format(service.name, service.enabled, service.active or "unknown"))
        after.append(f"{service.name}: disabled, inactive\n")
    for action in plan.units:
        before.append("{}: {} ({})\n".format(action.unit.name, action.unit.file_state or "loaded", action.unit.origin))
        after.append("{}: {}\n".format(action.unit.name, "disabled" if action.verb == "disable" else "masked"))
        if action.moved_to:
            before.append(f"{action.unit.fragment}\n")
            after.append(f"{action.moved_to}\n")
    if before:
        parts.append(part("units that make swap at boot", "".join(before), "".join(after)))
    return parts


# --- doing it -------------------------------------------------------------------------------------


def apply_plan(host: Host, world: World, plan: Plan, patience: float, done: List[str]) -> None:
    """Carry out ``plan``, adding to ``done`` what is done. Raises Refusal or OSError at the first thing that fails."""
    fstab_path = host.path(FSTAB)
    if plan.new_fstab is not None and world.fstab is not None:
        backup = back_up(fstab_path, world.fstab, host.root)
        done.append(f"backed {FSTAB} up to {as_host(host, backup)}")
    for service in plan.services:  # before swapoff: one that makes swap while it runs would make it again
        verb = ["stop"] if service.enabled.startswith("masked") else ["disable", "--now"]
        must(host.run(["systemctl"] + verb + [service.name], patience).why)
        done.append(f"disabled and stopped {service.name}")
    for device in plan.devices:
        left = parse_swaps(_swaps_text(host))
        if device.path not in {other.path for other in left}:
            done.append(f"{device.name} is off already")
            continue
        enough, arithmetic = judge_memory(left, *read_memory(host))
        if not enough:
            raise Refusal(f"{device.name} stays on: {arithmetic}")
        switch_off(host, device, patience)
        done.append(f"switched {device.name} off")
    if plan.new_fstab is not None and world.fstab is not None:
        replace_file(fstab_path, plan.new_fstab, world.fstab, host.root)
        done.append(f"commented the swap lines of {FSTAB}")
    if plan.new_fstab is not None or plan.units:
        must(host.run(["systemctl", "daemon-reload"], 120).why)
        done.append("systemd read its units again")
    for action in plan.units:
        _act(host, action)
        done.append(
            "{} {}".format(
                {"mask": "masked", "disable": "disabled"}.get(action.verb, "set aside and masked"), action.unit.name
            )
        )


def _act(host: Host, action: UnitAction) -> None:
    if action.verb == "set-aside":
        if os.path.lexists(host.path(action.moved_to)):
            raise Refusal(f"{action.moved_to} exists already, so {action.unit.fragment} cannot be set aside")
        os.rename(host.path(action.unit.fragment), host.path(action.moved_to))
    verb = "disable" if action.verb == "disable" else "mask"
    must(host.run(["systemctl", verb, action.unit.name], 60).why)


def switch_off(host: Host, device: Device, patience: float) -> None:
    """swapoff one device. It may take many minutes; it is given up when nothing moved for ``patience`` seconds."""
    try:
        process = subprocess.Popen(
            ["swapoff", device.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=host.environment(),
            start_new_session=True,
            pass_fds=host.inherited,
        )
    except OSError as error:
        raise Refusal(f"swapoff: {error.strerror or error}") from None
    used, moved = device.used_kib, time.monotonic()
    wait = 0.05
    while True:
        try:
            _out, err = process.communicate(timeout=wait)
            break
        except subprocess.TimeoutExpired:
            wait = min(1.0, wait * 2)
        now = _used(host, device.path)
        if now < used:
            used, moved = now, time.monotonic()
        elif time.monotonic() - moved > patience:
            kill_group(process)
            raise Refusal(f"swapoff {device.name} was given up: {mib(used)} in it, and no progress in {patience:g} s")
    words = one_line(err.decode("utf-8", "replace"))
    if process.returncode != 0:
        raise Refusal("swapoff {}: {}".format(device.name, words or f"ended with status {process.returncode}"))
    if _used(host, device.path) >= 0:
        raise Refusal(f"swapoff {device.name} said that it worked, and /proc/swaps still lists it")


def _swaps_text(host: Host) -> str:
    swaps = host.read("/proc/swaps")
    if swaps.text is None:
        raise Refusal(f"which devices are swap is not known any more: {swaps.why}")
    return swaps.text


def _used(host: Host, path: str) -> int:
    """KiB in use of a device, -1 when it is no swap any more."""
    for device in parse_swaps(_swaps_text(host)):
        if device.path == path:
            return device.used_kib
    return -1


def read_memory(host: Host) -> Tuple[Dict[str, int], Optional[int]]:
    """What judge_memory wants: /proc/meminfo and vm.overcommit_memory."""
    word = host.word("/proc/sys/vm/overcommit_memory")
    return parse_meminfo(host.read("/proc/meminfo").text or ""), int(word) if word.isdigit() else None


def judge_end(host: Host, world: World) -> None:
    """Raises Refusal when swap is still on, or would still come back, after all is done."""
    now = read_world(host)
    if now.devices:
        raise Refusal("swap is on again: {}".format(", ".join(device.name for device in now.devices)))
    units = read_units(host, world.fstab)
    back = [unit.name for unit in units if unit.returns_at_boot] + [one.name for one in now.services if one.makes_swap]
    if back:
        raise Refusal("{} would still make swap at boot; preview and run this again".format(", ".join(back)))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "expect_fstab_sha256": {"type": "str", "default": ""},
            "expect_swaps_sha256": {"type": "str", "default": ""},
            "swapoff_timeout": {"type": "int", "default": 1800},
            "host_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["host_root"])
    result: Dict[str, Any] = {"changed": False, "done": [], "plan": []}
    try:
        world = read_world(host)
        result.update(_describe_world(host, world))
        _compare(module.params, result)
        plan = make_plan(world, *read_memory(host))
        result.update(_describe_plan(host, world, plan))
        if plan.new_fstab is not None:
            must(why_not_writable(host.path(FSTAB), host.root))
    except Refusal as refusal:
        module.fail_json(**dict(result, msg=sentence(refusal)))
    if not plan.steps():
        module.exit_json(msg="no swap is on and none would come back at boot", **result)
    result["diff"] = make_diff(world, plan)
    result["changed"] = True
    if module.check_mode:
        module.exit_json(**result)
    try:
        with holding(host, "gpufix_swap"):
            apply_plan(host, world, plan, float(module.params["swapoff_timeout"]), result["done"])
            judge_end(host, world)
    except Busy as busy:
        module.fail_json(**dict(result, changed=False, msg=sentence(busy)))
    except (Refusal, FstabChanged, OSError, ValueError) as error:
        done = "; done before that: {}".format(", ".join(result["done"])) if result["done"] else "; nothing was changed"
        module.fail_json(**dict(result, changed=bool(result["done"]), msg=sentence(error) + done))
    module.exit_json(**result)


def _describe_world(host: Host, world: World) -> Dict[str, Any]:
    return {
        "fstab_sha256": "" if world.fstab is None else sha256(world.fstab),
        "fstab_sha256_after": "" if world.fstab is None else sha256(world.fstab),
        "swaps_sha256": swaps_sha256(world.devices),
        "devices": [device.as_dict() for device in world.devices],
        "backup": "",
        "units": [],
        "services": [],
    }


def _describe_plan(host: Host, world: World, plan: Plan) -> Dict[str, Any]:
    more: Dict[str, Any] = {
        "plan": plan.steps(),
        "units": [action.describe() for action in plan.units],
        "services": [
            {"service": service.name, "enabled": service.enabled, "active": service.active} for service in plan.services
        ],
    }
    if plan.memory:
        more["memory"] = plan.memory
    if plan.new_fstab is not None and world.fstab is not None:
        more["fstab_sha256_after"] = sha256(plan.new_fstab)
        more["backup"] = as_host(host, backup_path(follow(host.path(FSTAB), host.root), world.fstab))
    return more


def _compare(params: Dict[str, Any], result: Dict[str, Any]) -> None:
    for name, what in (("fstab_sha256", FSTAB), ("swaps_sha256", "the set of swap devices")):
        expected = params["expect_" + name]
        if expected and expected != result[name]:
            raise Refusal(f"{what} changed since the preview; nothing was done")


if __name__ == "__main__":
    main()
