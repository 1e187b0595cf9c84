"""Several directions are followed at once: the likeliest ones, and the first that ends is the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines.generation import Score
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.ssr import Ssr
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.types import Prefix, Usage
from reason_spec.verifiers.base import Verifier
from tests.strategies.solving import Breaks, Outcome, Says, autoregressive, solve

NAMES = ("Algebra", "Table", "Guess", "Drawing")
LENGTHS = dict(zip(NAMES, (5, 2, 1, 3), strict=True))
"""Steps of the answer in each direction."""


def answers(words: str) -> WrittenAnswers:
    """Answers after each direction, and to the bare question."""
    written = {
        f"{name}!": ("\n" + "".join(f"{words} {name} {step}.\n\n" for step in range(length)) + "The end.",)
        for name, length in LENGTHS.items()
    }
    return WrittenAnswers({"question": (f"{words} alone.\n\nThe end.",), **written})


class Likes(ScriptedEngine):
    """Finds the openings likely in the order of ``liked``."""

    liked: Sequence[str] = NAMES

    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        text = self.tokenizer.decode(continuation)
        rank = next((place for place, name in enumerate(self.liked) if name in text), 9)
        logprobs = tuple(-1.0 - rank for _ in continuation)
        assert fmean(logprobs) == -1.0 - rank
        return Score(logprobs, continuation, Usage(num_scored_tokens=len(continuation)))


def ssr(verifier: Verifier, **more: Any) -> Callable[[ScriptedEngine, ScriptedEngine], Strategy]:
    chosen = StrategySettings(**{"directions": tuple(f"{name}!" for name in NAMES), **more})
    return lambda target, draft: Ssr(chosen, target, draft, verifier)


def followed(verifier: Verifier, liked: Sequence[str] = NAMES, *, width: int = 3, **more: Any) -> Outcome:
    kind = type("Liking", (Likes,), {"liked": liked})
    options = {key: more.pop(key) for key in ("stops", "max_tokens") if key in more}
    return solve(
        ssr(verifier, width=width, **more),
        answers("Mine"),
        answers("Draft"),
        target_kind=kind,
        target_seconds=0.01,
        draft_seconds=0.01,
        virtual_time=True,
        **options,
    )


@settings(max_examples=15, deadline=None)
@given(st.permutations(NAMES), st.integers(2, 4))
def test_of_the_likeliest_directions_the_first_to_end_is_the_answer(liked: list[str], width: int) -> None:
    outcome = followed(Says("accept"), liked, width=width)
    best = min(liked[:width], key=LENGTHS.__getitem__)
    assert outcome.text.startswith(f"{best}!\n\nDraft {best} 0.")
    assert outcome.text.endswith("The end.")
    assert [step.origin for step in outcome.steps] == ["inserted", *["draft"] * (LENGTHS[best] + 1)]
    assert outcome.left_running == 0


def test_width_one_follows_three() -> None:
    assert followed(Says("accept"), width=1).text.startswith("Guess!")
    assert followed(Says("accept"), ("Algebra", "Table", "Drawing", "Guess"), width=1).text.startswith(
        "Table!"
    )


def test_steps_that_are_not_accepted_are_the_targets() -> None:
    for verifier in (Says("reject"), Says("unknown"), Breaks("accept")):
        outcome = followed(verifier)
        assert outcome.text == "Guess!\n\nMine Guess 0.\n\nThe end."
        assert {step.origin for step in outcome.steps[1:]} == {"target"}


def test_the_work_of_other_directions_is_discarded_and_counted() -> None:
    outcome = followed(Says("accept"))
    usage = outcome.recorder.draft_usage
    kept = sum(len(step.tokens) for step in outcome.steps if step.origin == "draft")
    assert usage.num_generated_tokens > kept
    assert usage.num_generated_tokens - usage.num_discarded_tokens == kept
    # The openings were scored, and each path has rows of its own.
    assert outcome.recorder.target_usage.num_scored_tokens >= len(NAMES)
    events = outcome.recorder.events
    started = [event.work for event in events if event.kind == "started"]
    assert len(started) == len(set(started))
    assert len({event.branch % 3 for event in events if event.kind == "started"}) == 3


def test_a_direction_with_a_stop_is_not_taken_and_without_any_the_target_writes() -> None:
    outcome = followed(Says("accept"), stops=("Guess",))
    assert outcome.text.startswith("Table!")
    alone = solve(autoregressive, answers("Mine"), answers("Draft"), stops=("!",))
    assert followed(Says("accept"), stops=("!",)).tokens == alone.tokens
    assert followed(Says("accept"), depth=0).text == "Mine alone.\n\nThe end."


@pytest.mark.parametrize("max_tokens", [1, 4, 9, 12])
def test_no_answer_is_longer_than_its_limit(max_tokens: int) -> None:
    outcome = followed(Says("accept"), max_tokens=max_tokens)
    assert 0 < len(outcome.tokens) <= max_tokens
    assert outcome.left_running == 0


def test_behind_a_thinking_that_a_limit_ends_no_direction_is_inserted() -> None:
    limit = ThinkingLimit(max_steps=1, closer="", closing="Answer: ")
    outcome = solve(ssr(Says("accept")), answers("Mine"), answers("Draft"), target_kind=Likes, thinking=limit)
    assert [step.origin for step in outcome.steps][:3] == ["inserted", "draft", "inserted"]
    assert outcome.text.startswith("Guess!\n\nDraft Guess 0.\n\nAnswer: ")
    assert {step.origin for step in outcome.steps[3:]} == {"target"}
    works = [event.work for event in outcome.recorder.events if event.kind == "started"]
    assert len(works) == len(set(works))


def test_leaving_early_leaves_nothing_running() -> None:
    outcome = solve(ssr(Says("accept")), answers("Mine"), answers("Draft"), target_kind=Likes, stop_after=1)
    assert outcome.left_running == 0
