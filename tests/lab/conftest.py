"""A practice lab for each test. One that is asked for what it does not model fails the test that asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from labnode import LabNode
from operator_hands import Gpufix, Wizard

LONG = (
    "[incident]", "[label-already-set]", "[no-operator]", "[old-kubelet]", "[swap-from-a-unit]", "[wrong-order]",
    "test_up_status_shell_recover_and_down",
)  # fmt: skip
"""What the test command leaves out, for time, besides test_recover.py: whole walks. They are run with ``-m long``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if item.path.name == "test_recover.py" or any(name in item.name for name in LONG):
            item.add_marker(pytest.mark.long)


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
def cluster(tmp_path: Path, state: Path) -> Iterator[LabNode]:
    node = LabNode(tmp_path / "lab")
    yield node
    node.stop()
    assert node.unknown == [], "the lab was asked for what it does not model"


@pytest.fixture
def wizard(cluster: LabNode, state: Path) -> Iterator[Callable[..., Wizard]]:
    started: list[Wizard] = []

    def start(*arguments: str, **options: int) -> Wizard:
        access = ["-i", str(cluster.inventory), "--kubeconfig", str(cluster.kubeconfig)]
        started.append(Wizard("recover", "omen2", *(arguments or access), **options))
        return started[-1]

    yield start
    for one in started:
        if one.child.isalive():
            one.child.kill(9)


@pytest.fixture
def gpufix(cluster: LabNode, state: Path) -> Gpufix:
    return Gpufix(["-i", str(cluster.inventory), "--kubeconfig", str(cluster.kubeconfig)])
