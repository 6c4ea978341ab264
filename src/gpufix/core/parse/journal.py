"""The kubelet's journal as a list of starts: when each began, what it said, what ended it. Pure.

The tail alone does not tell: a fatal line can be followed by hundreds of lines of goroutine dump (kubelet 1.20), and
the last starts of a crash loop can be silent (journald cannot always assign a short-lived process's last words to its
unit). So the journal is cut into starts, by systemd's own lines and by process id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gpufix.core.parse.source import Unreadable, lines
from gpufix.core.parse.times import parse_time
from gpufix.language import t
from gpufix.model import Evidence, JournalFacts, Observation, StartFacts

_LINE = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d\S*) \S+ "
    r"(?P<who>[^\s\[:]+)(?:\[(?P<pid>\d+)\])?: ?(?P<said>.*)"
)
_REBOOT = re.compile(r"-- (?:Boot [0-9a-f]{32}|Reboot) --")

# What systemd writes about a unit, from v229 to v257 (systemd/systemd src/core/service.c, unit.c, job.c).
_STARTING = re.compile(r"Starting .")
_STARTED = re.compile(r"Started .")
_EXITED = re.compile(r"Main process exited, code=(?P<code>\w+), status=(?P<status>\S+)")
_FAILED = re.compile(
    r"Failed with result|entered failed state|Control process exited|Failed at step|Failed to start |Failed to run "
    r"|Failed to execute|start operation timed out|Start request repeated too quickly|start-limit"
)
_RESTART = re.compile(r"Scheduled restart job|scheduling restart")
_STOPPING = re.compile(r"Stopping .")
_STOPPED = re.compile(r"Stopped .|Deactivated successfully|\.service: Succeeded\.|Unit \S+ has finished shutting down")

_FATAL = re.compile(
    r"F\d{4} \d\d:|(?:E\d{4} .*\] )?\"command failed\" err=|(?:E\d{4} .*\] )?\"Failed to run kubelet\" err="
    r"|(?:[EF]\d{4} .*\] )?(?:[Ee]rror: )?[Ff]ailed to run Kubelet|[Ee]rror: |time=.* level=fatal "
    r"|panic: |fatal error: |E\d{4} .*\] \"?Failed to (?:listen and serve|start ContainerManager|start cAdvisor)"
)
"""A kubelet's last words: klog's F level, cobra's ``Error:``, the wrappers of cmd/kubelet/app/server.go and
component-base/cli/run.go by version, what k3s and rke2 write around them, and the errors after which it exits."""
_ERROR = re.compile(r"E\d{4} \d\d:")
_KLOG = re.compile(r"[IWEF]\d{4} \d\d:")
_AFTER_THE_END = 2
"""So many lines other threads may still write between the fatal line and the exit."""


@dataclass
class _Start:
    at: datetime | None
    pid: str = ""
    announced: bool = False
    """Only ``Starting`` so far: a ``Started`` belongs to the same start."""
    how: str = ""
    exit_status: str = ""
    ended: bool = False
    lines: list[Evidence] = field(default_factory=list)
    words: list[tuple[str, Evidence]] = field(default_factory=list)
    """What its processes said, without the journal's prefix."""

    def end(self, how: str) -> None:
        self.ended = True
        self.how = self.how or how

    def _last_words(self) -> Evidence | None:
        """The last line that is a kubelet's way to end. One that was followed by more of its log did not end it."""
        after = 0
        for said, line in reversed(self.words):
            if _FATAL.match(said):
                return line if self.ended or after <= _AFTER_THE_END else None
            after += bool(_KLOG.match(said))
        return None

    def facts(self) -> StartFacts:
        fatal = None if self.how in ("stop", "reboot") else self._last_words()
        if fatal is None and self.how == "failure" and self.words and _ERROR.match(self.words[-1][0]):
            fatal = self.words[-1][1]
        how = self.how or ("failure" if fatal else "")
        return StartFacts(self.at, fatal, self.ended or fatal is not None, tuple(self.lines), how, self.exit_status)


def parse_journal(path: str, text: str) -> Observation[JournalFacts]:
    """JournalFacts of ``journalctl -u UNIT -o short-iso``, oldest start first.

    Raises Unreadable when no line of it is a journal's.
    """
    read = [(line, _LINE.match(line.excerpt)) for line in lines(path, text)]
    if not any(match for _, match in read):
        said = next((line.excerpt.strip() for line, _ in read if line.excerpt.strip()), "")
        why = t("{path}: no line of a journal in it", path=path)
        if said:
            why = t("{path}: no line of a journal in it ({text})", path=path, text=said[:80])
        raise Unreadable(why)
    reader = _Reader(_main_process(match for _, match in read if match))
    for line, match in read:
        reader.feed(line, match)
    return Observation.of(JournalFacts(tuple(start.facts() for start in reader.starts), reader.held))


def _main_process(matches: Iterable[re.Match[str]]) -> str:
    """The name under which the unit's own process writes: the most frequent one that is not systemd."""
    names = Counter(match["who"] for match in matches if match["pid"] and not _of_systemd(match["who"]))
    return names.most_common(1)[0][0] if names else ""


def _of_systemd(who: str) -> bool:
    return who == "systemd"


class _Reader:
    def __init__(self, main: str) -> None:
        self.main = main
        self.starts: list[_Start] = []
        self.held = False
        self.restart_due = False
        self.by_pid: dict[str, _Start] = {}

    def feed(self, line: Evidence, match: re.Match[str] | None) -> None:
        if match is None:
            if _REBOOT.match(line.excerpt):
                self._reboot()
            elif self.starts and line.excerpt.strip():
                self.starts[-1].lines.append(line)
            return
        at = parse_time(match["at"])
        if _of_systemd(match["who"]):
            self._systemd(line, match["said"], at)
        else:
            self._process(line, match, at)

    def _begin(self, at: datetime | None, *, announced: bool = False) -> _Start:
        if self.starts and not self.starts[-1].ended:
            self.starts[-1].ended = True
        self.starts.append(_Start(at, announced=announced))
        self.held = self.restart_due = False
        return self.starts[-1]

    def _systemd(self, line: Evidence, said: str, at: datetime | None) -> None:
        last = self.starts[-1] if self.starts else None
        if _STARTING.match(said):
            last = self._begin(at, announced=True)
        elif _STARTED.match(said):
            if last is None or last.ended or not last.announced:
                last = self._begin(at)
            last.announced = False
        elif last is None:
            last = self._begin(None)
        last.lines.append(line)
        self._outcome(last, said)

    def _outcome(self, last: _Start, said: str) -> None:
        exited = _EXITED.search(said)
        if exited:
            last.exit_status = exited["status"]
            stopped_well = self.held or (exited["code"], exited["status"]) == ("exited", "0/SUCCESS")
            last.end("stop" if stopped_well else "failure")
        elif _FAILED.search(said):
            last.end("failure")
        elif _RESTART.search(said):
            last.end("failure")
            self.restart_due, self.held = True, False
        elif _STOPPING.match(said):
            self.held, self.restart_due = True, False
        elif _STOPPED.search(said) and not self.restart_due:
            self.held = True
            last.end("stop")

    def _process(self, line: Evidence, match: re.Match[str], at: datetime | None) -> None:
        start = self._owner(match, at)
        start.lines.append(line)
        start.words.append((match["said"], line))

    def _owner(self, match: re.Match[str], at: datetime | None) -> _Start:
        """The start that this process belongs to. A late line, after its start ended, still finds it by its id."""
        pid = match["pid"] or ""
        last = self.starts[-1] if self.starts else None
        if match["who"] != self.main or not pid:
            return last if last is not None else self._begin(None)
        previous = self.starts[-2] if len(self.starts) > 1 else None
        if last is not None and last.pid == pid:
            return last
        if last is not None and not last.pid and not last.ended:
            if previous is not None and self.by_pid.get(pid) is previous:
                return previous
            last.pid = pid
        elif pid in self.by_pid:
            return self.by_pid[pid]
        elif last is not None and not last.pid:
            last.pid = pid  # the last words of a start came after systemd's own line on its exit
        else:
            last = self._begin(at if last is not None else None)
            last.pid = pid
        self.by_pid[pid] = last
        return last

    def _reboot(self) -> None:
        if self.starts:
            self.starts[-1].end("reboot")
        self.by_pid.clear()
        self.restart_due = False
