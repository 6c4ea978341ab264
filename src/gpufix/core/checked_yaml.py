"""YAML that a person writes, against a JSON Schema: every mistake with its place and the nearest right word. Pure.

Only what is plain to the reader's eye is taken: one document, text keys, no tags, no anchors, no merge keys, and the
booleans and numbers of YAML 1.2 (``no`` is text). So what a schema-aware editor shows is what is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from gpufix.errors import ExitStatus, GpufixError
from gpufix.text import did_you_mean, safe

if TYPE_CHECKING:
    import jsonschema

Path = tuple[str | int, ...]
"""Where something stands in the data: keys and indexes from the top."""

NOT_YAML = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""What may not stand in a file unescaped: what YAML forbids, and line breaks that editors do not count as such."""


class Mark(NamedTuple):
    """A place in a file. Both count from 1; a tab is one column."""

    line: int
    column: int


class Marks(dict[Path, Mark]):
    """Where each value begins. ``of_key`` says where its key does; list items and the top have none."""

    def __init__(self) -> None:
        super().__init__()
        self.of_key: dict[Path, Mark] = {}


def mistake(file: str, mark: Mark, message: str, hint: str) -> GpufixError:
    """One line that begins with ``file:line:column``, however long or hostile what it quotes."""
    text = safe(message, limit=_LONGEST)
    return GpufixError(f"{file}:{mark.line}:{mark.column}: {text}", safe(hint, limit=_LONGEST), ExitStatus.USAGE)


def load_checked(text: str, file: str, schema: Mapping[str, Any], what: str) -> tuple[Any, Marks]:
    """The data in ``text``, and the place of each part of it. ``what`` names the kind of file.

    Raises GpufixError (exit status 2) with ``file:line:column`` for broken YAML or a violation of ``schema``.
    """
    import jsonschema

    data, marks = read_yaml(text, file, what)
    mistakes = [_placed(_deepest(error), marks) for error in jsonschema.Draft202012Validator(schema).iter_errors(data)]
    if mistakes:
        # A misspelt key is two mistakes, it is unknown and the right one is missing: the first is the better told.
        mark, _, message, hint = min(mistakes, key=lambda one: (one[1], one[0], one[2]))
        raise mistake(file, mark, message, hint or f"see the schema: gpufix/data/{what}.schema.json")
    return data, marks


_DEEPEST = 40
_TOO_DEEP = "nested without end", "write it out flat"
_LONGEST = 300
_TOP = Mark(1, 1)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where PyYAML was built with it: ten times as fast."""


def read_yaml(text: str, file: str, what: str) -> tuple[Any, Marks]:
    """The data in ``text``: dict, list, str, int, float, bool and None only; and the place of each part.

    Raises GpufixError (exit status 2) with ``file:line:column`` for anything else.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if found := NOT_YAML.search(text):
        line_start = text.rfind("\n", 0, found.start()) + 1
        mark = Mark(text.count("\n", 0, found.start()) + 1, found.start() - line_start + 1)
        raise mistake(file, mark, f"the character {_code(found[0])} may not stand here", "take it out")
    try:
        reader = _Reader(yaml.parse(text, Loader=_LOADER), file)
        data = reader.document()
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, file) from None
    except (ValueError, OverflowError):  # PyYAML does not wrap what decoding an escape says
        raise mistake(file, _TOP, "not valid YAML: an escape that is no character", "take it out") from None
    if data is None:
        raise mistake(file, _TOP, "the file is empty", f"see the schema: gpufix/data/{what}.schema.json")
    return data, reader.marks


def _code(char: str) -> str:
    return f"U+{ord(char):04X}"


def _syntax_error(error: yaml.YAMLError, text: str, file: str) -> GpufixError:
    mark = getattr(error, "problem_mark", None)
    place = Mark(mark.line + 1, mark.column + 1) if mark else _TOP
    lines = text.split("\n")
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    if line[place.column - 1 : place.column] == "\t":
        return mistake(file, place, "not valid YAML: a tab may not stand here", "indent with spaces")
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    if "nesting depth" in problem:  # libyaml reads ahead
        return mistake(file, place, *_TOO_DEEP)
    return mistake(file, place, f"not valid YAML: {problem}", "mend the file and run it again")


class _Reader:
    """Builds the data straight from YAML's events: nothing is constructed that the text does not plainly say."""

    def __init__(self, events: Iterator[yaml.Event], file: str) -> None:
        self.events = events
        self.file = file
        self.marks = Marks()

    def document(self) -> Any:
        data, documents = None, 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.refuse(event, "a second document begins here", "one file, one document: take it out")
                data = self.value(next(self.events), ())
        return data

    def refuse(self, event: yaml.Event, message: str, hint: str) -> GpufixError:
        return mistake(self.file, _mark(event), message, hint)

    def value(self, event: Any, path: Path) -> Any:
        self.check_plain(event)
        self.marks[path] = _mark(event)
        if len(path) > _DEEPEST:
            raise self.refuse(event, *_TOO_DEEP)
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
                items.append(self.value(event, (*path, len(items))))
            return items
        return _scalar(event)

    def mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.key(event)
            if key in found:
                raise self.refuse(event, f"key {quoted(key)} stands twice", "keep one of them")
            self.marks.of_key[(*path, key)] = _mark(event)
            found[key] = None
            found[key] = self.value(next(self.events), (*path, key))
        return found

    def key(self, event: Any) -> str:
        self.check_plain(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise self.refuse(event, "a key must be text, not a list or keys of its own", "write one word")
        key = _scalar(event)
        if not isinstance(key, str):
            shown = event.value or "(empty)"
            raise self.refuse(event, f"key {shown} is not text", "put it in quotes, if it is meant")
        if key == "<<" and event.implicit[0]:
            raise self.refuse(event, "the merge key << is not allowed", "write the keys out")
        return key

    def check_plain(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise self.refuse(event, f"{sign}{event.anchor}: anchors and aliases are not allowed", "write it out")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise self.refuse(event, f"the tag {tag} is not allowed", "take it off; put text in quotes")


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = ("", "~", "null", "Null", "NULL")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,18}")


def _scalar(event: yaml.ScalarEvent) -> str | int | float | bool | None:
    text: str = event.value
    return plain_value(text) if event.implicit[0] else text


def plain_value(text: str) -> str | int | float | bool | None:
    """What ``text`` is without quotes. As YAML 1.2 has it, less what surprises: octal, infinite, 19 digits are text."""
    if text in _WORDS:
        return _WORDS[text]
    if text in _NULLS:
        return None
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def quoted(text: str) -> str:
    """``text`` for a message: in quotes, short, and with nothing that a terminal would obey."""
    return f"'{safe(text, limit=60)}'"


def near(word: str, choices: Any) -> str:
    """``did_you_mean`` for a word of any length."""
    return did_you_mean(word[:100], choices)


def _deepest(error: jsonschema.ValidationError) -> jsonschema.ValidationError:
    """The most telling error below a oneOf / anyOf: the one in the branch that went furthest."""
    while error.context:
        error = max(error.context, key=lambda e: (len(e.absolute_path), e.validator == "additionalProperties"))
    return error


def _placed(error: jsonschema.ValidationError, marks: Marks) -> tuple[Mark, bool, str, str]:
    """Its place, whether something is missing (which has no place of its own), the message, and a hint."""
    path: Path = tuple(error.absolute_path)
    where = ".".join(str(part) for part in path) or "top level"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        allowed = list(error.schema.get("properties", ())) if isinstance(error.schema, dict) else []
        unknown = [key for key in error.instance if key not in allowed]  # in the order of the file
        mark = marks.of_key[(*path, unknown[0])]
        return mark, False, f"unknown key {quoted(unknown[0])} in {where}", near(unknown[0], allowed)
    mark = marks.get(path, _TOP)
    if "propertyNames" in error.absolute_schema_path:
        mark = marks.of_key.get((*path, str(error.instance)), mark)
    return mark, error.validator == "required", f"{where}: {error.message}", ""
