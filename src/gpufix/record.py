"""Where a run tells what it does: the journal, which must hold, and the listeners, which may fail."""

from __future__ import annotations

from typing import Any, Protocol

from gpufix.core.render.notice import Moment, Notice, notice_as_data
from gpufix.language import t
from gpufix.world.events import EventName, EventStream
from gpufix.world.notify import Notifier


class Journals(Protocol):
    def write(self, event: str, **fields: Any) -> None: ...


class Listener(Protocol):
    """Hears every event of a run. Never raises."""

    def event(self, event: EventName, fields: dict[str, Any]) -> None: ...


class Record:
    """``write`` goes to the journal first, then to the listeners; ``tell`` goes to the listeners alone."""

    def __init__(self, journal: Journals, *listeners: Listener) -> None:
        self._journal = journal
        self._listeners = listeners

    def write(self, event: EventName, **fields: Any) -> None:
        """Raises JournalError: what is not on record is not done."""
        self._journal.write(event, **fields)
        self.tell(event, **fields)

    def tell(self, event: EventName, **fields: Any) -> None:
        for listener in self._listeners:
            listener.event(event, fields)


class Streaming:
    """Passes every event on to a stream of JSON lines."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream

    def event(self, event: EventName, fields: dict[str, Any]) -> None:
        self.stream.write(event, **fields)


class Notifying:
    """Tells a webhook when a run starts, when a gate stands open for a person, and how the run ended."""

    def __init__(self, notifier: Notifier, node: str) -> None:
        self.notifier = notifier
        self._node = node
        self._runbook = ""
        self._run = ""

    def event(self, event: EventName, fields: dict[str, Any]) -> None:
        if event == "run-start":
            self._runbook, self._run = str(fields.get("runbook", "")), str(fields.get("run", ""))
            self._post(Moment.STARTED, line=t("root cause: {cause}", cause=fields.get("root_cause", t("unknown"))))
        elif event == "waiting" and fields.get("on") == "gate":
            self._post(Moment.WAITING, line=t("the gate of {step} stands open", step=fields.get("step")))
        elif event == "run-end":
            self._post(
                Moment.FINISHED,
                status=str(fields.get("exit_status", "")),
                line=str(fields.get("line", "")),
                verdicts=fields.get("verdicts", {}),
                changes=fields.get("changes", ()),
            )

    def _post(self, moment: Moment, **fields: Any) -> None:
        notice = Notice(moment, self._node, self._runbook, self._run, **fields)
        self.notifier.post(notice_as_data(notice))
