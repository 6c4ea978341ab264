# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""Takes secrets out of text where it is read, before it leaves the node. Pure; standard library only."""

from __future__ import annotations

import re

MARK = "<redacted>"

_NAME = r"""
    (?: (?<![\w.-]) (?: pass | passwd | pwd | pw | cred | creds ) (?![\w.-])
      | (?<![\w.-]) [\w.-]*? (?: password | passwd | passphrase | secret | token | credential
                               | api[_-]?key | access[_-]?key | private[_-]?key | auth[_-]?key ) [\w.-]*
      | (?<![\w.-]) --bootstrap[\w-]*
    )"""
_VALUE = r"""(?P<value> "(?:[^"\\\n]|\\.)*" | '[^'\n]*' | (?: ,, | [^,\s"'] )+ )"""
_NAMED = re.compile("(?ix) (?P<name>" + _NAME + r") (?P<gap> = | [\"']\s*:\s* )" + _VALUE)
_QUOTED = re.compile(r"(?ix) (?<=[\"']) (?P<name>" + _NAME + r") (?P<gap>=) (?P<value>[^\"'\n]*) (?=[\"'])")
_YAML = re.compile(r"(?ix) ^ (?P<lead>[ \t]* (?:-[ \t]+)?) (?P<name>" + _NAME + r") (?P<gap>:[ \t]+) (?P<value>\S.*)")
# Only lines that hold one of these are looked at closely: a journal has thousands of lines.
_HINT = re.compile(
    r"(?i)pass|pwd|pw[=:]|cred|secret|token|key|--bootstrap|bearer|eyJ|://[^/\s]*@|K10|\.[a-z0-9]{16}(?!\w)"
)
_ARGUMENT = re.compile(r"(?i)((?<!\S)--?(?:[\w-]*(?:token|password|secret))[ \t]+)(?!-)(\S+)")
SECRET_FLAG = re.compile(r"(?i)--?[\w-]*(?:token|password|secret)$")
"""A flag whose value is the next argument."""
_HARMLESS_NAME = re.compile(
    r"(?i)(file|dir|path|kubeconfig|ttl|mode|webhook[\w-]*|provider[\w-]*|rotat\w*|mount\w*)$|webhook"
)
_HARMLESS_VALUE = re.compile(r"(?i)^[\"']?(true|false|yes|no|null|none|\d{1,6}|)[\"']?$")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_WHOLE = (
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON web token, as service accounts carry
    re.compile(r"(?<![\w.])[a-z0-9]{6}\.[a-z0-9]{16}(?![\w.])"),  # a kubeadm bootstrap token
    re.compile(r"\bK10[0-9a-f]{20,}::\S+"),  # a k3s or RKE2 join token
)
_BEARER = re.compile(r"(?i)\b(bearer)\s+[\w.~+/-]{16,}=*")
_URL_USER = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s:@\"']+:[^/\s@\"']+@")
_HEADER_FLOW = re.compile(r"""(["']?staticPodURLHeader["']?[ \t]*:\s*)\{(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^{}"'])*\}""")
_HEADER_BLOCK = re.compile(
    r'^([ \t]*)(staticPodURLHeader[ \t]*:)(?![ \t]*"?<redacted>).*\n?(?:\1[ \t]+.*(?:\n|\Z)|[ \t]*\n)*', re.MULTILINE
)


def redact(text: str) -> str:
    """``text`` without passwords, tokens and keys; its lines and all else stay. Doing it twice is doing it once."""
    if "staticPodURLHeader" in text:
        text = _HEADER_FLOW.sub(lambda found: found.group(1) + '"' + MARK + '"', text)
        text = _HEADER_BLOCK.sub(lambda found: found.group(1) + found.group(2) + ' "' + MARK + '"\n', text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(MARK, text)
    return "\n".join(_redact_line(line) if _HINT.search(line) else line for line in text.split("\n"))


def _redact_line(line: str) -> str:
    for pattern in _WHOLE:
        line = pattern.sub(MARK, line)
    line = _BEARER.sub(r"\1 " + MARK, line)
    line = _URL_USER.sub(r"\1" + MARK + "@", line)
    line = _ARGUMENT.sub(lambda found: found.group(1) + MARK, line)
    for pattern in (_YAML, _QUOTED, _NAMED):
        line = pattern.sub(_redact_named, line)
    return line


def _redact_named(found: re.Match[str]) -> str:
    name, value = found.group("name"), found.group("value")
    if _HARMLESS_NAME.search(name) or _HARMLESS_VALUE.match(value) or MARK in value:
        return found.group(0)
    quote = value[0] if value[0] in "\"'" else ""
    return found.group(0)[: -len(value)] + quote + MARK + quote
