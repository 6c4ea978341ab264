"""Hypothesis without deadlines: the machine's speed is no property. In CI the same examples come every time.

Asserts of the shared test bodies are shown like those of the tests themselves.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("recoveries", "operator_hands")

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
