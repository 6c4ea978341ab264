# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""The kubelet's unit, its arguments and its configuration files, as systemd and the disk have them now.

Standard library only; functions without a ``host`` are pure.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import Dict, List, NamedTuple, Tuple

from ansible.module_utils.gpufix_host import Host, Text, show_blocks
from ansible.module_utils.gpufix_redact import MARK, SECRET_FLAG

UNITS = (
    "kubelet.service",
    "k3s-agent.service",
    "k3s.service",
    "rke2-agent.service",
    "rke2-server.service",
    "snap.microk8s.daemon-kubelite.service",
)
DEFAULT_CONFIG = "/var/lib/kubelet/config.yaml"
_LIVE = ("active", "activating", "reloading", "deactivating", "failed")
_WANTED = ("enabled", "enabled-runtime", "static", "indirect", "generated", "alias", "linked")
FATAL = re.compile(
    r"(?:^F\d{4} \d\d:)|\"?command failed\"? err=|failed to run kubelet|unknown flag|^error: |^panic: |level=fatal"
    r"|^fatal error: |is not supported, please disable swap|failed to load kubelet config file",
    re.IGNORECASE,
)
_JOURNAL_LINE = re.compile(r"^\S+ \S+ (?P<who>[^\s\[:]+(?: [^\s\[:]+)*?)(?:\[\d+\])?: (?P<message>.*)$")
_BOUNDARY = re.compile(
    r"^(?:Stopped |Stopping |Failed to start )|: (?:Main process exited|Failed with result|Scheduled restart"
    r"|Unit entered|Service hold-off time over|Deactivated|Succeeded|Start request repeated)"
)


class Unit(NamedTuple):
    """A unit and the states that systemd gave for it; ``name`` empty with the reason in ``why``."""

    name: str
    load: str = ""
    active: str = ""
    sub: str = ""
    file_state: str = ""
    why: str = ""

    @property
    def running_or_about_to(self) -> bool:
        """Alive, or brought to life by systemd with nobody asking (auto-restart)."""
        return self.active in ("active", "activating", "reloading", "deactivating") or self.sub.startswith(
            "auto-restart"
        )


class Argument(NamedTuple):
    """One argument of the kubelet and the file (or systemd) that it comes from."""

    text: str
    source: str


class Kubelet(NamedTuple):
    """All that is read about the kubelet's set-up. ``show`` is the raw ``systemctl show``."""

    unit: Unit
    show: Text
    arguments: Tuple[Argument, ...]
    notes: Tuple[str, ...]
    flags: Text
    config: Text
    config_d: Text
    endpoint: str


# --- the unit -------------------------------------------------------------------------------------


def find_unit(host: Host, wanted: str = "") -> Unit:
    """The unit that runs the kubelet here, or ``wanted``. The plain kubelet comes first where several would do."""
    candidates = [unit_name(wanted)] if wanted else list(UNITS)
    done = host.run(
        ["systemctl", "show"]
        + candidates
        + ["-p", "Id", "-p", "LoadState", "-p", "ActiveState", "-p", "SubState", "-p", "UnitFileState"]
    )
    if done.why:
        return Unit("", why=done.why)
    return choose_unit(show_blocks(done.out), candidates)


def unit_name(name: str) -> str:
    return name if name.endswith(".service") else name + ".service"


def choose_unit(blocks: List[Dict[str, str]], candidates: List[str]) -> Unit:
    """Pure. Loaded and (enabled or alive) before loaded before masked; then the order of ``candidates``."""
    ranked = []
    for block in blocks:
        unit = Unit(
            block.get("Id", ""),
            block.get("LoadState", ""),
            block.get("ActiveState", ""),
            block.get("SubState", ""),
            block.get("UnitFileState", ""),
        )
        if unit.load in ("", "not-found") or not unit.name:
            continue
        if unit.load == "masked" or unit.file_state.startswith("masked"):
            rank = 2
        elif unit.file_state in _WANTED or unit.active in _LIVE:
            rank = 0
        else:
            rank = 1
        order = candidates.index(unit.name) if unit.name in candidates else len(candidates)
        ranked.append((rank, order, unit))
    if not ranked:
        return Unit("", why="no kubelet unit found; looked for {}".format(", ".join(candidates)))
    return min(ranked, key=lambda entry: entry[:2])[2]


# --- the journal ----------------------------------------------------------------------------------


def trim_journal(text: str, starts: int = 2, limit: int = 5000) -> str:
    """Pure. The last ``starts`` starts whole, and every fatal line from before them; at most ``limit`` lines.

    Where the limit bites, the fatal lines and the newest lines are kept. A text with fewer starts is kept whole.
    """
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    begins = start_lines(lines)
    first = begins[-starts] if len(begins) >= starts else 0
    kept = [line for index, line in enumerate(lines) if index >= first or is_fatal(line)]
    if len(kept) > limit:
        fatal = [index for index, line in enumerate(kept) if is_fatal(line)][-(limit // 2) :]
        other = sorted(set(range(len(kept))) - set(fatal))[-(limit - len(fatal)) :]
        kept = [kept[index] for index in sorted(fatal + other)]
    return "".join(line + "\n" for line in kept)


def start_lines(lines: List[str]) -> List[int]:
    """Pure. Where starts begin: at systemd's ``Starting``, or at its ``Started`` when no ``Starting`` came before."""
    found: List[int] = []
    starting = False
    for index, line in enumerate(lines):
        if " systemd[" not in line:
            continue
        match = _JOURNAL_LINE.match(line)
        if not match or match.group("who") != "systemd":
            continue
        message = match.group("message")
        if message.startswith("Starting "):
            found.append(index)
            starting = True
        elif message.startswith("Started "):
            if not starting:
                found.append(index)
            starting = False
        elif _BOUNDARY.search(message):
            starting = False
    return found


def is_fatal(line: str) -> bool:
    """Pure. The line says why a kubelet ended."""
    match = _JOURNAL_LINE.match(line)
    if not match or match.group("who") == "systemd":
        return False
    return bool(FATAL.search(match.group("message")))


# --- the arguments --------------------------------------------------------------------------------


def exec_lines(value: str) -> List[List[str]]:
    """Pure. The argument lists, program first, of ``ExecStart`` as ``systemctl show`` prints it."""
    lists = []
    for part in value.split("\n"):
        match = re.search(r"argv\[\]=(.*?) ; (?:ignore_errors|flags)=", part)
        if match:
            lists.append(_words(match.group(1)))
    return lists


def parse_environment(value: str) -> Dict[str, str]:
    """Pure. ``Environment`` as ``systemctl show`` prints it: quoted today, with ``\\x20`` or bare spaces before."""
    result: Dict[str, str] = {}
    name = ""
    for word in _words(re.sub(r"\\x([0-9a-fA-F]{2})", _character, value.replace("\n", " "))):
        match = re.match(r"([A-Za-z_]\w*)=(.*)$", word, re.DOTALL)
        if match:
            name = match.group(1)
            result[name] = match.group(2)
        elif name:
            result[name] += " " + word
    return result


def _character(match: re.Match[str]) -> str:
    character = chr(int(match.group(1), 16))
    return "\\" + character if character in "\"'\\" else character


def parse_environment_file(text: str) -> Dict[str, str]:
    """Pure. An EnvironmentFile of systemd: ``NAME=value`` lines, quotes, comments, lines continued by a backslash."""
    result: Dict[str, str] = {}
    for line in (whole.strip() for whole in re.sub(r"\\\n", "", text).split("\n")):
        if not line or line[0] in "#;":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            inner = value[1:-1]
            value = inner if value[0] == "'" else re.sub(r"\\(.)", r"\1", inner)
        result[name.strip()] = value
    return result


def expand(words: List[str], variables: Dict[str, Tuple[str, str]], source: str) -> Tuple[List[Argument], List[str]]:
    """Pure. ``words`` with systemd's ``$NAME`` (split into words) and ``${NAME}`` (not split) filled in.

    ``variables`` maps a name to its value and where that stands. Returns the arguments, and notes on names not set.
    """
    arguments: List[Argument] = []
    notes: List[str] = []
    for word in words:
        whole = re.match(r"^\$([A-Za-z_]\w*)$", word)
        if whole:
            if whole.group(1) not in variables:
                notes.append(f"${whole.group(1)} is not set")
                continue
            value, where = variables[whole.group(1)]
            arguments += [Argument(text, where) for text in _words(value)]
            continue
        where = source

        def fill(match: re.Match[str]) -> str:
            nonlocal where
            value, where = variables.get(match.group(1), ("", where))
            return value

        arguments.append(Argument(re.sub(r"\$\{([A-Za-z_]\w*)\}", fill, word).replace("$$", "$"), where))
    return arguments, notes


def flag(arguments: List[Argument], name: str) -> str:
    """Pure. The value of ``--name``, the last one given, empty when it is not among ``arguments``."""
    found = ""
    for index, argument in enumerate(arguments):
        bare = argument.text.lstrip("-") if argument.text.startswith("-") else ""
        if bare.partition("=")[0] != name:
            continue
        if "=" in bare:
            found = bare.partition("=")[2]
        elif index + 1 < len(arguments) and not arguments[index + 1].text.startswith("-"):
            found = arguments[index + 1].text
    return found.strip("\"'")


def kubelet_args(text: str) -> List[str]:
    """Pure. The values of ``kubelet-arg`` in the configuration file of k3s or RKE2, as flags."""
    values: List[str] = []
    inside = False
    for line in text.split("\n"):
        key = re.match(r"""^["']?kubelet-arg["']?\+?\s*:\s*(.*)$""", line)
        if key:
            rest = re.sub(r"\s+#.*$", "", key.group(1)).strip()
            inside = not rest
            if rest.startswith("["):
                values += [item.strip() for item in rest.strip("[]").split(",") if item.strip()]
            elif rest:
                values.append(rest)
            continue
        item = re.match(r"^\s*-\s+(.*)$", line)
        if inside and item:
            values.append(re.sub(r"\s+#.*$", "", item.group(1)).strip())
        elif line.strip() and not line.lstrip().startswith("#") and not item:
            inside = False
    return ["--" + value.strip("\"'").lstrip("-") for value in values]


def _words(text: str) -> List[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


# --- all of it ------------------------------------------------------------------------------------


def read_kubelet(host: Host, wanted: str = "") -> Kubelet:
    """The kubelet's unit, arguments and configuration files. Each comes with its reason where it cannot be read."""
    unit = find_unit(host, wanted)
    if unit.name:
        done = host.run(["systemctl", "show", unit.name])
        show = Text(None, done.why) if done.why else Text(done.out)
    else:
        show = Text(None, unit.why)
    if show.text is None:
        arguments: List[Argument] = []
        notes: List[str] = []
        flags = Text(None, show.why)
    else:
        arguments, notes = read_arguments(host, unit.name, show_blocks(show.text))
        flags = Text(format_arguments(arguments, notes))
    config_path = flag(arguments, "config") or DEFAULT_CONFIG
    config = host.read(config_path)
    config_d = _read_config_folder(host, unit.name, flag(arguments, "config-dir"), show.text is not None)
    endpoint = flag(arguments, "container-runtime-endpoint") or config_value(
        config.text or "", "containerRuntimeEndpoint"
    )
    return Kubelet(
        unit, show, tuple(arguments), tuple(notes), flags, config, config_d, re.sub(r"^unix://", "", endpoint)
    )


def config_value(text: str, key: str) -> str:
    """Pure. A top-level scalar of a kubelet configuration, YAML or JSON, empty when it is not there."""
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text).get(key, "")
            return value if isinstance(value, str) else json.dumps(value)
        except (ValueError, AttributeError):
            pass
    match = re.search(rf"""^["']?{re.escape(key)}["']?[ \t]*:[ \t]*(.+?)[ \t]*(?:[ \t]#.*)?$""", text, re.MULTILINE)
    return match.group(1).strip("\"'") if match else ""


def read_arguments(host: Host, unit: str, blocks: List[Dict[str, str]]) -> Tuple[List[Argument], List[str]]:
    show = blocks[0] if blocks else {}
    source = show.get("FragmentPath", "") or unit
    drop_ins = show.get("DropInPaths", "").split()
    if drop_ins:
        source = drop_ins[-1] if len(drop_ins) == 1 else f"{source} and its drop-ins"
    variables = {name: (value, source) for name, value in parse_environment(show.get("Environment", "")).items()}
    notes: List[str] = []
    for entry in show.get("EnvironmentFiles", "").split("\n"):
        match = re.match(r"^(.*?)(?: \(ignore_errors=(\w+)\))?$", entry.strip())
        if not match or not match.group(1):
            continue
        path = match.group(1)
        content = host.read(path)
        if content.text is None:
            notes.append(content.why)
            continue
        variables.update({name: (value, path) for name, value in parse_environment_file(content.text).items()})
    arguments: List[Argument] = []
    for words in exec_lines(show.get("ExecStart", "")):
        more, missing = expand(words[1:], variables, source)
        arguments += more
        notes += missing
    arguments += _distribution_arguments(host, unit, arguments)
    return arguments, notes


def _distribution_arguments(host: Host, unit: str, arguments: List[Argument]) -> List[Argument]:
    """What k3s, RKE2 and MicroK8s hand on to the kubelet inside them."""
    more: List[Argument] = []
    family = "k3s" if unit.startswith("k3s") else "rke2" if unit.startswith("rke2") else ""
    if family:
        for path in [f"/etc/rancher/{family}/config.yaml"] + _conf_files(
            host, f"/etc/rancher/{family}/config.yaml.d", ".yaml"
        ):
            text = host.read(path).text
            if text is not None:
                more += [Argument(value, path) for value in kubelet_args(text)]
        for index, argument in enumerate(arguments):
            if argument.text.startswith("--kubelet-arg="):
                more.append(Argument("--" + argument.text.partition("=")[2].lstrip("-"), "--kubelet-arg"))
            elif argument.text == "--kubelet-arg" and index + 1 < len(arguments):
                more.append(Argument("--" + arguments[index + 1].text.lstrip("-"), "--kubelet-arg"))
    if unit.startswith("snap.microk8s"):
        path = "/var/snap/microk8s/current/args/kubelet"
        for line in (host.read(path).text or "").split("\n"):
            if line.strip().startswith("-"):
                more += [Argument(word, path) for word in _words(line)]
    return more


def format_arguments(arguments: List[Argument], notes: List[str]) -> str:
    """Pure. One argument a line, after ``# from PATH`` where the source changes. A secret of its own line is out."""
    lines = [f"# {note}" for note in notes]
    source, before = "", ""
    for argument in arguments:
        if argument.source != source:
            source = argument.source
            lines.append(f"# from {source}")
        secret = SECRET_FLAG.match(before) and not argument.text.startswith("-")
        lines.append(MARK if secret else argument.text.replace("\n", " "))
        before = argument.text
    return "".join(line + "\n" for line in lines) or "# the kubelet is started without arguments\n"


def _read_config_folder(host: Host, unit: str, folder: str, flags_known: bool) -> Text:
    if not folder:
        for family in ("k3s", "rke2"):
            default = f"/var/lib/rancher/{family}/agent/etc/kubelet.conf.d"
            if unit.startswith(family) and host.exists(default):
                folder = default
    if not folder:
        if not flags_known:
            return Text(None, "the kubelet's flags are not known, and they name the folder")
        return Text("# the kubelet is started without --config-dir\n")
    try:
        host.names(folder)
    except OSError as error:
        return Text(None, f"{folder}: {error.strerror or error}")
    parts = []
    for path in _conf_files(host, folder, ".conf"):
        content = host.read(path)
        if content.text is None:
            return Text(None, content.why)
        parts.append(
            "# file: {}\n{}".format(path, content.text if content.text.endswith("\n") else content.text + "\n")
        )
    return Text("".join(parts) or f"# no .conf file in {folder}\n")


def _conf_files(host: Host, folder: str, ending: str) -> List[str]:
    """The files below ``folder`` in the order in which a kubelet reads them."""
    found = []
    for place, folders, names in os.walk(host.path(folder)):
        folders.sort()
        for name in names:
            if name.endswith(ending):
                found.append(os.path.join(folder, os.path.relpath(os.path.join(place, name), host.path(folder))))
    return sorted(found)
