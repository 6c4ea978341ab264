"""What the fixtures give, for annotations."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

RunModule = Callable[..., dict[str, Any]]
RunPlaybook = Callable[..., "subprocess.CompletedProcess[str]"]
