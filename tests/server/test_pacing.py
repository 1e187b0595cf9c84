"""Paced streams: nothing is lost, no piece is too long, and what was written at once does not show."""

from __future__ import annotations

import json
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.chat.base import TextDelta, TokenLogprob, ToolCallDelta
from reason_spec.server.base import StreamEvent
from reason_spec.server.pacing import PACKET_BYTES, Backlog, Pace, padded
from tests.server.serving import failing, scripted, serve

LONG = "".join(f"Step {number} is said here.\n\n" for number in range(30))
CHAT: Any = {
    "model": "says",
    "messages": [{"role": "user", "content": "Go!"}],
    "max_tokens": 500,
    "stream": True,
}

RATED = TokenLogprob(1, b"a", -0.5)
TEXTS = st.builds(
    TextDelta,
    st.sampled_from(["reasoning", "content"]),
    st.text(max_size=12),
    st.sampled_from([None, (RATED,)]),
)
CALLS = st.builds(ToolCallDelta, st.integers(0, 1), st.text(max_size=12))
NAMED = st.builds(ToolCallDelta, st.integers(0, 1), st.text(max_size=12), st.just("call_1"), st.just("add"))


def summed(events: list[StreamEvent]) -> tuple[list[tuple[Any, str]], int, list[tuple[str, str | None]]]:
    """Return runs of text of one kind, how many tokens are rated, and the calls that begin."""
    came: list[tuple[Any, str]] = []
    for event in events:
        match event:
            case TextDelta(channel, text):
                came += [(channel, text)] if text else []
            case ToolCallDelta(index, arguments):
                came += [(index, arguments)] if arguments else []
    runs = [(kind, "".join(text for _, text in group)) for kind, group in groupby(came, lambda one: one[0])]
    rated = sum(len(event.logprobs or ()) for event in events if isinstance(event, TextDelta))
    begun = [(event.id, event.name) for event in events if isinstance(event, ToolCallDelta) and event.id]
    return runs, rated, begun


@given(st.lists(st.tuples(st.integers(0, 2), TEXTS | CALLS | NAMED)), st.integers(1, 30), st.integers(1, 5))
def test_all_is_sent_in_order_and_no_piece_is_too_long(
    events: list[tuple[int, StreamEvent]], num_chars: int, num_at_once: int
) -> None:
    backlog = Backlog()
    sent: list[tuple[int, StreamEvent]] = []
    waiting = list(events)
    while waiting or backlog:
        for index, event in waiting[:num_at_once]:
            backlog.add(index, event)
        del waiting[:num_at_once]
        piece = list(backlog.take(num_chars))
        for answer in range(3):
            runs, _, _ = summed([event for index, event in piece if index == answer])
            assert sum(len(text) for _, text in runs) <= num_chars
        sent += piece
    for answer in range(3):
        assert summed([event for index, event in sent if index == answer]) == summed(
            [event for index, event in events if index == answer]
        )


@given(st.binary(max_size=3 * PACKET_BYTES))
def test_packets_have_few_sizes_and_their_content_behind_a_comment(content: bytes) -> None:
    packet = padded(content)
    assert len(packet) % PACKET_BYTES == 0
    assert 0 < len(packet) <= len(content) + PACKET_BYTES + 3
    assert packet.endswith(content)
    comment = packet[: len(packet) - len(content)]
    assert not comment or (
        comment.startswith(b": ") and comment.endswith(b"\n\n") and b"\n" not in comment[:-2]
    )


def packets_of(serving: Any) -> tuple[list[int], str]:
    with serving.http.stream("POST", "/v1/chat/completions", json=CHAT) as response:
        packets = list(response.iter_raw())
    events = [line[6:] for line in b"".join(packets).decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return [len(packet) for packet in packets], "".join(one["delta"].get("content", "") for one in choices)


@pytest.mark.parametrize("seconds", [0.0, 0.003], ids=["all at once", "token by token"])
def test_streams_of_untrusted_clients_do_not_show_how_they_were_written(
    tmp_path: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reason_spec.server.api_request.Pace", lambda: Pace(seconds=0.05, chars=120))
    settings = scripted(tmp_path, {"Go!": LONG}, seconds=seconds)
    with serve(settings, trusted=False) as says:
        sizes, text = packets_of(says)
        assert text == LONG
        assert {size % PACKET_BYTES for size in sizes} == {0}
        # However it was written, no more than so much is sent at once.
        assert len(sizes) >= len(LONG) / 120
        stream = says.client().chat.completions.create(**CHAT)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == LONG
        with says.client().responses.stream(model="says", input="Go!", max_output_tokens=500) as events:
            assert events.get_final_response().output_text == LONG
    with serve(settings, trusted=True) as says:
        assert packets_of(says)[1] == LONG


def test_a_paced_stream_that_fails_says_so_behind_what_was_said(tmp_path: Path) -> None:
    with serve(scripted(tmp_path, {"x": "y"}), change=failing(60, LONG), trusted=False) as says:
        with says.http.stream("POST", "/v1/chat/completions", json=CHAT) as response:
            text = response.read().decode()
        assert "Step 1 " in text
        assert "[DONE]" not in text
        assert json.loads(text.rpartition("data: ")[2])["error"]["code"] == "engine_error"


def test_a_paced_client_that_leaves_frees_the_engine(tmp_path: Path) -> None:
    settings = scripted(tmp_path, {"Go!": " ".join(["word"] * 5000)}, seconds=0.012)
    with serve(settings, trusted=False) as says:
        body = {**CHAT, "max_tokens": 5000}
        with says.http.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_raw())
        for _ in range(1500):
            if says.num_running() == 0:
                break
            time.sleep(0.02)  # the engines announce no end
        assert says.num_running() == 0
