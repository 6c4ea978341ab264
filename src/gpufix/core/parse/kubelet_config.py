"""Whether the kubelet's own configuration lets it start with swap on. Pure.

``failSwapOn`` is true by default; the file is overridden by ``--config-dir`` drop-ins (files ending in .conf, in
lexical order) and those by the flag (kubernetes/kubernetes cmd/kubelet/app/server.go,
staging/src/k8s.io/kubelet/config/v1beta1/types.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from gpufix.core.parse.source import Unreadable, lines
from gpufix.language import mark, t
from gpufix.model import Evidence, JournalFacts, Observation, Snapshot, StartFacts

CONFIG, DROP_INS, FLAGS = "host/kubelet_config", "host/kubelet_config_d", "host/kubelet_flags"

_FILE = re.compile(r"#\s*file:\s*(?P<path>.+?)\s*$")
_FLAG = re.compile(r"""(?:^|[\s"'=])--?fail-swap-on(?:=["']?(?P<value>\w*))?(?=$|[\s"'])""")
_NOT_READ = re.compile(r"\s*#\s*/\S+: (?!No such file)")
_KEY = re.compile(r"\s*[\"']?failSwapOn[\"']?\s*:")
_GO_FALSE, _GO_TRUE = ("0", "f", "F", "false", "FALSE", "False"), ("", "1", "t", "T", "true", "TRUE", "True")

_REFUSED = re.compile(r"(?i)running with swap on is not supported")
_SWAP_SEEN = re.compile(r"\"Swap is on\"")
_PAST_THE_CHECK = re.compile(r"\"?Started kubelet\"?|Starting kubelet main sync loop|Creating Container Manager object")
_FLAG_SEEN = re.compile(r"Flag --fail-swap-on has been deprecated")


@dataclass(frozen=True)
class _Setting:
    """failSwapOn as one source sets it; ``value`` None where the source is read and does not set it."""

    value: bool | None
    evidence: tuple[Evidence, ...]


def parse_swap_allowed(snapshot: Snapshot, journal: Observation[JournalFacts]) -> Observation[bool]:
    """True when the kubelet may start with swap on; the configuration first, else what its last starts showed."""
    reasons: list[str] = []
    settings: dict[str, _Setting | None] = {}
    for path, parse in ((FLAGS, _flag), (DROP_INS, _drop_ins), (CONFIG, _config)):
        settings[path] = None
        if path not in snapshot.files:
            reasons.append(snapshot.why_unread(path))
            continue
        try:
            settings[path] = parse(path, snapshot.files[path])
        except Unreadable as error:
            reasons.append(str(error))
    flag, drop_ins, config = settings[FLAGS], settings[DROP_INS], settings[CONFIG]
    if flag is not None and flag.value is not None:
        return Observation.of(not flag.value, *flag.evidence)
    if flag is not None and drop_ins is not None and drop_ins.value is not None:
        return Observation.of(not drop_ins.value, *drop_ins.evidence)
    no_drop_ins = DROP_INS not in snapshot.files and DROP_INS not in snapshot.unread
    if flag is not None and config is not None and (drop_ins is not None or no_drop_ins):
        return Observation.of(config.value is False, *config.evidence)
    return _from_journal(journal, "; ".join(reasons))


def _flag(path: str, text: str) -> _Setting:
    """The last ``--fail-swap-on`` wins (spf13/pflag); alone it means true.

    Raises Unreadable where a comment says that a file with more flags could not be read; one that does not exist has
    none.
    """
    found = _Setting(None, ())
    for line in lines(path, text):
        if line.excerpt.lstrip().startswith("#"):
            if _NOT_READ.match(line.excerpt):
                said = line.excerpt.lstrip("# ")
                raise Unreadable(t("{line}: flags were not all read: {text}", line=line.source, text=said))
            continue
        for match in _FLAG.finditer(line.excerpt):
            value = match["value"] or ""
            if value not in _GO_FALSE + _GO_TRUE:
                raise Unreadable(t("{line}: --fail-swap-on has no boolean value", line=line.source))
            found = _Setting(value in _GO_TRUE, (line,))
    return found


def _config(path: str, text: str) -> _Setting:
    return _from_yaml(path, list(lines(path, text)), path)


def _drop_ins(path: str, text: str) -> _Setting:
    parts: dict[str, list[Evidence]] = {}
    current: list[Evidence] = []
    for line in lines(path, text):
        header = _FILE.match(line.excerpt)
        if header:
            current = parts.setdefault(header["path"], [])
        current.append(line)
    found = _Setting(None, ())
    for name in sorted(parts):
        setting = _from_yaml(path, parts[name], name)
        found = setting if setting.value is not None and name.endswith(".conf") else found
    return found


def _from_yaml(path: str, part: list[Evidence], name: str) -> _Setting:
    try:
        data = yaml.safe_load("\n".join(line.excerpt for line in part))
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        at = part[min(mark.line, len(part) - 1)].source if mark is not None and part else path
        raise Unreadable(t("{at}: {file} is not readable as YAML", at=at, file=name)) from None
    if data is not None and not isinstance(data, Mapping):
        raise Unreadable(t("{path}: {file} is no mapping", path=path, file=name))
    value = (data or {}).get("failSwapOn")
    if value is not None and not isinstance(value, bool):
        raise Unreadable(t("{path}: failSwapOn in {file} is no boolean", path=path, file=name))
    says = tuple(line for line in part if _KEY.match(line.excerpt))
    return _Setting(value, says[-1:])


def _from_journal(journal: Observation[JournalFacts], reason: str) -> Observation[bool]:
    """A start that was refused for swap proves "not allowed"; one that saw swap and went on proves "allowed"."""
    for start in reversed(journal.value.starts if journal.value is not None else ()):
        if start.fatal is not None and _REFUSED.search(start.fatal.excerpt):
            return Observation.of(False, start.fatal)
        tolerated = _went_on_with_swap(start)
        if tolerated:
            return Observation.of(True, *tolerated)
        flag = next((line for line in start.lines if _FLAG_SEEN.search(line.excerpt)), None)
        if flag is not None:
            words = mark("--fail-swap-on is set ({line}), its value was not read: {reason}")
            return Observation(None, (flag,), t(words, line=flag.source, reason=reason))
    return Observation.missing(reason)


def _went_on_with_swap(start: StartFacts) -> tuple[Evidence, ...]:
    """The check comes first (pkg/kubelet/cm/container_manager_linux.go): what is logged behind it passed it."""
    seen: Evidence | None = None
    for line in start.lines:
        if _SWAP_SEEN.search(line.excerpt):
            seen = line
        elif seen is not None and _PAST_THE_CHECK.search(line.excerpt):
            return (seen, line)
    return ()
