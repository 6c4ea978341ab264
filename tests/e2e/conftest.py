"""The real node for a test session, and the wizard in a real terminal.

These tests need root on Debian and about a minute to boot the node. Where that is not so they are skipped and say why;
with GPUFIX_REQUIRE_REALNODE=1, as in CI, they fail instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from node import RealNode
from operator_hands import Gpufix, Wizard


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.realnode)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RealNode]:
    required = os.environ.get("GPUFIX_REQUIRE_REALNODE") == "1"
    if os.geteuid() != 0:
        if required:
            pytest.fail("the real node needs root")
        pytest.skip("the real node needs root")
    node = RealNode(say=lambda message: print(f"realnode: {message}", file=sys.stderr))
    keep = os.environ.get("GPUFIX_KEEP_REALNODE") == "1"
    try:
        node.up()
        yield node
    finally:
        if not keep:
            node.down()


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
def access(cluster: RealNode) -> list[str]:
    return ["-i", str(cluster.inventory), "--kubeconfig", str(cluster.kubeconfig)]


@pytest.fixture
def wizard(cluster: RealNode, state: Path, access: list[str]) -> Iterator[Callable[..., Wizard]]:
    started: list[Wizard] = []

    def start(*arguments: str, **options: int) -> Wizard:
        started.append(Wizard("recover", "omen2", *(arguments or access), **options))
        return started[-1]

    yield start
    for one in started:
        if one.child.isalive():
            one.child.kill(9)


@pytest.fixture
def gpufix(cluster: RealNode, state: Path, access: list[str]) -> Gpufix:
    return Gpufix(access)
