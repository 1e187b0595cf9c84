"""DSPy's streams by URL: what its listeners hear of a field is the field."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

dspy = pytest.importorskip("dspy")
pytestmark = pytest.mark.agents

from tests.integrations.conftest import SCRIPT
from tests.server.processes import ServeProcess, serving

QUESTION = "How warm is it in Paris?"
ANSWER = "It is 21 degrees in Paris."


def model_of(server: ServeProcess) -> Any:
    return dspy.LM("openai/says", api_base=f"{server.url}/v1", api_key="unused", cache=False, timeout=60)


@pytest.fixture
def served(scripted_server: ServeProcess) -> Iterator[None]:
    with dspy.context(lm=model_of(scripted_server)):
        yield


def heard(program: Any, *fields: str) -> tuple[list[Any], Any]:
    """Return what listeners to these fields get, and what the program returns in the end."""

    async def listen() -> list[Any]:
        listeners = [dspy.streaming.StreamListener(signature_field_name=field) for field in fields]
        streamed = dspy.streamify(program, stream_listeners=listeners)
        return [item async for item in streamed(question=QUESTION)]

    *pieces, prediction = asyncio.run(listen())
    assert isinstance(prediction, dspy.Prediction)
    assert all(isinstance(piece, dspy.streaming.StreamResponse) for piece in pieces)
    return pieces, prediction


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("num_times", [1, 2])
def test_a_listener_hears_its_field_as_it_is_written(num_times: int) -> None:
    for _ in range(num_times):
        pieces, prediction = heard(dspy.Predict("question -> answer"), "answer")
        assert prediction.answer == ANSWER
        assert len(pieces) > 1
        assert "".join(piece.chunk for piece in pieces).strip() == ANSWER
        assert {piece.signature_field_name for piece in pieces} == {"answer"}
        assert pieces[-1].is_last_chunk


@pytest.mark.usefixtures("served")
def test_two_listeners_hear_each_its_own_field_in_turn() -> None:
    pieces, prediction = heard(dspy.ChainOfThought("question -> answer"), "reasoning", "answer")
    for field in ("reasoning", "answer"):
        streamed = "".join(piece.chunk for piece in pieces if piece.signature_field_name == field)
        assert streamed.strip() == getattr(prediction, field) != ""
    order = [piece.signature_field_name for piece in pieces]
    assert order == sorted(order, reverse=True)


@pytest.mark.usefixtures("served")
def test_a_stream_that_is_left_can_be_followed_by_another() -> None:
    async def first_piece() -> str:
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        streamed = dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=[listener])
        stream = streamed(question=QUESTION)
        piece = await anext(stream)
        await stream.aclose()
        return str(piece.chunk)

    assert ANSWER.startswith(asyncio.run(first_piece()).strip())
    assert heard(dspy.Predict("question -> answer"), "answer")[1].answer == ANSWER


def test_steps_that_come_whole_are_separated_by_field(tmp_path: Path) -> None:
    options = ["--target", str(SCRIPT), "--draft", str(SCRIPT), "--strategy", "lookahead"]
    options += ["--verifier", "numbers", "--set", "target.kind=scripted", "--set", "draft.kind=scripted"]
    with serving(*options, cwd=tmp_path) as server, dspy.context(lm=model_of(server)):
        pieces, prediction = heard(dspy.ChainOfThought("question -> answer"), "reasoning", "answer")
    streamed = [(piece.signature_field_name, piece.chunk) for piece in pieces if piece.chunk]
    assert streamed == [("reasoning", prediction.reasoning), ("answer", ANSWER)]
