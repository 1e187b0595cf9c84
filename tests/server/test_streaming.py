"""Server-sent events as clients cut them."""

from __future__ import annotations

import json

import pytest

from reason_spec.server.streaming import data_event


@pytest.mark.parametrize("name", [None, "response.output_text.delta"])
def test_an_event_has_no_line_ends_of_its_text_whatever_a_client_takes_for_one(name: str | None) -> None:
    body = {"delta": "".join(map(chr, range(0x3000))) + "\U0001f600"}
    *head, data, end = data_event(body, name).decode().splitlines()
    assert (head, end) == ([f"event: {name}"] if name else [], "")
    assert json.loads(data.removeprefix("data: ")) == body
