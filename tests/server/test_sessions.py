"""Sessions that clients name: recognized in three forms, kept apart, released when they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.requests import Prompts
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.server.sessions import Sessions
from reason_spec.settings import load_settings
from reason_spec.types import Prefix
from tests.server.serving import Serving, scripted, serve

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def says(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serve(scripted(tmp_path_factory.mktemp("says"), {"?": "Yes."})) as serving:
        yield serving


def ask(serving: Serving, *, header: str | None = None, **body: Any) -> Any:
    given = {"model": "says", "messages": [{"role": "user", "content": "Is it?"}], **body}
    headers = {} if header is None else {"x-session-id": header}
    return serving.http.post(CHAT, json=given, headers=headers)


def end(serving: Serving, name: str) -> bool:
    answer = serving.http.delete(f"/v1/sessions/{name}")
    assert answer.status_code == 200
    assert answer.json() == {"id": name, "object": "session", "deleted": answer.json()["deleted"]}
    return bool(answer.json()["deleted"])


def test_a_session_is_named_by_the_body_or_by_the_header(says: Serving) -> None:
    assert not end(says, "a/b c")
    for named in ({"session_id": "a/b c"}, {"agent_hint": {"session_id": "a/b c"}}, {"header": "a/b c"}):
        assert ask(says, **named).status_code == 200
        assert end(says, "a/b c")
    ask(says, session_id="body", header="header")
    assert (end(says, "body"), end(says, "header")) == (True, False)


def test_an_eviction_ends_the_session_with_the_answer(says: Serving) -> None:
    evicts = {"context_management": {"edits": [{"type": "evict"}]}}
    assert ask(says, session_id="s").status_code == 200
    hint = {"session_id": "s", "parent_session_id": "p", "cache_control": {"ttl": 60}, **evicts}
    for stream in (False, True):
        assert ask(says, agent_hint=hint, stream=stream).status_code == 200
        assert not end(says, "s")
    assert ask(says, agent_hint=evicts).json()["error"]["param"] == "agent_hint.session_id"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session_id": "a", "agent_hint": {"session_id": "b"}}, "session_id"),
        ({"session_id": ""}, "session_id"),
        ({"header": "x" * 257}, "x-session-id"),
        ({"agent_hint": {"session_id": "a", "context_management": {"edits": [{"type": "prefetch"}]}}}, None),
        ({"agent_hint": {"context_management": {"manage_request": True}}}, None),
    ],
)
def test_what_cannot_be_honoured_is_refused(says: Serving, body: dict[str, Any], param: str | None) -> None:
    answer = ask(says, **body)
    assert answer.status_code == 400
    assert param is None or answer.json()["error"]["param"] == param


class Noting(ScriptedEngine):
    """Notes which prefixes go first."""

    def __init__(self) -> None:
        super().__init__("target", lambda text, sampling: "Yes.")
        self.released: list[tuple[str, tuple[int, ...]]] = []

    def evict_first(self, prefix: Prefix) -> None:
        self.released.append((prefix.owner, prefix.to_tuple()))


def sessions_of(engine: Noting) -> Sessions:
    return Sessions(Accelerator(load_settings(), engine, None, None), None)


def prompts(tokens: tuple[int, ...], owner: str = "ann") -> Prompts:
    return Prompts(Prefix(tokens, owner=owner), None, ())


def test_what_a_session_began_with_is_released_without_the_header_of_the_answer() -> None:
    engine = Noting()
    sessions = sessions_of(engine)
    question, header = tuple(range(50)), (90, 91)
    sessions.note("ann", "s", prompts((*question, *header)))
    sessions.note("ann", "s", prompts((*question, 7, 8, 9, *header)))
    other_agent = tuple(range(500, 540))
    sessions.note("ann", "s", prompts(other_agent))
    sessions.note("ann", "other", prompts((1, 2, 3)))
    assert len(sessions) == 2
    assert sessions.end("ann", "s")
    assert engine.released == [("ann", question), ("ann", other_agent)]
    assert not sessions.end("ann", "s")
    assert not sessions.end("bob", "other")
    assert len(sessions) == 1


def test_the_number_of_sessions_is_bounded() -> None:
    sessions = sessions_of(Noting())
    for number in range(1000):
        sessions.note("ann", str(number), prompts((number, 1, 2)))
    assert len(sessions) == 256
    assert sessions.end("ann", "999")
    assert not sessions.end("ann", "0")
