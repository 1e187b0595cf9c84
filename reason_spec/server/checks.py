"""Checks of headers and raw bodies, before anything is parsed."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from reason_spec.server.base import ApiError
from reason_spec.server.keys import is_loopback

MAX_DEPTH = 64
"""Arrays and objects within each other in a body; what parses it recurses."""
_JSON_TYPE = re.compile(rb"application/([\w.!#$&^+-]+\+)?json", re.IGNORECASE)
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_STRING = re.compile(rb'"[^"]*"')


def check_json_type(content_types: Collection[bytes]) -> None:
    """Refuse a body that is not said to be JSON.

    Raises:
        ApiError: 415.
    """
    media = [value.partition(b";")[0].strip() for value in content_types]
    if len(media) != 1 or not _JSON_TYPE.fullmatch(media[0]):
        raise ApiError(415, "bodies are JSON: send the header Content-Type: application/json")


def check_json(body: bytes) -> None:
    """Refuse a body that its parser would read in another way than it is read here, or too deeply.

    JSON parsers detect UTF-16 and UTF-32 by zero bytes, which UTF-8 has too and JSON never.

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
        text = f"the body is no JSON, or has more than {MAX_DEPTH} arrays and objects within each other"
        raise ApiError(400, text, code="invalid_json")


def check_site(host: bytes, origin: bytes, allowed_hosts: Collection[str]) -> None:
    """Refuse requests that a browser sends for a page of another site.

    Without keys, any web page that is open in a local browser could use the server, directly or by DNS
    rebinding: its own host name is made to resolve to this machine.

    Raises:
        ApiError: 403.
    """
    if origin and not _is_ours(origin, allowed_hosts):
        text = "pages of other sites may not ask a server without keys; give it a key (REASON_SPEC_API_KEY)"
        raise ApiError(403, text, kind="permission_error", code="origin_not_allowed")
    if host and not _is_ours(b"//" + host, allowed_hosts):
        text = (
            "without keys this server is asked by a name of its own machine, as localhost is; give it a key "
            "(REASON_SPEC_API_KEY), or name this one in server.allowed_hosts"
        )
        raise ApiError(403, text, kind="permission_error", code="host_not_allowed")


def _is_ours(url: bytes, allowed_hosts: Collection[str]) -> bool:
    try:
        name = urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return False
    return name is not None and (is_loopback(name) or name in {host.lower() for host in allowed_hosts})


def is_too_deep(body: bytes, max_depth: int = MAX_DEPTH) -> bool:
    """Tell whether a text is no JSON by its brackets, or nested much deeper than ``max_depth``.

    ``max_depth`` levels always pass, and more than twice as many never. It takes no recursion, and time in
    proportion to the text: strings go, all else that is no bracket, and then the innermost brackets, again
    and again.
    """
    rest = _STRING.sub(b"", _ESCAPE.sub(b"", body).translate(None, _ALL_BUT_STRUCTURE))
    for _ in range(max_depth):
        if not rest:
            return False
        rest = rest.replace(b"[]", b"").replace(b"{}", b"")
    return bool(rest)
