"""Checks of headers and raw bodies, before anything is parsed."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from reason_spec.server.base import ApiError
from reason_spec.server.keys import is_loopback

MAX_DEPTH = 64
"""Nested arrays and objects in a body; its parser recurses."""
_JSON_TYPE = re.compile(r"application/([\w.!#$&^+-]+\+)?json", re.IGNORECASE | re.ASCII)
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_STRING = re.compile(rb'"[^"]*"')


def check_json_type(content_types: Collection[str]) -> None:
    """Refuse a body that is not declared as JSON.

    Raises:
        ApiError: 415.
    """
    media = [value.partition(";")[0].strip() for value in content_types]
    if len(media) != 1 or not _JSON_TYPE.fullmatch(media[0]):
        raise ApiError(415, "bodies are JSON: send the header Content-Type: application/json")


def check_json(body: bytes) -> None:
    """Refuse a body that is not UTF-8 or is nested too deeply.

    JSON parsers detect UTF-16 and UTF-32 by zero bytes. UTF-8 allows them and JSON does not, so a body with
    zero bytes would be parsed as another text than the one that is checked here.

    Raises:
        ApiError: 400.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8", code="invalid_json") from None
    if b"\0" in body:
        raise ApiError(400, "the body holds a zero byte: send JSON in UTF-8", code="invalid_json")
    if is_too_deep(body):
        text = f"the body is not JSON, or nests more than {MAX_DEPTH} arrays and objects"
        raise ApiError(400, text, code="invalid_json")


def check_site(host: str, origin: str, allowed_hosts: Collection[str]) -> None:
    """Refuse requests that a browser sends for a page of another site.

    Without keys, any page in a local browser could use the server: directly, or by DNS rebinding, which
    makes its own host name resolve to this machine.

    Raises:
        ApiError: 403.
    """
    if origin and not _is_local(origin, allowed_hosts):
        text = "a server without keys refuses pages of other sites; give it a key (REASON_SPEC_API_KEY)"
        raise ApiError(403, text, kind="permission_error", code="origin_not_allowed")
    if host and not _is_local(f"//{host}", allowed_hosts):
        text = (
            "a server without keys accepts only names of its own machine, such as localhost; give it a key "
            "(REASON_SPEC_API_KEY), or add this name to server.allowed_hosts"
        )
        raise ApiError(403, text, kind="permission_error", code="host_not_allowed")


def _is_local(url: str, allowed_hosts: Collection[str]) -> bool:
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return False
    return name is not None and (is_loopback(name) or name in {host.lower() for host in allowed_hosts})


def is_too_deep(body: bytes, max_depth: int = MAX_DEPTH) -> bool:
    """Return whether a text nests much deeper than ``max_depth``, or its brackets do not match.

    ``max_depth`` levels always pass, more than twice as many never. It needs no recursion and linear time:
    strings and everything but brackets are removed, then the innermost brackets, again and again.
    """
    rest = _STRING.sub(b"", _ESCAPE.sub(b"", body).translate(None, _ALL_BUT_STRUCTURE))
    for _ in range(max_depth):
        if not rest:
            return False
        rest = rest.replace(b"[]", b"").replace(b"{}", b"")
    return bool(rest)
