"""The real node for a test session.

These tests need root on Debian and about a minute to boot the node. Where that is not so they are skipped and say why;
with GPUFIX_REQUIRE_REALNODE=1, as in CI, they fail instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from node import RealNode


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
