"""The OpenAPI document is true, and nothing that it allows brings the server down."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.serving import Serving

PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("DELETE", "/v1/sessions/{name}"),
]
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


def test_the_document_says_what_is_answered(pair: Serving) -> None:
    document = pair.http.get("/openapi.json").json()
    assert document["paths"].keys() == {path for _, path in PATHS}
    for method, path in PATHS:
        responses = document["paths"][path][method.lower()]["responses"]
        assert responses.keys() == {"200", "4XX", "5XX"}
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
    assert document["components"]["schemas"]["ChatBody"]["additionalProperties"] is False


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_nothing_that_is_allowed_fails(pair: Serving, method: str, path: str) -> None:
    schema = schemathesis.openapi.from_url(f"{pair.url}/openapi.json")

    @given(case=schema[path][method].as_strategy())
    @settings(
        max_examples=25,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    def ask(case: schemathesis.Case[Any]) -> None:
        if isinstance(case.body, dict):
            # Else nearly all would end at the first check.
            case.body["model"] = "embedded"
        case.call_and_validate(base_url=pair.url, checks=CHECKS, timeout=20)

    ask()
    assert pair.num_running() == 0
