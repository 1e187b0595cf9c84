"""What is read of vLLM's log-probabilities of a prompt; vLLM itself is not needed."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.base import Tokenizer
from reason_spec.engines.vllm import requests
from reason_spec.engines.vllm.loop import VllmLoop
from reason_spec.engines.vllm.requests import ScoringState
from reason_spec.types import Prefix

PREFIX, CONTINUATION = (1, 2, 3, 4, 5), (6, 7, 8)
TEXT = (*PREFIX, *CONTINUATION)


@dataclass
class Value:
    """vLLM's ``Logprob``, as far as it is read."""

    logprob: float


def new_scoring() -> ScoringState:
    return ScoringState(PREFIX, CONTINUATION, owner="", num_read=len(CONTINUATION))


def output(rows: list[Any], num_cached: int) -> Any:
    """vLLM's ``RequestOutput``, as far as it is read."""
    return SimpleNamespace(prompt_logprobs=rows, num_cached_tokens=num_cached)


@pytest.fixture
def rows() -> list[dict[int, Value] | None]:
    """One for each token of the text; the first has nothing before it."""
    return [None, *({token: Value(-token / 10), 99: Value(-0.05)} for token in TEXT[1:])]


@given(num_cached=st.integers(len(PREFIX), len(TEXT) - 1))
def test_rows_of_cached_positions_are_not_read_whatever_they_hold(num_cached: int) -> None:
    """The first position that is computed again tells of the token behind it."""
    scoring = new_scoring()
    stale = [None, *({token: Value(0.14)} for token in TEXT[1:])]
    assert scoring.read(output(stale, num_cached)) is None
    assert not scoring.reads_cache


@pytest.mark.parametrize("num_cached", [0, 3, 4])
def test_rows_behind_the_cache_are_read_whether_or_not_others_are_left_out(
    rows: list[dict[int, Value] | None], num_cached: int
) -> None:
    for given_rows in (rows, [None, *rows[num_cached + 1 :]]):
        score = new_scoring().read(output(given_rows, num_cached))
        assert score is not None
        assert score.logprobs == (-0.6, -0.7, -0.8)
        assert score.best == (99, 99, 99)


def test_the_second_try_is_read_and_counts_two_passes(rows: list[dict[int, Value] | None]) -> None:
    scoring = new_scoring()
    assert scoring.read(output(rows, len(PREFIX))) is None
    score = scoring.read(output(rows, 0))
    assert score is not None
    assert score.usage.num_passes == 2


class RefusingEngine:
    """vLLM's ``LLMEngine``, as far as a score needs it: it takes some requests and refuses the next."""

    def __init__(self, num_taken: int) -> None:
        self.num_taken = num_taken
        scheduler = SimpleNamespace(schedule=None)
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_logprobs=20))

    def add_request(self, name: str, *_: object, **__: object) -> str:
        if self.num_taken == 0:
            raise ValueError("max_logprobs is 0")
        self.num_taken -= 1
        return name

    def step(self) -> list[Any]:
        whole = {"prompt_logprobs": [], "num_cached_tokens": len(PREFIX)}
        return [SimpleNamespace(request_id="7", finished=True, **whole)]


@pytest.mark.parametrize("num_taken", [0, 1])
def test_a_score_that_vllm_refuses_at_the_first_or_the_second_try_ends_alone(
    num_taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_one_token", lambda **_: None)
    loop = VllmLoop(
        RefusingEngine(num_taken),
        cast("Tokenizer", None),
        vocab_size=100,
        max_context=100,
        takes_hints=False,
        set_num_threads=lambda _: None,
    )
    loop.score(7, Prefix(PREFIX), CONTINUATION)
    assert loop.step().results == [(7, "vLLM refused the request: ValueError: max_logprobs is 0")]
    assert not loop.has_work
