"""A cue in a drafted step hands it to the target; steps without one are the draft's, unread."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.settings import CueSettings, StrategySettings
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.speculative_thinking import CueKind, Cues, SpeculativeThinking
from reason_spec.types import Sampling, Step
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import Outcome, autoregressive, solve

Make = Callable[[ScriptedEngine, ScriptedEngine], Strategy]
REMINDER = CueSettings().reminder


def thinking(cues: dict[str, Any] | None = None, **more: Any) -> Make:
    chosen = StrategySettings(cues=CueSettings(**(cues or {})), **more)
    return lambda target, draft: SpeculativeThinking(chosen, target, draft, None)


def script(*steps: str) -> WrittenAnswers:
    return WrittenAnswers({"question": ("\n\n".join(steps),)})


def written(*drafted: str, cues: dict[str, Any] | None = None, **more: Any) -> Outcome:
    """Solve with a draft that writes these steps and a target that numbers its own."""
    own = [f"My step {number}." for number in range(len(drafted))]
    return solve(thinking(cues), script(*own), script(*drafted), **more)


def origins(outcome: Outcome) -> list[str]:
    return [step.origin for step in outcome.steps]


def found(text: str, tokenizer: ScriptedTokenizer | None = None, **cues: Any) -> dict[CueKind, str]:
    tokenizer = tokenizer or ScriptedTokenizer()
    step = Step(text, tokenizer.encode(text), "draft", "boundary", tokenizer.tokenizer_id)
    return Cues(CueSettings(**cues), tokenizer).found(step)


def test_the_target_does_nothing_where_there_is_no_cue() -> None:
    outcome = written("Two and two.", "That is four.", "The answer is 4.")
    assert outcome.text == "Two and two.\n\nThat is four.\n\nThe answer is 4."
    usage = outcome.recorder.target_usage
    assert (usage.num_passes, usage.num_generated_tokens, usage.num_scored_tokens) == (0, 0, 0)
    assert outcome.recorder.alpha_step == 1.0


@pytest.mark.parametrize(
    "cue",
    [
        "Wait, no.",
        "ALTERNATIVELY we add.",
        "Now hold  on.",
        "Let me check.",
        "I verify it.",
        "So (yes).",
        "The final\nanswer is 4.",
    ],
)
def test_a_step_with_a_cue_is_the_targets(cue: str) -> None:
    outcome = written("Two and two.", cue, "That is four.", "The answer is 4.")
    assert origins(outcome) == ["draft", "target", "draft", "draft"]
    assert outcome.steps[1].text == "My step 1.\n\n"
    assert outcome.recorder.target_usage.num_generated_tokens == len(outcome.steps[1].tokens)
    verdict = outcome.steps[1].verdict
    assert verdict is not None
    assert verdict.decision == "reject"
    assert outcome.recorder.draft_usage.num_discarded_tokens > 0
    assert outcome.left_running == 0


@pytest.mark.parametrize(
    "text", ["She awaits him.", "The waiter came.", "A chequered past, checked.", "Yesterday.", "Hold it on."]
)
def test_a_cue_within_another_word_is_none(text: str) -> None:
    assert found(text) == {}
    assert origins(written("Two and two.", text, "The answer is 4.")) == ["draft"] * 3


def test_only_the_first_tokens_of_a_step_are_looked_at() -> None:
    text = "One two three wait."
    assert found(text, window=4) == {"reflection": "wait"}
    assert found(text, window=3) == {}


def test_a_word_that_the_window_cuts_is_not_taken_for_a_cue() -> None:
    letters = ScriptedTokenizer(".")
    assert found("Waiting for it.", letters, window=4) == {}
    assert found("Wait for it.", letters, window=4) == {"reflection": "Wait"}
    assert found("Wait for it.", letters, window=3) == {}


def test_cues_are_what_the_settings_say() -> None:
    text = "Moment mal, wait: check it (a+b)."
    assert found(text, reflection=["moment mal"], verification=["(a+b)"]) == {
        "reflection": "Moment mal",
        "verification": "(a+b)",
    }
    assert found(text, reflection=[], verification=[]) == {}
    assert CueSettings.model_validate({"reflection": "hmm"}).reflection == ("hmm",)
    with pytest.raises(ValueError, match="a cue is empty"):
        CueSettings(conclusion=(" ",))


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    agreement=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    depth=st.integers(0, 6),
    width=st.integers(1, 3),
    budget=st.integers(1, 120),
    first=st.integers(0, 3),
    other_tokens=st.booleans(),
)
def test_where_every_departure_has_a_cue_the_answer_is_the_targets(
    seed: int, agreement: float, depth: int, width: int, budget: int, first: int, other_tokens: bool
) -> None:
    scripts = StoryScript(seed), StoryScript(seed, agreement, other="Wait")
    alone = solve(autoregressive, *scripts, max_tokens=budget)
    outcome = solve(
        thinking({"remind_after": 0}, depth=depth, width=width, first_by_target=first),
        *scripts,
        max_tokens=budget,
        draft_tokenizer=ScriptedTokenizer(r"\n+|\w+|\s|.") if other_tokens else None,
    )
    assert outcome.tokens == alone.tokens
    assert outcome.text == alone.text
    assert outcome.left_running == 0


def test_without_drafts_the_answer_is_the_targets_and_exact() -> None:
    scripts = StoryScript(1), StoryScript(1, 0.0, other="Wait")
    outcome = solve(thinking({"remind_after": 1}, depth=0), *scripts)
    assert outcome.tokens == solve(autoregressive, *scripts).tokens
    engine = ScriptedEngine("target", StoryScript(0))
    assert thinking(depth=0)(engine, engine).loss_class == "exact"
    assert thinking()(engine, engine).loss_class == "routed"


# The reminder --------------------------------------------------------------------------------

TURNS = ["Wait, one.", "All is well.", "Wait, two.", "Wait, three.", "Wait, four.", "The answer is 4."]


def reminded(remind_after: int, **more: Any) -> Outcome:
    """Both models turn back at the same places."""
    return solve(thinking({"remind_after": remind_after}), script(*TURNS), script(*TURNS), **more)


def test_after_so_many_reflections_a_sentence_is_put_in_and_the_target_goes_on() -> None:
    outcome = reminded(2)
    # Behind the sentence the scripts are at the step that comes next by count.
    assert origins(outcome)[:5] == ["target", "draft", "target", "inserted", "target"]
    inserted = outcome.steps[3]
    assert (inserted.text, inserted.verdict) == (REMINDER, None)
    assert outcome.left_running == 0


def test_the_step_behind_the_sentence_is_the_targets_whatever_the_draft_would_write() -> None:
    outcome = reminded(1)
    assert [(step.origin, step.text) for step in outcome.steps[:3]] == [
        ("target", "Wait, one.\n\n"),
        ("inserted", REMINDER),
        ("target", "All is well.\n\n"),
    ]


def test_the_sentence_waits_for_the_end_of_a_step() -> None:
    cues = {"remind_after": 1, "takeover_tokens": 2}
    outcome = solve(thinking(cues), script(*TURNS), script(*TURNS))
    before = [first for first, second in pairwise(outcome.steps) if second.origin == "inserted"]
    assert all(step.finish == "boundary" for step in before)
    assert before


def test_the_count_begins_anew_behind_the_sentence() -> None:
    # What the target writes behind the sentence is not taken over from the draft and does not count.
    assert origins(reminded(2)).count("inserted") == 1
    assert origins(reminded(1)).count("inserted") == 3
    assert origins(reminded(5)).count("inserted") == 0
    assert origins(reminded(0)).count("inserted") == 0


def test_what_is_put_in_counts_as_no_models_work() -> None:
    outcome = reminded(2)
    usage = outcome.recorder.target_usage
    of_target = sum(len(step.tokens) for step in outcome.steps if step.origin == "target")
    assert usage.num_generated_tokens - usage.num_discarded_tokens == of_target
    of_draft = sum(len(step.tokens) for step in outcome.steps if step.origin == "draft")
    kept = outcome.recorder.draft_usage
    assert kept.num_generated_tokens - kept.num_discarded_tokens == of_draft


def test_only_what_the_target_still_says_counts() -> None:
    """Where it writes on without turning back, the sentence is not needed."""
    outcome = solve(thinking({"remind_after": 1}), script(*["I add."] * 6), script(*TURNS))
    assert "inserted" not in origins(outcome)


@pytest.mark.parametrize("budget", range(1, 45))
def test_no_answer_is_longer_than_it_may_be(budget: int) -> None:
    outcome = reminded(2, max_tokens=budget)
    assert len(outcome.tokens) <= budget
    assert not outcome.text.endswith(REMINDER)
    assert outcome.left_running == 0


def test_a_sentence_with_a_stop_in_it_is_not_put_in() -> None:
    outcome = reminded(2, stops=("wrong steps",))
    assert "inserted" not in origins(outcome)
    assert "The answer is 4." in outcome.text


def test_a_stop_that_begins_in_the_sentence_ends_the_answer_before_it() -> None:
    full = reminded(2).text
    behind = full[full.index(REMINDER) + len(REMINDER) :][:4]
    outcome = reminded(2, stops=(f"steps:{behind}",))
    assert outcome.text == full[: full.index("steps:")]


@pytest.mark.parametrize("stop_after", [1, 3, 4, 5])
def test_abandoning_a_solution_leaves_nothing_running(stop_after: int) -> None:
    outcome = reminded(2, stop_after=stop_after, target_seconds=0.002)
    assert len(outcome.steps) == stop_after
    assert outcome.left_running == 0


# The rest ------------------------------------------------------------------------------------


def test_the_target_may_be_given_a_few_tokens_of_a_step_only() -> None:
    def draft(text: str, sampling: Sampling) -> str:
        rest = " is done.\n\nThe answer is 4."
        return rest if text.endswith("My step") else script("Two and two.", "Wait, no.")(text, sampling)

    outcome = solve(thinking({"takeover_tokens": 2}), script("One.", "My step two."), draft)
    assert [(step.text, step.origin, step.finish) for step in outcome.steps[1:3]] == [
        ("My step", "target", "length"),
        (" is done.\n\n", "draft", "boundary"),
    ]
    assert outcome.recorder.target_usage.num_generated_tokens == 2


def test_cues_that_cannot_be_looked_for_leave_every_step_to_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Cues, step: Step) -> dict[str, str]:
        raise ZeroDivisionError("a broken pattern")

    monkeypatch.setattr(Cues, "found", broken)
    scripts = StoryScript(5), StoryScript(5, 0.5)
    outcome = solve(thinking(), *scripts)
    assert outcome.tokens == solve(autoregressive, *scripts).tokens
    assert {step.origin for step in outcome.steps} == {"target"}
