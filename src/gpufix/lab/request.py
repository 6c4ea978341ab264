"""What a client asks of the practice cluster's API, and what it is told: URLs, query parameters, Status. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from gpufix.lab.patches import NotModelled, Refused, bad_request
from gpufix.lab.store import KINDS, Kind, Object

LOST = "the server could not find the requested resource"
"""The message of a 404 that is about a path, not an object."""


class Request(NamedTuple):
    """One HTTP request. Of a query parameter given twice the first counts, as in Go."""

    method: str
    target: str
    headers: Message
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def segments(self) -> list[str]:
        return [unquote(part) for part in self.path.split("/")[1:]]

    @property
    def query(self) -> dict[str, str]:
        return dict(reversed(parse_qsl(urlsplit(self.target).query, keep_blank_values=True)))

    @property
    def media_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """The body as JSON. Refuses one that is none."""
        try:
            return json.loads(self.body, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise bad_request("the request body is not valid JSON") from None

    def allow(self, parameters: frozenset[str]) -> None:
        """Raises NotModelled when a query parameter is not among those that are understood here."""
        if strange := sorted(set(self.query) - parameters):
            raise NotModelled(f"the query parameter {strange[0]}")


class Reply(NamedTuple):
    """``body`` is JSON, or plain text."""

    code: int
    body: Object | str


class Target(NamedTuple):
    """What a URL names. ``name`` is empty for a collection, ``namespace`` also for all namespaces."""

    kind: Kind
    namespace: str
    name: str


def refusal(error: Refused) -> Reply:
    """The Status that tells of an error."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "details": error.details,
        "code": error.code,
    }
    return Reply(error.code, status)


def parse_target(request: Request) -> Target:
    """What a URL under /api/v1 or /apis/GROUP/VERSION names.

    Refuses to read from a group that is not there; raises NotModelled for all else that has no Kind.
    """
    match request.segments:
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            raise NotModelled("this path")
    kinds = [kind for kind in KINDS.values() if kind.group == group]
    if not kinds and request.method == "GET":
        raise Refused(404, "NotFound", LOST)
    namespace, in_namespace = "", False
    match rest:
        case ["namespaces", namespace, _, *_] if namespace:
            in_namespace, rest = True, rest[2:]
    plural, name, *deeper = [*rest, "", ""][: max(len(rest), 2)]
    kind = next((kind for kind in kinds if kind.plural == plural and kind.version == version), None)
    if kind is None:
        raise NotModelled("this resource")
    if deeper:
        raise NotModelled(f"the subresource {'/'.join(deeper)}")
    if in_namespace != kind.namespaced and (in_namespace or name):
        raise NotModelled("this path")
    return Target(kind, namespace if in_namespace else "", name)


def wants_table(request: Request) -> bool:
    """Whether the Accept header would rather have a Table than the objects. Raises NotModelled if it takes neither."""
    accept = request.headers.get("Accept") or "*/*"
    for media_range in accept.split(","):
        media_type, *given = (part.strip() for part in media_range.split(";"))
        if media_type not in ("application/json", "application/*", "*/*"):
            continue
        parameters = dict(part.partition("=")[::2] for part in given)
        match parameters.get("as"):
            case None:
                return False
            case "Table" if (parameters.get("g"), parameters.get("v")) == ("meta.k8s.io", "v1"):
                return True
    raise NotModelled(f"Accept: {accept}")


def write_continue(version: str, last: Object) -> str:
    """The token of the page after ``last`` in a list of that version."""
    token = json.dumps({"v": "meta.k8s.io/v1", "rv": int(version), "start": place(last)})
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def read_continue(token: str) -> tuple[str, tuple[str, str]]:
    """The list's version and the place (namespace, name) after which to go on. Refuses a token that is none."""
    try:
        read = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        version, (namespace, name) = int(read["rv"]), read["start"]
        return str(version), (str(namespace), str(name))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise bad_request("continue key is not valid: the token cannot be read") from None


def place(item: Object) -> tuple[str, str]:
    """Namespace and name: the order of a list."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


_DIGITS = 19
"""Of the largest number of 64 bits, which is what the real one reads a number as."""


def number(query: Mapping[str, str], name: str) -> int:
    """A whole number in the query; 0 when it is not given. Refuses anything else."""
    text = query.get(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise bad_request(f'{name}: Invalid value: "{text[:40]}": must be a whole number')
    return int(text)


def dry_run(request: Request, also: Any = ()) -> bool:
    """Whether the query, or the dryRun of DeleteOptions, asks for a dry run. Refuses any but "All"."""
    if not isinstance(also, (list, tuple)):
        raise bad_request("dryRun of DeleteOptions must be a list")
    asked = [*also, *(value for name, value in request.query.items() if name == "dryRun")]
    for value in asked:
        if value != "All":
            raise bad_request(f'dryRun: Unsupported value: "{value}": supported values: "All"')
    return bool(asked)


def sent_json(request: Request) -> Any:
    """The body, which must be JSON by its media type too. Raises NotModelled for another type."""
    if request.media_type not in ("application/json", ""):  # the Python client names none
        raise NotModelled(f"a body of type {request.media_type}")
    return request.json()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
