#!/usr/bin/python
# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""Puts swap back as it was before gpufix_swap."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpufix_restore_swap
short_description: Put swap back as it was, now and at every boot
description:
  - The undo of M(gpufix_swap), from what that returned.
  - "In this order: units are unmasked or enabled, the bytes of /etc/fstab come back from their backup, systemd reads
    its units again, services that make swap are enabled and started, each device that is not on is switched on."
  - What is so already is left alone, so that a run that was killed half-way can be run again.
  - When /etc/fstab is neither as it was nor as gpufix_swap left it, nothing at all is changed. The diff then shows both
    against what it is now.
  - The kubelet is never touched.
version_added: "0.1.0"
options:
  restore:
    description:
      - What to put back, as base64 of a JSON object, so that no text of the node is ever taken for a template.
      - C(fstab) is null or has C(backup), C(sha256) (of the bytes as they were) and C(sha256_after) (as gpufix_swap
        left them). C(devices), C(units) and C(services) are the lists that gpufix_swap returned.
    type: str
    required: true
  expect_state_sha256:
    description:
      - The RV(state_sha256) of the preview. When /etc/fstab or the swap devices are others by now, nothing is changed.
    type: str
    default: ""
  unit:
    description:
      - The systemd unit of the kubelet, for the warning that it is alive. Found when it is not given.
    type: str
    default: ""
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
- name: Put swap back as it was
  gpufix_restore_swap:
    restore: "{{ gpufix_restore }}"
"""

RETURN = r"""
fstab_sha256:
  description: Digest of /etc/fstab before, empty when there is none.
  returned: once the host was read
  type: str
fstab_sha256_after:
  description: Digest of /etc/fstab after; in check mode what it would be.
  returned: once there is a plan
  type: str
state_sha256:
  description:
    - Digest of /etc/fstab and of which devices are swap, before. The sha256 of RV(fstab_sha256), a newline, and what
      M(gpufix_swap) returns as C(swaps_sha256).
  returned: once the host was read
  type: str
devices:
  description: The swap devices before, with sizes in KiB and priorities.
  returned: once the host was read
  type: list
  elements: dict
plan:
  description: What is to be done, in order. Empty when there is nothing to do.
  returned: always
  type: list
  elements: str
  sample: [put /etc/fstab back from /etc/fstab.gpufix-0123456789ab, systemctl daemon-reload, swapon /swapfile]
done:
  description: What was done, in order. It is there after a failure too.
  returned: always
  type: list
  elements: str
"""

import base64
import hashlib
import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufix_busy import Busy, holding
from ansible.module_utils.gpufix_fstab import (
    FstabChanged,
    comment_swap,
    decode,
    encode,
    follow,
    replace_file,
    sha256,
    why_not_writable,
)
from ansible.module_utils.gpufix_host import Host, show_blocks
from ansible.module_utils.gpufix_kubelet import find_unit
from ansible.module_utils.gpufix_swaps import OWN_UNITS, SERVICES, Device, mib, swaps_sha256
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

UNREAD = "/run/gpufix.reload"
"""There from before the first change of a unit or of fstab until systemd has read them again: a run that is killed in
between leaves no other trace of that. A boot clears it, and reads everything itself."""
_ENABLED = ("enabled", "enabled-runtime")
_ALIVE = ("active", "activating", "reloading")
_LARGEST = 1 << 20
"""Characters of base64, many times what a host with all its fstab and units needs."""


# --- what to put back -----------------------------------------------------------------------------


class FstabWas(NamedTuple):
    """``before``: the digest of the bytes in ``backup``. ``after``: that of what gpufix_swap made of them."""

    backup: str
    before: str
    after: str


class DeviceWas(NamedTuple):
    """``size_kib`` is 0, and ``kind`` empty, where it was not told."""

    path: str
    priority: int
    kind: str
    size_kib: int

    def describe(self) -> str:
        words = [self.kind] if self.kind else []
        words += [mib(self.size_kib)] if self.size_kib else []
        words.append(f"priority {self.priority}" if self.priority >= 0 else "priority as the kernel gives it")
        return "{} ({})".format(self.path, ", ".join(words))

    def command(self) -> List[str]:
        """A negative priority is the kernel's own choice, and cannot be asked for."""
        return ["swapon"] + (["-p", str(self.priority)] if self.priority >= 0 else []) + [self.path]


class UnitWas(NamedTuple):
    """A unit that gpufix_swap has masked, disabled or set aside (``verb``)."""

    name: str
    origin: str
    file_state: str
    fragment: str
    verb: str
    moved_to: str


class ServiceWas(NamedTuple):
    name: str
    enabled: str
    active: str


class Restore(NamedTuple):
    """What gpufix_swap found, and put off."""

    fstab: Optional[FstabWas]
    devices: List[DeviceWas]
    units: List[UnitWas]
    services: List[ServiceWas]


_PATH = r"/[^\x00-\x1f\x7f\ud800-\udfff]{1,4000}"
_DIGEST = r"[0-9a-f]{64}"
_STATE = r"[a-z-]{0,40}"
_Fields = Dict[str, Any]
_UNIT: _Fields = {
    "unit": r"[A-Za-z0-9:_.\\][A-Za-z0-9:_.\\@-]{0,240}\.swap",
    "origin": r"native|fstab|gpt-auto|zram|generated|proc|masked",
    "unit_file_state": _STATE,
    "fragment": "(" + _PATH + ")?",
    "action": r"mask|disable|set-aside",
    "moved_to": "(" + _PATH + ")?",
}
_SERVICE: _Fields = {"service": "|".join(map(re.escape, SERVICES)), "enabled": _STATE, "active": _STATE}
_FSTAB: _Fields = {"backup": _PATH, "sha256": _DIGEST, "sha256_after": _DIGEST}
_DEVICE: _Fields = {"path": _PATH, "priority": int}
_DEVICE_TOLD: _Fields = {"type": r"[a-z]{1,20}", "size_kib": int, "used_kib": int}


def parse_restore(text: str) -> Restore:
    """Pure. The option ``restore``. Raises Refusal, in one line, for anything that gpufix_swap would not return."""
    if len(text) > _LARGEST:
        raise Refusal("gpufix_restore is too long; nothing was done")
    try:
        data = json.loads(base64.b64decode(text.encode("ascii"), validate=True).decode("utf-8"))
    except (ValueError, RecursionError):
        raise Refusal("gpufix_restore is not the base64 of a JSON object; nothing was done") from None
    _fields(data, "gpufix_restore", {"fstab": None, "devices": list, "units": list, "services": list})
    return Restore(
        None if data["fstab"] is None else _fstab(data["fstab"]),
        [_device(entry, f"devices[{number}]") for number, entry in enumerate(_once(data["devices"], "path"))],
        [_unit(entry, f"units[{number}]") for number, entry in enumerate(_once(data["units"], "unit"))],
        [_service(entry, f"services[{number}]") for number, entry in enumerate(_once(data["services"], "service"))],
    )


def _wrong(where: str, what: str) -> Refusal:
    return Refusal(f"gpufix_restore cannot be used: {where} {what}; nothing was done")


def _fields(data: Any, where: str, wanted: _Fields, optional: Optional[_Fields] = None) -> None:
    """``wanted`` and ``optional``: the name of each field to its pattern, or its type."""
    if not isinstance(data, dict):
        raise _wrong(where, "is no object")
    known = dict(wanted, **(optional or {}))
    for name in wanted:
        if name not in data:
            raise _wrong(where, f"lacks {name}")
    for name, value in data.items():
        if name not in known:
            raise _wrong(where, f"has the field {name[:40]!r}, which is not known")
        kind = known[name]
        if kind is None:
            continue
        if isinstance(kind, str):
            if not isinstance(value, str) or not re.fullmatch(kind, value):
                raise _wrong(f"{where}.{name}", f"is not plausible: {str(value)[:80]!r}")
        elif type(value) is not kind:
            raise _wrong(f"{where}.{name}", "is not of type {}".format({int: "number", list: "list"}[kind]))


def _once(entries: List[Any], name: str) -> List[Any]:
    names = [str(entry.get(name)) for entry in entries if isinstance(entry, dict)]
    if len(set(names)) != len(names):
        raise _wrong("gpufix_restore", f"names a {name} twice")
    return entries


def _absolute(path: str, where: str) -> str:
    if path and (os.path.normpath(path) != path or path.startswith("//")):
        raise _wrong(where, f"is not a plain absolute path: {path[:80]!r}")
    return path


def _fstab(data: Any) -> FstabWas:
    _fields(data, "fstab", _FSTAB)
    backup = _absolute(data["backup"], "fstab.backup")
    ending = ".gpufix-" + data["sha256"][:12]
    if not re.fullmatch(r"[^/]+" + re.escape(ending), os.path.basename(backup)):
        raise _wrong("fstab.backup", f"is not named fstab{ending}: {backup[:80]!r}")
    return FstabWas(backup, data["sha256"], data["sha256_after"])


def _device(data: Any, where: str) -> DeviceWas:
    _fields(data, where, _DEVICE, _DEVICE_TOLD)
    if not -(1 << 20) <= data["priority"] <= 32767:
        raise _wrong(where + ".priority", "is none of the kernel's")
    path = _absolute(data["path"], where + ".path")
    return DeviceWas(path, data["priority"], data.get("type", ""), data.get("size_kib", 0))


def _unit(data: Any, where: str) -> UnitWas:
    _fields(data, where, _UNIT)
    fragment = _absolute(data["fragment"], where + ".fragment")
    if data["action"] != "mask" and not fragment.startswith(OWN_UNITS):
        raise _wrong(where + ".fragment", f"does not lie in {OWN_UNITS}: {fragment[:80]!r}")
    if data["moved_to"] != (fragment + ".gpufix-aside" if data["action"] == "set-aside" else ""):
        raise _wrong(where + ".moved_to", "is not where gpufix_swap would put it: {!r}".format(data["moved_to"][:80]))
    return UnitWas(data["unit"], data["origin"], data["unit_file_state"], fragment, data["action"], data["moved_to"])


def _service(data: Any, where: str) -> ServiceWas:
    _fields(data, where, _SERVICE)
    return ServiceWas(data["service"], data["enabled"], data["active"])


# --- what is so now -------------------------------------------------------------------------------


class World(NamedTuple):
    """The host at one moment. ``unread``: systemd has not read all that changed. ``states``: unit to what it says."""

    devices: List[Device]
    fstab: Optional[bytes]
    unread: bool
    states: Dict[str, Dict[str, str]]

    def masked(self, name: str) -> bool:
        state = self.states[name]
        return "masked" in (state.get("LoadState"), state.get("UnitFileState"))

    def file_state(self, name: str) -> str:
        return self.states[name].get("UnitFileState", "")

    def is_there(self, name: str) -> bool:
        return self.states[name].get("LoadState") not in ("not-found", "", None)

    def alive(self, name: str) -> bool:
        return self.states[name].get("ActiveState") in _ALIVE


def read_world(host: Host, restore: Restore) -> World:
    """Raises Refusal where something cannot be read: unknown is not off."""
    states = {}
    for name in [unit.name for unit in restore.units] + [service.name for service in restore.services]:
        done = host.run(["systemctl", "show", name, "-p", "Id,LoadState,ActiveState,UnitFileState,FragmentPath"])
        blocks = show_blocks(done.out)
        if done.why or len(blocks) != 1:
            raise Refusal(f"the state of {name} is not known: {done.why or 'systemctl did not say it'}")
        states[name] = blocks[0]
    return World(read_devices(host), read_fstab(host), host.exists(UNREAD), states)


def fstab_digest(world: World) -> str:
    return "" if world.fstab is None else sha256(world.fstab)


def state_sha256(world: World) -> str:
    """Pure. What the preview saw: fstab, and which devices are swap."""
    return hashlib.sha256(f"{fstab_digest(world)}\n{swaps_sha256(world.devices)}".encode("utf-8")).hexdigest()


class Unfit(Refusal):
    """/etc/fstab is neither as it was nor as gpufix_swap left it. ``diff`` shows both against what it is now."""

    def __init__(self, why: str, diff: List[Dict[str, str]]) -> None:
        super().__init__(why)
        self.diff = diff


def original_fstab(host: Host, restore: Restore, world: World) -> Optional[bytes]:
    """The bytes that /etc/fstab shall have, None where it has them. Raises Refusal where it must not be touched."""
    was = restore.fstab
    if was is None or fstab_digest(world) == was.before:
        return None
    real = follow(host.path(FSTAB), host.root)
    expected = as_host(host, "{}.gpufix-{}".format(real, was.before[:12]))
    if was.backup != expected:
        raise Refusal(f"the backup of {FSTAB} would be {expected}, and is said to be {was.backup}; nothing was done")
    try:
        data = host.read_bytes(was.backup)
    except OSError as error:
        why = error.strerror or error
        raise Refusal(f"the backup {was.backup} of {FSTAB} cannot be read: {why}; nothing was done") from None
    if sha256(data) != was.before:
        raise Refusal(f"the backup {was.backup} of {FSTAB} does not hold what it did; nothing was done")
    if fstab_digest(world) != was.after:
        now = "was edited since gpufix left it" if world.fstab is not None else "is gone"
        raise Unfit(
            f"{FSTAB} {now}, so it is not put back: that would undo somebody else's change. Put back what you want of "
            f"{was.backup} by hand; nothing was done",
            three_way(data, world.fstab or b""),
        )
    return data


def three_way(original: bytes, now: bytes) -> List[Dict[str, str]]:
    """Pure. fstab as gpufix_swap left it, and as it was before that, each against what it is now."""
    left = encode(comment_swap(decode(original)))
    return [
        dict(
            part("", shown(left), shown(now)), before_header=f"{FSTAB} as gpufix left it", after_header=f"{FSTAB} now"
        ),
        dict(
            part("", shown(original), shown(now)),
            before_header=f"{FSTAB} as it was before gpufix",
            after_header=f"{FSTAB} now",
        ),
    ]


# --- what is to be done ---------------------------------------------------------------------------


class Plan(NamedTuple):
    """What differs from how it was. ``enable`` and ``start`` are those of services, ``units_enable`` of units."""

    put_back: List[UnitWas]
    unmask: List[str]
    units_enable: List[Tuple[str, str]]
    fstab: Optional[bytes]
    backup: str
    reload: bool
    enable: List[Tuple[str, str]]
    start: List[str]
    devices: List[DeviceWas]

    def steps(self) -> List[str]:
        steps = [f"put {unit.fragment} back from {unit.moved_to}" for unit in self.put_back]
        steps += [f"unmask {name}" for name in self.unmask]
        steps += [f"enable {name}" for name, _state in self.units_enable]
        if self.fstab is not None:
            steps.append(f"put {FSTAB} back from {self.backup}")
        if self.reload:
            steps.append("systemctl daemon-reload")
        steps += [f"enable {name}" for name, _state in self.enable]
        steps += [f"start {name}" for name in self.start]
        return steps + [" ".join(device.command()) for device in self.devices]


def make_plan(host: Host, restore: Restore, world: World) -> Plan:
    """Looks at files and changes nothing. Raises Refusal where something must not or cannot be put back."""
    fstab = original_fstab(host, restore, world)
    if fstab is not None:
        must(why_not_writable(host.path(FSTAB), host.root))
    put_back = [unit for unit in restore.units if unit.verb == "set-aside" and _is_aside(host, unit)]
    unmask = [unit.name for unit in restore.units if unit.verb != "disable" and world.masked(unit.name)]
    units_enable = [
        (unit.name, unit.file_state)
        for unit in restore.units
        if unit.file_state in _ENABLED and world.file_state(unit.name) not in _ENABLED
    ]
    for service in restore.services:
        if not world.is_there(service.name):
            raise Refusal(
                f"{service.name} is not installed any more, so swap cannot be made as it was; nothing was done"
            )
    on = {device.name for device in world.devices}
    return Plan(
        put_back,
        unmask,
        units_enable,
        fstab,
        restore.fstab.backup if restore.fstab else "",
        bool(world.unread or put_back or unmask or units_enable or fstab is not None),
        [
            (service.name, service.enabled)
            for service in restore.services
            if not service.enabled.startswith("masked") and _lost(service.enabled, world.file_state(service.name))
        ],
        [
            service.name
            for service in restore.services
            if service.active in _ALIVE and not world.alive(service.name) and not world.masked(service.name)
        ],
        [device for device in restore.devices if device.path not in on],
    )


def _lost(was: str, now: str) -> bool:
    """Pure. A service that came up at boot does not do so any more."""
    ways = _ENABLED + ("generated", "alias")
    return was in ways and now not in ways


def _is_aside(host: Host, unit: UnitWas) -> bool:
    """The file of ``unit`` lies where gpufix_swap put it. Raises Refusal where it is in neither place, or in both."""
    fragment, aside = host.path(unit.fragment), host.path(unit.moved_to)
    is_there = os.path.lexists(fragment) and not _is_mask(fragment)
    if os.path.lexists(aside):
        if is_there:
            raise Refusal(f"both {unit.fragment} and {unit.moved_to} exist, so neither is touched; nothing was done")
        return True
    if not is_there:
        raise Refusal(f"{unit.moved_to} is gone, so {unit.name} cannot be put back; nothing was done")
    return False


def _is_mask(path: str) -> bool:
    return os.path.islink(path) and os.readlink(path) == "/dev/null"


def make_diff(restore: Restore, world: World, plan: Plan) -> List[Dict[str, str]]:
    """Pure. What Ansible shows: fstab as text, then the devices, then the units and services."""
    parts = []
    if plan.fstab is not None and world.fstab is not None:
        parts.append(part(FSTAB, shown(world.fstab), shown(plan.fstab)))
    if plan.devices:
        parts.append(part("swap devices", "", "".join(f"{device.describe()}\n" for device in plan.devices)))
    before, after = [], []
    for service in restore.services:
        if service.name in plan.start or service.name in dict(plan.enable):
            state = world.states[service.name]
            before.append(
                "{}: {}, {}\n".format(
                    service.name, state.get("UnitFileState") or "unknown", state.get("ActiveState") or "unknown"
                )
            )
            after.append("{}: {}, {}\n".format(service.name, service.enabled, service.active or "unknown"))
    for unit in restore.units:
        if unit in plan.put_back:
            before.append(f"{unit.moved_to}\n")
            after.append(f"{unit.fragment}\n")
        if unit in plan.put_back or unit.name in plan.unmask or unit.name in dict(plan.units_enable):
            before.append("{}: {}\n".format(unit.name, "masked" if world.masked(unit.name) else "disabled"))
            after.append("{}: {} ({})\n".format(unit.name, unit.file_state or "loaded", unit.origin))
    if before:
        parts.append(part("units that make swap at boot", "".join(before), "".join(after)))
    return parts


# --- doing it -------------------------------------------------------------------------------------


def apply_plan(host: Host, world: World, plan: Plan, done: List[str]) -> None:
    """Carry out ``plan``, adding to ``done`` what is done. Raises Refusal or OSError at the first thing that fails."""
    if plan.reload:
        with open(host.path(UNREAD), "w"):
            pass
    for unit in plan.put_back:
        os.rename(host.path(unit.moved_to), host.path(unit.fragment))  # over the mask, in one step
        done.append(f"put {unit.fragment} back")
    for name in plan.unmask:
        must(host.run(["systemctl", "unmask", name], 60).why)
        done.append(f"unmasked {name}")
    for name, state in plan.units_enable:
        _enable(host, name, state)
        done.append(f"enabled {name}")
    if plan.fstab is not None and world.fstab is not None:
        kept = replace_file(host.path(FSTAB), plan.fstab, world.fstab, host.root)
        done.append(f"put {FSTAB} back from {plan.backup}; as it was until now it is in {as_host(host, kept)}")
    if plan.reload:
        must(host.run(["systemctl", "daemon-reload"], 120).why)
        os.unlink(host.path(UNREAD))
        done.append("systemd read its units again")
    for name, state in plan.enable:
        _enable(host, name, state)
        done.append(f"enabled {name}")
    for name in plan.start:  # before swapon: it makes the device that it switches on
        must(host.run(["systemctl", "start", name], 180).why)
        done.append(f"started {name}")
    for device in plan.devices:
        if device.path in _on(host):
            done.append(f"{device.path} is on already")
            continue
        why = host.run(device.command(), 180).why
        if why and device.path not in _on(host):  # systemd may have been quicker
            raise Refusal(why)
        done.append(f"switched {device.path} on")


def _enable(host: Host, name: str, state: str) -> None:
    runtime = ["--runtime"] if state == "enabled-runtime" else []
    must(host.run(["systemctl", "enable"] + runtime + [name], 120).why)


def _on(host: Host) -> List[str]:
    return [device.name for device in read_devices(host)]


def judge_end(host: Host, restore: Restore) -> None:
    """Raises Refusal when something is not as it was after all is done."""
    left = make_plan(host, restore, read_world(host, restore)).steps()
    if left:
        raise Refusal("it was all done, and yet this is still to do: {}".format(", ".join(left)))


def warn_of_kubelet(module: AnsibleModule, host: Host) -> None:
    """A kubelet that runs goes on running when swap comes on. It is its next start that it refuses."""
    unit = find_unit(host, module.params["unit"])
    if unit.name and unit.active not in ("active", "reloading"):
        return
    runs = f"{unit.name} runs." if unit.name else f"It is not known whether the kubelet runs ({unit.why})."
    module.warn(
        f"{runs} With swap on, a kubelet that is not set to allow it refuses its next start: after a restart of it or "
        "a reboot this node is dead again"
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "restore": {"type": "str", "required": True},
            "expect_state_sha256": {"type": "str", "default": ""},
            "unit": {"type": "str", "default": ""},
            "host_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["host_root"])
    result: Dict[str, Any] = {"changed": False, "done": [], "plan": []}
    try:
        restore = parse_restore(module.params["restore"])
        world = read_world(host, restore)
        result.update(
            fstab_sha256=fstab_digest(world),
            state_sha256=state_sha256(world),
            devices=[device.as_dict() for device in world.devices],
        )
        plan = make_plan(host, restore, world)
        _compare(module.params["expect_state_sha256"], world)
        result["plan"] = plan.steps()
        result["fstab_sha256_after"] = sha256(plan.fstab) if plan.fstab is not None else fstab_digest(world)
    except Unfit as unfit:
        module.fail_json(**dict(result, msg=sentence(unfit), diff=unfit.diff))
    except (Refusal, OSError) as refusal:
        module.fail_json(**dict(result, msg=sentence(refusal)))
    if not plan.steps():
        module.exit_json(msg="swap is as it was, now and at boot", **result)
    if plan.devices or plan.start:
        warn_of_kubelet(module, host)
    result["diff"] = make_diff(restore, world, plan)
    result["changed"] = True
    if module.check_mode:
        module.exit_json(**result)
    try:
        with holding(host, "gpufix_restore_swap"):
            _same(plan, make_plan(host, restore, read_world(host, restore)))
            apply_plan(host, world, plan, result["done"])
            judge_end(host, restore)
    except Busy as busy:
        module.fail_json(**dict(result, changed=False, msg=sentence(busy)))
    except (Refusal, FstabChanged, OSError) as error:
        done = "; done before that: {}".format(", ".join(result["done"])) if result["done"] else ""
        module.fail_json(**dict(result, changed=bool(result["done"]), msg=sentence(error) + done))
    module.exit_json(**result)


def _compare(expected: str, world: World) -> None:
    if expected and expected != state_sha256(world):
        raise Refusal(f"{FSTAB} or the set of swap devices changed since the preview; nothing was done")


def _same(before: Plan, now: Plan) -> None:
    """Another change may have ended between the look and the lock."""
    if before != now:
        raise Refusal("the host changed while this was being prepared; nothing was done")


if __name__ == "__main__":
    main()
