"""What the tests of both worlds share. The lab (tests/lab) and the real node (tests/e2e) each bring ``cluster``."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from operator_hands import Gpufix, Wizard

# One commit, one verdict: CI tries the same examples each time. GPUFIX_HYPOTHESIS=random looks for new ones.
settings.register_profile("gpufix", derandomize=os.environ.get("GPUFIX_HYPOTHESIS") != "random")
settings.load_profile("gpufix")
# Words are compared in English, whatever the locale of the machine; a test of another language asks for it.
os.environ["LC_ALL"] = "C.UTF-8"


DEV_EXTRA = ("babel", "hatchling", "pymarkdown.api", "pypdf", "weasyprint")
"""What tests marked ``dev`` need. The README's test command installs none of it."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs the dev extra where that is not installed; with GPUFIX_REQUIRE_DEV=1, as in CI, it fails."""
    if item.get_closest_marker("dev") is None or (missing := _missing()) == "":
        return
    if os.environ.get("GPUFIX_REQUIRE_DEV") == "1":
        pytest.fail(f"the dev extra is required: {missing}")
    pytest.skip(f"for those who work on gpufix (pip install -e '.[dev]'): {missing}")


@functools.cache
def _missing() -> str:
    for name in DEV_EXTRA:
        try:
            importlib.import_module(name)
        except (ImportError, OSError) as error:  # OSError: weasyprint without the libraries of the system
            return f"{name}: {' '.join(str(error).split())[:200]}"
    return ""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs of this test keep their journals."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    for name in ("KUBECONFIG", "ANSIBLE_CONFIG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def access(cluster: Any) -> list[str]:
    """The options that point gpufix at the world of this test."""
    return ["-i", str(cluster.inventory), "--kubeconfig", str(cluster.kubeconfig)]


@pytest.fixture
def wizard(state: Path, access: list[str]) -> Iterator[Callable[..., Wizard]]:
    started: list[Wizard] = []

    def start(*arguments: str, verb: str = "recover", **options: int) -> Wizard:
        started.append(Wizard(verb, "omen2", *(arguments or access), **options))
        return started[-1]

    yield start
    for one in started:
        if one.child.isalive():
            one.child.kill(9)


@pytest.fixture
def gpufix(state: Path, access: list[str]) -> Gpufix:
    return Gpufix(access)
