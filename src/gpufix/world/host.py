"""What is asked of the node, and of the operator's inventory. Reading itself runs through ``world.playbooks``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpufix.language import t
from gpufix.world.playbooks import Access, ansible_config, ansible_environment

READ_NODE = "read-node.yml"


def default_inventory() -> str:
    """What Ansible reads where no inventory is given, in words; empty where nothing names one."""
    if named := os.environ.get("ANSIBLE_INVENTORY"):
        return named
    if (config := ansible_config()) is not None:
        return t("the inventory that {config} names", config=config)
    return "/etc/ansible/hosts" if Path("/etc/ansible/hosts").exists() else ""


def inventory_hosts(access: Access) -> list[str]:
    """The names in the inventory, for error messages; empty when it cannot be listed. Runs ansible-inventory."""
    command = [str(Path(sys.executable).parent / "ansible-inventory"), "--list"]
    for inventory in access.inventory:
        command += ["-i", inventory]
    environment = {**os.environ, **ansible_environment(access.ssh_timeout)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=environment)
        data = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    names = {name for group in data.values() if isinstance(group, dict) for name in group.get("hosts", [])}
    return sorted(names | set(data.get("_meta", {}).get("hostvars", {})))
