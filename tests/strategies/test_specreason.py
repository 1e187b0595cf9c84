"""Steps that are judged alone: what stands is not written again, what does not is the target's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.errors import SettingsError
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.specreason import Hybrid, SpecReason
from reason_spec.types import NoiseKey, Sampling, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.cascade import CascadeVerifier
from reason_spec.verifiers.exact import ExactVerifier
from reason_spec.verifiers.likelihood import LikelihoodVerifier
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import PROMPT, AnyBirds, Breaks, Outcome, Says, autoregressive, solve

Make = Callable[[ScriptedEngine, ScriptedEngine], Strategy]


def strategy(
    kind: type[SpecReason],
    verifier: Callable[[ScriptedEngine], Verifier],
    **settings_: Any,
) -> Make:
    return lambda target, draft: kind(StrategySettings(**settings_), target, draft, verifier(target))


def specreason(verifier: Callable[[ScriptedEngine], Verifier] = LikelihoodVerifier, **more: int) -> Make:
    return strategy(SpecReason, verifier, **more)


def hybrid(compare: Verifier | None = None, **more: int) -> Make:
    return strategy(
        Hybrid,
        lambda target: CascadeVerifier([LikelihoodVerifier(target), compare or ExactVerifier()]),
        **more,
    )


STORIES = {
    "seed": st.integers(0, 10_000),
    "agreement": st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    "depth": st.integers(0, 6),
    "width": st.integers(1, 3),
    "budget": st.integers(1, 120),
    "step_max_tokens": st.sampled_from([3, 7, 512]),
    "first": st.integers(0, 3),
    "corrections": st.integers(0, 3),
    "make": st.sampled_from([specreason, hybrid]),
}


@pytest.mark.parametrize("make", [specreason, hybrid])
@pytest.mark.parametrize("draft_fails_after", [0, 5, 40])
def test_a_draft_engine_that_fails_leaves_the_rest_to_the_target(
    make: Callable[..., Make], draft_fails_after: int
) -> None:
    scripts = StoryScript(3), StoryScript(3)
    outcome = solve(make(), *scripts, draft_fails_after=draft_fails_after)
    assert outcome.text == solve(autoregressive, *scripts).text
    assert outcome.steps[-1].origin == "target"
    assert "draft: scripted failure" in str(outcome.recorder.draft_failure)
    assert outcome.left_running == 0


@settings(max_examples=200, deadline=None)
@given(**STORIES)
def test_where_only_the_targets_own_steps_are_likely_they_are_what_is_written(
    seed: int,
    agreement: float,
    depth: int,
    width: int,
    budget: int,
    step_max_tokens: int,
    first: int,
    corrections: int,
    make: Callable[..., Make],
) -> None:
    scripts = StoryScript(seed), StoryScript(seed, agreement)
    alone = solve(autoregressive, *scripts, max_tokens=budget)
    chosen = make(
        depth=depth,
        width=width,
        step_max_tokens=step_max_tokens,
        first_by_target=first,
        max_corrections=corrections,
    )
    written = solve(chosen, *scripts, max_tokens=budget)
    assert written.tokens == alone.tokens
    assert written.text == alone.text
    assert written.left_running == 0


@pytest.mark.parametrize("make", [specreason, hybrid])
def test_the_target_writes_nothing_where_every_step_stands(make: Callable[..., Make]) -> None:
    outcome = solve(make(), StoryScript(3), StoryScript(3))
    assert {step.origin for step in outcome.steps} == {"draft"}
    assert outcome.recorder.target_usage.num_generated_tokens == 0
    assert outcome.recorder.alpha_step == 1.0


@pytest.mark.parametrize(
    "verifier",
    [Says("reject"), Says("unknown"), Breaks("accept"), Says("accept", seconds=5, deadline=0.01)],
    ids=["reject", "unknown", "breaks", "too slow"],
)
@pytest.mark.parametrize("width", [1, 2])
def test_whatever_a_verifier_does_but_accept_leaves_the_step_to_the_target(
    verifier: Verifier, width: int
) -> None:
    scripts = StoryScript(5), StoryScript(5, 0.5)
    outcome = solve(specreason(lambda _: verifier, width=width), *scripts)
    assert outcome.tokens == solve(autoregressive, *scripts).tokens
    assert {step.origin for step in outcome.steps} == {"target"}
    assert outcome.left_running == 0


def test_a_verifier_that_always_accepts_gives_the_drafts_story() -> None:
    scripts = StoryScript(5), StoryScript(5, 0.5)
    outcome = solve(specreason(lambda _: Says("accept")), *scripts)
    assert outcome.text == solve(autoregressive, scripts[1], scripts[1]).text
    assert outcome.recorder.target_usage.num_generated_tokens == 0


def test_the_first_steps_may_be_kept_for_the_target() -> None:
    outcome = solve(specreason(first_by_target=2), StoryScript(3), StoryScript(3))
    assert [step.origin for step in outcome.steps[:4]] == ["target", "target", "draft", "draft"]


def test_what_is_left_open_is_compared_with_the_targets_own_step() -> None:
    """The likelihood refuses every rewording here; the comparison lets them stand."""

    class OnlyOpen(LikelihoodVerifier):
        async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
            verdict = await super()._judge(context, drafted, target)
            return verdict if verdict.accepted else Verdict("unknown", verdict.score, work=verdict.work)

    def verifier(target: ScriptedEngine) -> Verifier:
        return CascadeVerifier([OnlyOpen(target), AnyBirds()])

    outcome = solve(strategy(Hybrid, verifier), StoryScript(4), StoryScript(4, 0.0))
    reworded = [step for step in outcome.steps if step.text.startswith("Otherwise")]
    assert reworded
    assert all(step.origin == "draft" and step.verdict and step.verdict.accepted for step in reworded)
    checked = [event for event in outcome.recorder.events if event.kind == "checked"]
    assert len(checked) >= len(reworded)
    assert len(outcome.recorder.verdicts) < len(checked) + len(outcome.steps)


def test_the_target_mends_one_token_and_the_draft_goes_on() -> None:
    """A draft that tells the target's story once it is put right needs no step of the target."""

    class Slips:
        """Tells the story, but for the first word of every step that it begins itself."""

        def __call__(self, text: str, sampling: object) -> str:
            rest = StoryScript(6)(text, sampling)  # type: ignore[arg-type]
            begins = text.endswith("\n")
            return "Wrong" + rest.removeprefix("Then") if begins and rest.startswith("Then") else rest

    mended = solve(hybrid(), StoryScript(6), Slips())
    written = solve(hybrid(max_corrections=0), StoryScript(6), Slips())
    assert mended.text == written.text == solve(autoregressive, StoryScript(6), StoryScript(6)).text
    assert {step.origin for step in mended.steps} == {"draft"}
    assert mended.recorder.target_usage.num_generated_tokens <= len(mended.steps)
    assert written.recorder.target_usage.num_generated_tokens > 5 * len(mended.steps)


def test_abandoning_a_solution_leaves_nothing_running() -> None:
    for make in (specreason(), hybrid()):
        outcome = solve(make, StoryScript(2), StoryScript(2, 0.5), stop_after=2, target_seconds=0.002)
        assert outcome.left_running == 0
        assert len(outcome.steps) == 2


@pytest.mark.parametrize(
    ("kind", "verifier", "said"),
    [
        (Lookahead, Says("accept"), "specreason"),
        (SpecReason, ExactVerifier(), "lookahead"),
        (Hybrid, Says("accept"), r"says\+semantic"),
    ],
)
def test_a_verifier_that_cannot_do_what_is_asked_is_refused_with_the_remedy(
    kind: type[Strategy], verifier: Verifier, said: str
) -> None:
    engine = ScriptedEngine("target", StoryScript(0))
    with pytest.raises(SettingsError, match=said):
        kind(StrategySettings(), engine, engine, verifier)


def outcome_of(make: Make, seed: int) -> Outcome:
    return solve(make, StoryScript(seed), StoryScript(seed, 0.6))


def test_all_work_is_counted_whoever_wins() -> None:
    outcome = outcome_of(hybrid(AnyBirds()), 11)
    usage = outcome.recorder.target_usage
    assert usage.num_scored_tokens >= sum(len(s.tokens) for s in outcome.steps if s.origin == "draft")
    assert outcome.recorder.draft_usage.num_generated_tokens > 0


@pytest.mark.parametrize("budget", [1, 4, 9, 15, 30])
def test_steps_of_longer_tokens_make_no_answer_too_long(budget: int) -> None:
    """One token of the draft is a line, for which the answer may have no room in the target's tokens."""
    script = StoryScript(3)
    lines = ScriptedTokenizer(r"[^\n]+|\n+")
    accepting = specreason(lambda _: Says("accept"))
    outcome = solve(accepting, script, script, draft_tokenizer=lines, max_tokens=budget)
    assert outcome.tokens == solve(autoregressive, script, script, max_tokens=budget).tokens


class TwoEnds(ScriptedEngine):
    """A model with a second token that ends a text, which its chats do not use."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tokenizer.eos_ids = frozenset({*self.tokenizer.eos_ids, -5})


def written(text: str) -> WrittenAnswers:
    return WrittenAnswers({PROMPT.strip(): (text,)})


def test_a_last_step_in_other_tokens_ends_as_the_target_ends_its_chats() -> None:
    text = "One bird.\n\nTwo birds.\n\nThe end."
    other = ScriptedTokenizer(r"\n+|.")
    outcome = solve(specreason(), written(text), written(text), draft_tokenizer=other, target_kind=TwoEnds)
    assert outcome.text == text
    assert {step.origin for step in outcome.steps} == {"draft"}


@pytest.mark.parametrize("draft_tokenizer", [None, ScriptedTokenizer(r"\n+|.")])
def test_a_drafted_stop_is_judged_with_its_tokens(draft_tokenizer: ScriptedTokenizer | None) -> None:
    target = "One bird.\n\nTwo birds. And three more birds come.\n\nThe end."
    draft = "One bird.\n\nTwo birds.Q: what\n\nThe end."
    outcome = solve(
        specreason(), written(target), written(draft), stops=("Q:",), draft_tokenizer=draft_tokenizer
    )
    assert outcome.text == target


class Corrects(Verifier):
    """Has the first token of a step replaced where it is the wrong one."""

    name, loss_class = "corrects", "routed"
    judges_draft_only, compares = True, True

    def __init__(self, wrong: str, right: str) -> None:
        super().__init__()
        self.wrong, self.right = wrong, ScriptedTokenizer().encode(right)[0]

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        if drafted.text.startswith(self.wrong):
            return Verdict("reject", num_valid_tokens=0, replacement=self.right)
        return Verdict("accept")


class StepsOf:
    """Writes six steps; a step that has begun with another word goes on alike."""

    def __init__(self, first: str) -> None:
        self.first = first

    def __call__(self, text: str, sampling: Sampling) -> str:
        written = text.partition(PROMPT)[2]
        begun = written.rpartition("\n\n")[2]
        steps = [f"{self.first} step {number} it is.\n\n" for number in range(written.count("\n\n"), 5)]
        whole = "".join([*steps, f"{self.first} end it is."])
        if begun:
            whole = begun.split()[0] + whole[len(self.first) :]
        return whole[len(begun) :]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_tokens_of_a_corrected_draft_are_no_discarded_work(temperature: float) -> None:
    def make(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        return Hybrid(StrategySettings(depth=1, max_corrections=1), target, draft, Corrects("Bad", "Good"))

    sampling = Sampling(temperature, noise=NoiseKey(1, 0))
    outcome = solve(make, StepsOf("Good"), StepsOf("Bad"), sampling=sampling)
    assert outcome.text.count("Good") == 6
    usage = outcome.recorder.draft_usage
    of_draft = usage.num_generated_tokens - usage.num_discarded_tokens
    # One token of each step is the target's.
    assert of_draft == len(outcome.tokens) - 6
    assert outcome.recorder.target_usage.num_discarded_tokens == 0
    # The planner counts positions, not attempts.
    assert (outcome.recorder.num_filled_positions, outcome.recorder.num_drafted_positions) == (6, 6)
