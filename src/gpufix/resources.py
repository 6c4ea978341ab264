"""Finds runbooks, playbooks, schemas and data: in the installed package, or in an editable install's repository."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gpufix.errors import ExitStatus, GpufixError

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    for candidate in (_PACKAGE / name, _PACKAGE.parent.parent / name):
        if candidate.is_dir():
            return candidate
    raise GpufixError(
        f"{name}/ is missing from this installation of gpufix ({_PACKAGE})", "install gpufix again", ExitStatus.INTERNAL
    )


def playbook_path(name: str) -> Path:
    """The file of playbook ``name``, as a real path: Ansible needs one."""
    return _folder("playbooks") / name


def playbook_names() -> list[str]:
    return sorted(path.name for path in _folder("playbooks").glob("*.yml"))


def runbook_paths() -> list[Path]:
    return sorted(_folder("runbooks").glob("*.yml"))


def read_text(name: str) -> str:
    """The text of a file under ``data/``: signatures.yml, runbook.schema.json."""
    return (_PACKAGE / "data" / name).read_text(encoding="utf-8")


def runbook_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(read_text("runbook.schema.json"))
    return schema


@cache
def fstab_module() -> ModuleType:
    """The fstab edit, from the one file that the Ansible module uses too (standard library only)."""
    path = _folder("playbooks") / "module_utils" / "gpufix_fstab.py"
    spec = importlib.util.spec_from_file_location("gpufix_fstab", path)
    if spec is None or spec.loader is None:
        raise GpufixError(f"{path} cannot be loaded", "install gpufix again", ExitStatus.INTERNAL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
