"""Ctrl-C, SIGTERM and SIGHUP while a run is under way: once asks to stop after the step, twice kills the step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupts:
    """While entered, signals only set flags. ``on_first`` is told once, so that the operator sees it was heard."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.stop = False
        self.kill = False
        self._on_first = on_first
        self._before: dict[int, object] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stop:
            self.kill = True
            return
        self.stop = True
        self._on_first()

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
