"""The values that a printed runbook's commands may name, ``{{ node }}`` and the like, and how they are filled in. Pure.

What is filled in comes from the cluster and from the node, and may be hostile: it is quoted for the shell here, by
plain code. No template language ever sees it. Where a value is not known, or the document is for no node in
particular, a shell variable stands in its place, and the document says what to set it to.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpufix.language import mark
from gpufix.text import safe


@dataclass(frozen=True, slots=True)
class Name:
    """A value that commands may name. ``assign`` is shell text: what a person without the value begins with, as the
    right side of an assignment. ``plural``: there may be any number, ``for_each`` goes over them, and the shell
    variable of this name holds them."""

    meaning: str
    assign: str
    plural: str = ""


_CTR_RUNNING = (
    "$(if command -v crictl >/dev/null 2>&1; then sudo crictl ps | awk '/nvidia-vfio-manager/ { print $1 }'; "
    'else sudo ctr -n k8s.io containers list -q \'labels."io.cri-containerd.kind"==container,'
    'labels."io.kubernetes.pod.name"~=^nvidia-vfio-manager-\'; fi)'
)
_SHOW = "systemctl show {} -p Id,FragmentPath,SourcePath,UnitFileState"
_PICK = """awk -F= '{{ v[$1] = $2 }} $1 == "UnitFileState" && {} {{ print v["{}"] }}'"""
_OWN = 'v["FragmentPath"] ~ "^/etc/systemd/system/"'
_LEFT = '$2 !~ "^(enabled|disabled|masked)"'


def _units(condition: str, what: str, units: str = "'*.swap' --all") -> str:
    """Shell text for the units of which ``condition`` holds; systemctl prints UnitFileState last."""
    return f'"$({_SHOW.format(units)} | {_PICK.format(condition, what)})"'


NAMES: Mapping[str, Name] = {
    "node": Name(mark("the node's name, as kubectl get nodes shows it"), ""),
    "host": Name(mark("what ssh calls the node"), '"$NODE"'),
    "unit": Name(mark("the systemd unit that runs the kubelet, as systemctl lists it"), "kubelet.service"),
    "runtime_socket": Name(mark("the socket of the container runtime"), "/run/containerd/containerd.sock"),
    "operator_namespace": Name(mark("where the GPU Operator runs"), "gpu-operator"),
    "old_workload_label": Name(
        mark("the workload label as it was before, or its name with a - behind it where there was none"),
        "nvidia.com/gpu.workload.config=vm-passthrough",
    ),
    "old_vfio_manager_label": Name(
        mark("the deploy label as it was before, or its name with a - behind it where there was none"),
        "nvidia.com/gpu.deploy.vfio-manager=true",
    ),
    "fstab_backup": Name(
        mark("where the copy of /etc/fstab is kept; a new name for each incident"), "/etc/fstab.before"
    ),
    "swap_device": Name(
        mark("the swap devices that are on, by their paths"), "\"$(awk 'NR > 1 { print $1 }' /proc/swaps)\"",
        plural="SWAP_DEVICES",
    ),
    "swap_service": Name(
        mark("services that make swap"),
        _units('$2 ~ "^enabled"', "Id", "zramswap.service dphys-swapfile.service swapspace.service"),
        plural="SWAP_SERVICES",
    ),
    "swap_unit_to_disable": Name(
        mark("enabled .swap units whose file lies in /etc/systemd/system"),
        _units(f'{_OWN} && $2 ~ "^enabled"', "Id"), plural="SWAP_UNITS_TO_DISABLE"
    ),
    "swap_unit_file_to_set_aside": Name(
        mark("files of .swap units in /etc/systemd/system that have nothing to disable"),
        _units(f"{_OWN} && {_LEFT}", "FragmentPath"), plural="SWAP_UNIT_FILES_TO_SET_ASIDE"
    ),
    "swap_unit_to_mask": Name(
        mark("other .swap units that come back at boot, and those whose file is set aside; none that fstab makes"),
        _units('v["FragmentPath"] != "" && v["SourcePath"] != "/etc/fstab" && $2 !~ "^(disabled|masked)" && '
               f"!({_OWN} && $2 ~ \"^enabled\")", "Id"),
        plural="SWAP_UNITS_TO_MASK",
    ),
    "vfio_container": Name(
        mark("ids of vfio-manager containers that run"), f'"{_CTR_RUNNING}"', plural="VFIO_CONTAINERS"
    ),
}  # fmt: skip
"""All of them; the answers to a runbook's questions can be named besides."""

_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_UNSAFE_PLACES = (
    ("`", "a backtick", "write $(...)"),
    ("<<", "a here-document", "write the text as an argument"),
    ("((", "arithmetic", "use expr or awk"),
    ("[[", "a [[ ]] test", "use test or [ ]"),
)
"""Where a quoted value would be read again by the shell, quotes and all."""


def names_in(text: str) -> list[str]:
    """What stands between the braces, in order, blanks taken off; known or not."""
    return [match[1].strip() for match in _PLACEHOLDER.finditer(text)]


def why_unfillable(command: str) -> tuple[str, str] | None:
    """What is wrong with how ``command`` names values, and what to do; None where each stands as (part of) a word."""
    if names_in(command):
        for mark, what, instead in _UNSAFE_PLACES:
            if mark in _without_placeholders(command):
                return f"a value may not be filled in where {what} stands", instead
        if re.search(r"(?:^|[\s;&|(])(?:eval|source)\s", command):
            return "a value may not be filled in where eval or source stands", "run the command itself"
    quotes = _quotes_at_placeholders(command)
    if quotes is None:
        return "a quote or a $( is not closed", "close it"
    if any(quotes):
        return "a value stands inside quotes: it brings its own", "take it out of the quotes: 'a='{{ node }}"
    return None


def _without_placeholders(command: str) -> str:
    return _PLACEHOLDER.sub("", command)


def _quotes_at_placeholders(command: str) -> list[bool] | None:
    """For each placeholder whether it stands inside quotes; None where the command does not end outside of them."""
    found: list[bool] = []
    stack: list[str] = []  # what is open: ' or " or (
    index = 0
    while index < len(command):
        char, top = command[index], stack[-1] if stack else ""
        if command.startswith("{{", index) and (match := _PLACEHOLDER.match(command, index)):
            found.append(top in ("'", '"'))
            index = match.end()
            continue
        if top == "'":
            if char == "'":
                stack.pop()
        elif char == "\\":
            index += 1
        elif command.startswith("$(", index):
            stack.append("(")
            index += 1
        elif char == '"':
            stack.pop() if top == '"' else stack.append('"')
        elif top != '"':
            if char == "'":
                stack.append("'")
            elif char == "(":
                stack.append("(")
            elif char == ")" and top == "(":
                stack.pop()
            elif char == "#" and (index == 0 or command[index - 1].isspace()):
                index = command.find("\n", index)
                if index < 0:
                    break
        index += 1
    return None if stack else found


def quote(value: str) -> str:
    """``value`` as one word of the shell, whatever it holds. What cannot be seen on paper is written as escapes."""
    if value == safe(value):
        return shlex.quote(value)
    out = []
    for char in value:
        if char == safe(char) and char not in "\\'":
            out.append(char)
        else:
            out += [f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape")]
    return "$'" + "".join(out) + "'"


def variable(name: str) -> str:
    """The shell variable that stands for one value ``name``."""
    return name.upper()


def many_names() -> list[str]:
    return [name for name, about in NAMES.items() if about.plural]


Known = Mapping[str, str | tuple[str, ...]]
"""Name -> its value, or for one of which there are many its values. What is not in it is not known."""


def fill(command: str, known: Known) -> str:
    """``command`` with each value quoted, or with the shell variable for it where it is not ``known``."""

    def one(match: re.Match[str]) -> str:
        name = match[1].strip()
        value = known.get(name)
        return quote(value) if isinstance(value, str) else f'"${variable(name)}"'

    return _PLACEHOLDER.sub(one, command)


def fill_plain(text: str, known: Known) -> str:
    """For text that no shell reads: the value as it is, or the shell variable's name."""

    def one(match: re.Match[str]) -> str:
        name = match[1].strip()
        value = known.get(name)
        return value if isinstance(value, str) else f"${variable(name)}"

    return _PLACEHOLDER.sub(one, text)


def spread(command: str, for_each: str, known: Known) -> Iterator[str]:
    """``command`` once for each value of ``for_each`` (not at all where there is none); where these are not known, one
    shell loop over them. Without ``for_each`` just the command."""
    if not for_each:
        yield fill(command, known)
        return
    values = known.get(for_each)
    if isinstance(values, tuple):
        for value in values:
            yield fill(command, {**known, for_each: value})
        return
    body = fill(command, {name: value for name, value in known.items() if name != for_each})
    lines = "\n".join(f"  {line}" for line in body.rstrip("\n").split("\n"))
    yield f"for {variable(for_each)} in ${NAMES[for_each].plural}; do\n{lines}\ndone"


def assignment(name: str, assign: str) -> str:
    """The line that a person completes before the first command."""
    about = NAMES.get(name)
    return f"{about.plural if about is not None and about.plural else variable(name)}={assign}"
