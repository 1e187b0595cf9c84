"""Bodies are JSON in UTF-8 and not deep, and a server without keys is asked by names of its own machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.server.base import ApiError
from reason_spec.server.checks import MAX_DEPTH, check_json, check_json_type, check_site, is_too_deep

TEXTS = st.text(st.sampled_from('[]{}"\\a,:é\U0001f600'), max_size=20) | st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def is_refused(check: Callable[..., None], *arguments: Any) -> bool:
    try:
        check(*arguments)
    except ApiError:
        return True
    return False


@given(VALUES, st.booleans())
def test_what_is_json_and_shallow_passes(value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert not is_too_deep(body, depth(value))
    if depth(value):
        assert is_too_deep(body, (depth(value) - 1) // 2)


@given(st.integers(1, 3 * MAX_DEPTH), st.integers(0, 3))
def test_the_depth_is_what_counts(levels: int, width: int) -> None:
    body = b"[" * levels + b",".join([b"[]"] * width) + b"]" * levels
    assert is_too_deep(body) == (levels + (width > 0) > MAX_DEPTH)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_depth_cannot_be_hidden_in_another_encoding(encoding: str) -> None:
    deep = ('{"a":' * 1000 + "1" + "}" * 1000).encode(encoding)
    with pytest.raises(ApiError, match="UTF-8"):
        check_json(deep)
    with pytest.raises(ApiError, match="UTF-8"):
        check_json('{"a": "\u5b5b"}'.encode(encoding))


@given(VALUES)
def test_what_is_let_through_is_read_as_utf_8(value: Any) -> None:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        check_json(body)
    except ApiError:
        return
    assert json.detect_encoding(body) in ("utf-8", "utf-8-sig")


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/a.b+json"]
)
def test_json_has_several_names(kind: str) -> None:
    assert not is_refused(check_json_type, [kind])


@pytest.mark.parametrize(
    "kinds",
    [
        [],
        [""],
        ["text/plain"],
        ["multipart/form-data; boundary=x"],
        ["application/jsonp"],
        ["application/json"] * 2,
    ],
)
def test_what_is_not_said_to_be_json_is_refused(kinds: list[str]) -> None:
    with pytest.raises(ApiError) as caught:
        check_json_type(kinds)
    assert caught.value.status == 415


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8000", "127.8.9.1", "[::1]:8000", "LOCALHOST:80", "box.lan:1"]
)
def test_the_machine_has_several_names(host: str) -> None:
    for origin in ("", f"http://{host}"):
        assert not is_refused(check_site, host, origin, ("Box.lan",))


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:8000", "[", "[::1", "192.168.0.4", "@localhost@x"]
)
def test_a_name_that_was_made_to_lead_here_is_refused(host: str) -> None:
    with pytest.raises(ApiError, match="allowed_hosts") as caught:
        check_site(host, "", ())
    assert (caught.value.status, caught.value.code) == (403, "host_not_allowed")
