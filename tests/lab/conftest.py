"""A practice lab for each test. One that is asked for what it does not model fails the test that asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labnode import LabNode

LONG_FILES = (
    "test_by_hand.py", "test_continue.py", "test_kills.py", "test_korean.py", "test_left_behind.py", "test_recover.py",
    "test_unattended.py",
)  # fmt: skip
LONG = (
    "[incident]", "[label-already-set]", "[no-operator]", "[old-kubelet]", "[swap-from-a-unit]", "[wrong-order]",
    "test_up_status_shell_recover_and_down",
)  # fmt: skip
"""What the test command leaves out, for time, besides the files of shared tests: whole walks, run with ``-m long``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if item.path.name in LONG_FILES or any(name in item.name for name in LONG):
            item.add_marker(pytest.mark.long)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How often gpufix was killed, and where (test_kills.py)."""
    totals: dict[str, Counter[str]] = {}
    failed = False
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        found = dict(getattr(report, "user_properties", ()))
        if "test_kills" in getattr(report, "nodeid", ""):
            failed = failed or getattr(report, "failed", False)  # what was deselected is there too, and is no report
            if getattr(report, "when", "") == "call" and "kills" in found:
                totals.setdefault(found["through"], Counter()).update(found["kills"])
    for through, kinds in totals.items():
        told = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        end = "not every run resumed to the same end" if failed else "every run resumed to the same end"
        terminalreporter.write_line(f"kills: {kinds.total()} through {through} ({told}); {end}")


@pytest.fixture
def cluster(tmp_path: Path, state: Path) -> Iterator[LabNode]:
    node = LabNode(tmp_path / "lab")
    yield node
    node.stop()
    assert node.unknown == [], "the lab was asked for what it does not model"
