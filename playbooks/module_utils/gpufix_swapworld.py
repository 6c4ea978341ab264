# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""What turning swap off and putting it back have in common: reading the host, refusing, and showing a change.

Standard library only; functions without a ``host`` are pure.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional

from ansible.module_utils.gpufix_fstab import follow
from ansible.module_utils.gpufix_host import Host, one_line
from ansible.module_utils.gpufix_redact import redact
from ansible.module_utils.gpufix_swaps import Device, parse_swaps

FSTAB = "/etc/fstab"


class Refusal(Exception):
    """Why it is not done; nothing was changed yet, or ``done`` says what was."""


def must(why: str) -> None:
    """Go on where ``why`` is empty. Raises Refusal with it otherwise."""
    if why:
        raise Refusal(why)


def read_devices(host: Host) -> List[Device]:
    """The devices that are swap. Raises Refusal where that cannot be read: unknown is not off."""
    swaps = host.read("/proc/swaps")
    if swaps.text is None:
        if host.exists("/proc/meminfo") and not host.exists("/proc/swaps"):
            return []  # a kernel without swap
        raise Refusal(f"which devices are swap is not known: {swaps.why}")
    try:
        return parse_swaps(swaps.text)
    except ValueError as error:
        raise Refusal(str(error)) from None


def read_fstab(host: Host) -> Optional[bytes]:
    """The bytes of /etc/fstab, None where there is no such file. Raises Refusal where it cannot be read."""
    try:
        with open(follow(host.path(FSTAB), host.root), "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refusal(f"{FSTAB} cannot be read: {error.strerror or error}") from None


def as_host(host: Host, path: str) -> str:
    """``path`` as the host itself calls it."""
    return path if host.root == "/" else "/" + os.path.relpath(path, host.root)


def part(header: str, before: str, after: str) -> Dict[str, str]:
    """One part of what Ansible shows with ``--diff``."""
    return {"before_header": header, "after_header": header, "before": before, "after": after}


def shown(data: bytes) -> str:
    """A file as it may be shown: mount options hold passwords."""
    return redact(data.decode("utf-8", "replace"))


def sentence(error: Exception) -> str:
    text = one_line(str(error), 600)
    return text[:1].upper() + text[1:]
