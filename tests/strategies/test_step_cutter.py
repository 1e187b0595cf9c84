"""Where a length cuts a step, no character is lost, whatever writes the step; the end of the text is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from reason_spec.engines.script import Script
from reason_spec.engines.scripted import END_OF_TEXT, ScriptedEngine, ScriptedTokenizer
from reason_spec.settings import StrategySettings
from reason_spec.strategies.autoregressive import Autoregressive, DraftModelSpeculation
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.specreason import SpecReason
from reason_spec.strategies.speculative_thinking import SpeculativeThinking
from reason_spec.types import Decision
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.solving import Outcome, Says, solve

Make = Callable[[ScriptedEngine, ScriptedEngine], Strategy]
STORY = "Ça coûte 5 €.\n\nWait😀😀 für dich.\n\n价格是五元。😀 Fin."


class ByteTokenizer(ScriptedTokenizer):
    """Every byte is a token; the end of the text has bytes, as where it is no special token."""

    def __init__(self) -> None:
        super().__init__(".")

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(byte + 1 for byte in text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return b"<end>" if token == END_OF_TEXT else bytes([token - 1])


class ByteEngine(ScriptedEngine):
    def __init__(self, name: str, script: Script, **options: Any) -> None:
        super().__init__(name, script, tokenizer=ByteTokenizer(), **options)


def story(text: str, sampling: object) -> str:
    return STORY.removeprefix(text.partition("\n")[2])


def judged(decision: Decision, longest: int) -> Make:
    settings = StrategySettings(step_max_tokens=longest)
    return lambda target, draft: SpecReason(settings, target, draft, Says(decision))


def thinking(longest: int) -> Make:
    settings = StrategySettings.model_validate(
        {"step_max_tokens": longest, "cues": {"takeover_tokens": min(5, longest)}}
    )
    return lambda target, draft: SpeculativeThinking(settings, target, draft, None)


def plain(kind: type[Autoregressive], longest: int) -> Make:
    return lambda target, draft: kind(StrategySettings(step_max_tokens=longest), target, draft, None)


def lookahead(longest: int) -> Make:
    settings = StrategySettings(step_max_tokens=longest, planner=False)
    return lambda target, draft: Lookahead(settings, target, draft, ExactVerifier())


STRATEGIES: dict[str, Callable[[int], Make]] = {
    "autoregressive": lambda longest: plain(Autoregressive, longest),
    "speculative": lambda longest: plain(DraftModelSpeculation, longest),
    "lookahead": lookahead,
    "specreason, accepting": lambda longest: judged("accept", longest),
    "specreason, rejecting": lambda longest: judged("reject", longest),
    "speculative_thinking": thinking,
}


def write(make: Make, **more: Any) -> Outcome:
    return solve(make, story, story, draft_tokenizer=ByteTokenizer(), target_kind=ByteEngine, **more)


@pytest.mark.parametrize("longest", [4, 5, 6, 7, 9, 512])
@pytest.mark.parametrize("name", STRATEGIES)
def test_no_character_is_lost_where_steps_are_cut(name: str, longest: int) -> None:
    told: list[tuple[int, str]] = []
    outcome = write(STRATEGIES[name](longest), told=told)
    tokenizer = ByteTokenizer()
    assert outcome.text == STORY
    assert outcome.tokens == (*tokenizer.encode(STORY), END_OF_TEXT)
    for step in outcome.steps:
        assert tokenizer.encode(step.text) == step.tokens[: len(step.text.encode())]
    for start, piece in told:
        assert STORY[start:].startswith(piece)
    if name == "specreason, rejecting":
        usage = outcome.recorder.target_usage
        assert usage.num_generated_tokens - usage.num_discarded_tokens == len(outcome.tokens)


@pytest.mark.parametrize("longest", [4, 7])
def test_steps_of_one_request_are_those_of_many(longest: int) -> None:
    one, many = (write(STRATEGIES[name](longest)) for name in ("autoregressive", "lookahead"))
    assert [step.text for step in one.steps] == [step.text for step in many.steps]


@pytest.mark.parametrize("longest", [4, 512])
def test_an_answer_that_its_limit_cuts_within_a_character_is_the_targets(longest: int) -> None:
    for max_tokens in range(1, len(STORY.encode()), 3):
        alone, ahead = (
            write(STRATEGIES[name](longest), max_tokens=max_tokens)
            for name in ("autoregressive", "lookahead")
        )
        assert ahead.tokens == alone.tokens == ByteTokenizer().encode(STORY)[:max_tokens]
        assert ahead.text == alone.text


@pytest.mark.parametrize("longest", [4, 7])
def test_a_stop_is_cut_off_after_steps_that_were_cut(longest: int) -> None:
    for name in ("autoregressive", "lookahead"):
        assert write(STRATEGIES[name](longest), stops=("für", "元")).text == STORY.partition("für")[0]


def test_what_is_streamed_has_no_end_of_text() -> None:
    told: list[tuple[int, str]] = []
    write(STRATEGIES["autoregressive"](512), told=told)
    assert "".join(piece for _, piece in told) == STORY
