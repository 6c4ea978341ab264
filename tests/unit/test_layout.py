"""How the tests themselves are laid out."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_test_files_that_run_together_have_one_name() -> None:
    """pytest takes the second for the first, and stops: each folder of tests is a flat namespace."""
    files = [path for folder in ("unit", "lab", "shared") for path in (TESTS / folder).rglob("*.py")]
    names = [path.name for path in files if path.name != "conftest.py"]
    assert len(names) > 40
    assert sorted({name for name in names if names.count(name) > 1}) == []
