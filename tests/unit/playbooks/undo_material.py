"""What gpufix keeps of a step so that it can be undone, as the restore playbooks take it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any


def material_of(swap: Mapping[str, Any]) -> dict[str, Any]:
    """``gpufix_restore`` of what gpufix_swap returned, before it is packed."""
    fstab = {"backup": swap["backup"], "sha256": swap["fstab_sha256"], "sha256_after": swap["fstab_sha256_after"]}
    lists = {name: swap[name] for name in ("devices", "units", "services")}
    return {"fstab": fstab if swap["backup"] else None, **lists}


def packed(material: Any) -> str:
    return base64.b64encode(json.dumps(material).encode()).decode()
