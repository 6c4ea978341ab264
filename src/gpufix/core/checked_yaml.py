"""YAML that a person writes, against a JSON Schema: every mistake with file, line and the nearest right word. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml

from gpufix.errors import GpufixError
from gpufix.text import did_you_mean

if TYPE_CHECKING:
    import jsonschema

Path = tuple[str | int, ...]
"""Where something stands in the data: keys and indexes from the top."""


def load_checked(text: str, file: str, schema: Mapping[str, Any], what: str) -> tuple[Any, dict[Path, int]]:
    """The data in ``text``, and the line on which each part of it stands. ``what`` names the kind of file.

    Raises GpufixError (exit status 2) with ``file:line`` for broken YAML or a violation of ``schema``.
    """
    import jsonschema

    data, lines = _compose(text, file, what)
    errors = sorted(
        jsonschema.Draft202012Validator(schema).iter_errors(data), key=lambda error: list(map(str, error.path))
    )
    if errors:
        raise _schema_error(_deepest(errors[0]), file, lines, what)
    return data, lines


_DEEPEST = 40
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where PyYAML was built with it: ten times as fast."""


def _compose(text: str, file: str, what: str) -> tuple[Any, dict[Path, int]]:
    """The data, and the line on which each part of it stands. The same key twice is refused, not lost in silence."""
    try:
        loader = _LOADER(text)
        root = loader.get_single_node()
        if root is None:
            raise GpufixError(f"{file}:1: the {what} is empty", f"see the schema: gpufix/data/{what}.schema.json")
        lines: dict[Path, int] = {}
        _walk(root, (), lines, file)
        return loader.construct_document(root), lines
    except RecursionError:
        raise GpufixError(f"{file}:1: nested without end", "write it out flat") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise GpufixError(f"{file}:{line}: not valid YAML: {problem}", "mend the file and run it again") from None


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], file: str, above: tuple[int, ...] = ()) -> None:
    if id(node) in above or len(path) > _DEEPEST:
        raise GpufixError(f"{file}:{node.start_mark.line + 1}: nested without end", "write it out without anchors")
    above = (*above, id(node))
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise GpufixError(f"{file}:{key.start_mark.line + 1}: key {name!r} stands twice", "keep one of them")
            seen.add(name)
            lines[(*path, name)] = key.start_mark.line + 1
            _walk(value, (*path, name), lines, file, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines, file, above)


def _deepest(error: jsonschema.ValidationError) -> jsonschema.ValidationError:
    """The most telling error below a oneOf / anyOf: the one in the branch that went furthest."""
    while error.context:
        error = max(error.context, key=lambda e: (len(e.absolute_path), e.validator == "additionalProperties"))
    return error


def _schema_error(error: jsonschema.ValidationError, file: str, lines: Mapping[Path, int], what: str) -> GpufixError:
    path: Path = tuple(error.absolute_path)
    where = ".".join(str(part) for part in path) or "top level"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        allowed = list(error.schema["properties"]) if isinstance(error.schema, dict) else []
        unknown = sorted(key for key in error.instance if key not in allowed)
        line = lines.get((*path, unknown[0]), lines.get(path, 1))
        return GpufixError(f"{file}:{line}: unknown key {unknown[0]!r} in {where}", did_you_mean(unknown[0], allowed))
    line = lines.get(path, lines.get(path[:-1], 1))
    return GpufixError(
        f"{file}:{line}: {where}: {error.message[:200]}", f"see the schema: gpufix/data/{what}.schema.json"
    )
