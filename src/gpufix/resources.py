"""Finds runbooks, playbooks, schemas and data: in the installed package, or in an editable install's repository."""

from __future__ import annotations

import importlib.util
import json
import stat
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gpufix.errors import ExitStatus, GpufixError

LARGEST = 16 << 20
"""Bytes of a file that a person gives: a runbook, a scenario, answers, a plan."""
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


def module_paths() -> list[Path]:
    """The modules of the playbooks, and the code that these share."""
    return sorted(path for name in ("library", "module_utils") for path in (_folder("playbooks") / name).glob("*.py"))


def runbook_paths(folder: Path | None = None) -> list[Path]:
    """The runbooks of gpufix, or those in ``folder``. Raises GpufixError (status 2) where there are none."""
    found = sorted((folder or _folder("runbooks")).glob("*.yml"))
    if not found:
        raise GpufixError(f"no runbook (*.yml) in {folder}", "give a folder that holds runbooks")
    return found


def read_file(path: Path) -> str:
    """The text of ``path``. Raises GpufixError (status 2) when it cannot be read as UTF-8."""
    try:
        status = path.stat()
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode) or status.st_size > LARGEST:
            reason = "too large" if status.st_size > LARGEST else "no file"
            raise GpufixError(f"{path}: {reason}", "give a file that is there and can be read")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise GpufixError(f"{path}: {error.strerror}", "give a file that is there and can be read") from None
    except UnicodeDecodeError as error:
        raise GpufixError(f"{path}: not UTF-8 at byte {error.start}", "save it as UTF-8") from None


def read_text(name: str) -> str:
    """The text of a file under ``data/``: signatures.yml, runbook.schema.json."""
    return (_PACKAGE / "data" / name).read_text(encoding="utf-8")


def scenario_paths() -> list[Path]:
    """The scenarios of the practice lab."""
    return sorted((_PACKAGE / "data" / "scenarios").glob("*.yml"))


def scenario_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(read_text("scenario.schema.json"))
    return schema


def runbook_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(read_text("runbook.schema.json"))
    return schema


def plan_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(read_text("plan.schema.json"))
    return schema


def result_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(read_text("result.schema.json"))
    return schema


def fstab_module() -> ModuleType:
    """The fstab edit, from the one file that the Ansible module uses too (standard library only)."""
    return _module_util("gpufix_fstab")


def swaps_module() -> ModuleType:
    """What makes swap and how each is switched off, from the file that the Ansible modules use (likewise)."""
    return _module_util("gpufix_swaps")


def template_texts(folder: Path | None = None) -> dict[str, tuple[str, str]]:
    """The templates of documents, gpufix's or those in ``folder``: name -> its text, and the file for mistakes.

    Raises GpufixError (status 2) where ``folder`` holds none, or one that cannot be read.
    """
    paths = sorted((folder or _PACKAGE / "data" / "templates").glob("*.j2"))
    if not paths:
        raise GpufixError(f"no template (*.j2) in {folder}", "give a folder that holds templates")
    return {path.name: (read_file(path), str(path)) for path in paths}


@cache
def _module_util(name: str) -> ModuleType:
    path = _folder("playbooks") / "module_utils" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GpufixError(f"{path} cannot be loaded", "install gpufix again", ExitStatus.INTERNAL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
