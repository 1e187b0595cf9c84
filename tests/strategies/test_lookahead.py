from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.control.answer_model import NOTHING_CACHED, CacheForecast
from reason_spec.control.budget import RequestedBudget, SpeculationBudget
from reason_spec.control.costs import Costs, PassCost
from reason_spec.control.load_controller import LoadController
from reason_spec.control.planner import Planner
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.script import Script
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.errors import SettingsError
from reason_spec.events import Recorder
from reason_spec.segment import split_steps
from reason_spec.settings import LoadControlSettings, StrategySettings
from reason_spec.strategies import autoregressive as autoregressive_module
from reason_spec.strategies.autoregressive import Autoregressive, DraftModelSpeculation
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.speculative_thinking import SpeculativeThinking
from reason_spec.types import NoiseKey, Plan, Prefix, Sampling, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import PROMPT, AnyBirds, autoregressive, solve


class DraftsByItself(ScriptedEngine):
    """Takes no hints, as a served target and vLLM with a token method of its own."""

    takes_hints = False


class HasHead(ScriptedEngine):
    """Has a head for tokens, and keeps the requests."""

    requests: ClassVar[list[EngineRequest]] = []

    @property
    def drafts_itself(self) -> bool:
        return True

    def submit(self, request: EngineRequest) -> Generation:
        self.requests.append(request)
        return super().submit(request)


class FixedPlanner(Planner):
    """Plans every answer alike."""

    def __init__(self, fixed: Plan) -> None:
        costs = Costs(PassCost(((1, 0.02), (64, 0.02))), draft_token=0.001)
        super().__init__(costs, max_depth=4, max_draft_tokens=16)
        self.fixed = fixed

    def plan(self, cached: CacheForecast = NOTHING_CACHED, *, may_explore: bool = True) -> Plan:
        return self.fixed


def speculative(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
    return DraftModelSpeculation(StrategySettings(), target, draft, None)


def lookahead(
    depth: int = 4, width: int = 1, verifier: Verifier | None = None, step_max_tokens: int = 512, **more: Any
) -> Callable[[ScriptedEngine, ScriptedEngine], Strategy]:
    config = StrategySettings(depth=depth, width=width, step_max_tokens=step_max_tokens, **more)
    return lambda target, draft: Lookahead(config, target, draft, verifier or ExactVerifier())


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    agreement=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    depth=st.integers(0, 6),
    width=st.integers(1, 3),
    budget=st.integers(1, 120),
    step_max_tokens=st.sampled_from([3, 7, 512]),
    temperature=st.sampled_from([0.0, 0.8]),
)
def test_exact_lookahead_writes_the_tokens_of_the_target_alone(
    seed: int,
    agreement: float,
    depth: int,
    width: int,
    budget: int,
    step_max_tokens: int,
    temperature: float,
) -> None:
    scripts = StoryScript(seed), StoryScript(seed, agreement)
    sampling = Sampling(temperature, noise=NoiseKey(seed))
    alone = solve(autoregressive, *scripts, max_tokens=budget, sampling=sampling)
    ahead = solve(
        lookahead(depth, width, step_max_tokens=step_max_tokens),
        *scripts,
        max_tokens=budget,
        sampling=sampling,
    )
    assert ahead.tokens == alone.tokens
    assert ahead.left_running == 0
    assert ahead.text == alone.text


CODE = "Let me see:\n\nSo\n```py\na = 1\n\nb = 2\n\nc = 3\n```\n\nThat is it.\n\nIt is six.\n\nThe end."


def always(story: str) -> Script:
    return lambda text, sampling: story.removeprefix(text.partition("\n")[2])


@pytest.mark.parametrize("step_max_tokens", [9, 14])
@pytest.mark.parametrize("name", ["lookahead", "autoregressive", "speculative_thinking"])
def test_a_step_that_is_cut_inside_a_code_fence_ends_where_the_code_does(
    name: str, step_max_tokens: int
) -> None:
    def make(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        config = StrategySettings(depth=2, step_max_tokens=step_max_tokens)
        if name == "lookahead":
            return Lookahead(config, target, draft, ExactVerifier())
        kind = Autoregressive if name == "autoregressive" else SpeculativeThinking
        return kind(config, target, draft, None)

    written = solve(make, always(CODE), always(CODE))
    assert written.text == CODE
    ends = {len("".join(split_steps(CODE)[:count])) for count in range(1, 6)}
    assert any(step.finish == "length" for step in written.steps)
    position = 0
    for step in written.steps:
        position += len(step.text)
        assert step.finish != "boundary" or position in ends


def test_a_draft_that_is_slower_than_the_target_is_counted_as_late() -> None:
    scripts = StoryScript(3), StoryScript(3)
    hasty = solve(
        lookahead(depth=1, use_hint=False),
        *scripts,
        target_seconds=0.001,
        draft_seconds=0.05,
        virtual_time=True,
    )
    steps, recorder = hasty.steps, hasty.recorder
    assert not recorder.verdicts
    assert recorder.alpha_step is None
    assert recorder.num_late_drafts == recorder.num_proposed_steps == len(steps)
    assert (recorder.num_filled_positions, recorder.num_drafted_positions) == (0, len(steps))


def test_a_late_draft_that_the_depth_had_held_back_says_nothing_about_the_rate() -> None:
    """At depth 1 every second step is drafted only when the target has written most of it."""

    class Ponders(AnyBirds):
        async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
            await asyncio.sleep(0.02)
            return await super()._judge(context, drafted, target)

    alike = StoryScript(3, num_steps=12), StoryScript(3, num_steps=12)
    ponders = lookahead(depth=1, verifier=Ponders(), use_hint=False)
    found = solve(ponders, *alike, target_seconds=0.01, draft_seconds=0.009, virtual_time=True)
    recorder = found.recorder
    assert recorder.num_late_drafts > 2
    assert recorder.num_filled_positions == recorder.num_drafted_positions == len(recorder.verdicts)


@pytest.mark.parametrize("width", [1, 4])
def test_a_position_with_several_drafts_counts_once(width: int) -> None:
    scripts = StoryScript(3, num_steps=12), StoryScript(3, 0.5, num_steps=12)
    recorder = solve(
        lookahead(depth=2, width=width), *scripts, target_seconds=0.01, virtual_time=True
    ).recorder
    judged = {(event.step_index, event.branch) for event in recorder.events if event.kind == "verified"}
    assert 0 < recorder.num_drafted_positions <= len(judged)
    assert recorder.num_filled_positions >= sum(step.origin == "draft" for step in recorder.steps)
    assert (len(recorder.verdicts) > len(judged)) == (width > 1)


def test_drafts_in_time_and_drafts_of_branches_that_lost_are_not_late() -> None:
    patient = solve(
        lookahead(depth=3), StoryScript(3), StoryScript(3, 0.5), target_seconds=0.002, virtual_time=True
    )
    assert any(step.verdict is not None and not step.verdict.accepted for step in patient.steps)
    assert patient.recorder.num_late_drafts == 0


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    agreement=st.sampled_from([0.0, 0.5, 1.0]),
    run_tokens=st.integers(1, 9),
    budget=st.integers(1, 120),
    temperature=st.sampled_from([0.0, 0.8]),
    target_seconds=st.sampled_from([0.0, 0.0003]),
)
def test_a_draft_model_at_the_token_level_changes_no_token(
    seed: int, agreement: float, run_tokens: int, budget: int, temperature: float, target_seconds: float
) -> None:
    scripts = StoryScript(seed), StoryScript(seed, agreement)
    sampling = Sampling(temperature, noise=NoiseKey(seed))
    alone = solve(autoregressive, *scripts, max_tokens=budget, sampling=sampling)
    with patch.object(autoregressive_module, "DRAFT_RUN_TOKENS", run_tokens):
        drafted = solve(
            speculative, *scripts, max_tokens=budget, sampling=sampling, target_seconds=target_seconds
        )
    assert drafted.tokens == alone.tokens
    assert drafted.text == alone.text
    assert drafted.left_running == 0


def test_a_draft_model_at_the_token_level_saves_passes_where_it_agrees() -> None:
    scripts = StoryScript(3), StoryScript(3)
    alone = solve(autoregressive, *scripts, target_seconds=0.001, virtual_time=True)
    drafted = solve(speculative, *scripts, target_seconds=0.001, virtual_time=True)
    assert drafted.recorder.target_usage.num_passes < alone.recorder.target_usage.num_passes / 2
    assert drafted.recorder.draft_usage.num_discarded_tokens == 0


def test_a_draft_engine_that_fails_at_the_token_level_leaves_the_target_alone() -> None:
    scripts = StoryScript(1, num_steps=40), StoryScript(1, num_steps=40)
    outcome = solve(speculative, *scripts, draft_fails_after=5, target_seconds=0.0003, virtual_time=True)
    assert outcome.text == solve(autoregressive, *scripts).text
    assert "draft: scripted failure" in str(outcome.recorder.draft_failure)
    assert outcome.left_running == 0


def test_a_draft_model_with_other_tokens_is_refused() -> None:
    with pytest.raises(SettingsError, match="different tokenizers"):
        solve(speculative, StoryScript(3), StoryScript(3), draft_tokenizer=ScriptedTokenizer(pattern="."))


def test_the_rest_of_a_reworded_step_is_drafted_anew() -> None:
    @dataclass(frozen=True)
    class OtherFirstWord:
        """Begins every step otherwise, and goes on with a begun step as the target does."""

        seed: int

        def __call__(self, text: str, sampling: Sampling) -> str:
            whole = StoryScript(self.seed)(text, sampling)
            begins = text.endswith("\n")
            return whole.replace("Then", "Otherwise", 1) if begins else whole

    scripts = StoryScript(3), OtherFirstWord(3)
    passes = {
        redraft: solve(
            lookahead(verifier=AnyBirds(), use_redraft=redraft),
            *scripts,
            target_seconds=0.004,
            virtual_time=True,
        ).recorder.target_usage.num_passes
        for redraft in (False, True)
    }
    assert passes[True] < passes[False]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), stop=st.sampled_from(["sang", "now.\n\nThen", ".\n\nThen 1", "The end"]))
def test_a_stop_cuts_the_same_text_from_every_strategy(seed: int, stop: str) -> None:
    scripts = StoryScript(seed), StoryScript(seed, 0.6)
    alone = solve(autoregressive, *scripts, stops=(stop,))
    ahead = solve(lookahead(), *scripts, stops=(stop,))
    full = solve(autoregressive, *scripts)
    assert alone.text == full.text.partition(stop)[0]
    assert ahead.text == alone.text


def test_an_agreeing_draft_writes_every_step_and_costs_the_target_few_passes() -> None:
    scripts = StoryScript(3), StoryScript(3)
    alone = solve(autoregressive, *scripts, target_seconds=0.001, virtual_time=True)
    ahead = solve(lookahead(), *scripts, target_seconds=0.001, virtual_time=True)
    assert {step.origin for step in ahead.steps} == {"draft"}
    assert ahead.steps[0].origin == "draft"
    assert ahead.recorder.alpha_step == 1.0
    assert ahead.recorder.target_usage.num_passes < alone.recorder.target_usage.num_passes


def test_a_disagreeing_draft_leaves_the_targets_steps_and_its_work_is_discarded() -> None:
    outcome = solve(lookahead(), StoryScript(3), StoryScript(3, agreement=0.0))
    assert {step.origin for step in outcome.steps[:-1]} == {"target"}
    assert outcome.recorder.draft_usage.num_discarded_tokens > 0


def test_a_verified_step_keeps_the_drafts_words() -> None:
    scripts = StoryScript(3), StoryScript(3, agreement=0.0)
    outcome = solve(lookahead(verifier=AnyBirds()), *scripts, target_seconds=0.002, virtual_time=True)
    reworded = [step for step in outcome.steps if step.text.startswith("Otherwise")]
    assert reworded
    assert all(step.origin == "draft" and step.verdict and step.verdict.accepted for step in reworded)


def test_models_with_different_tokenizers_exchange_text() -> None:
    scripts = StoryScript(5), StoryScript(5)
    by_character = ScriptedTokenizer(pattern=".")
    alone = solve(autoregressive, *scripts)
    ahead = solve(
        lookahead(), *scripts, draft_tokenizer=by_character, target_seconds=0.003, virtual_time=True
    )
    assert ahead.tokens == alone.tokens
    assert any(step.origin == "draft" for step in ahead.steps)


def test_leaving_early_cancels_everything() -> None:
    outcome = solve(lookahead(), StoryScript(1), StoryScript(1), stop_after=2)
    assert len(outcome.steps) == 2
    assert outcome.left_running == 0


@pytest.mark.parametrize("draft_fails_after", [0, 5, 40])
def test_a_draft_engine_that_fails_leaves_the_target_alone(draft_fails_after: int) -> None:
    scripts = StoryScript(1), StoryScript(1)
    outcome = solve(lookahead(), *scripts, draft_fails_after=draft_fails_after)
    assert outcome.text == solve(autoregressive, *scripts).text
    assert outcome.steps[-1].origin == "target"
    assert "draft: scripted failure" in str(outcome.recorder.draft_failure)
    assert outcome.left_running == 0


def test_a_failing_verifier_leaves_the_targets_steps() -> None:
    class Failing(AnyBirds):
        async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
            raise RuntimeError("out of order")

    scripts = StoryScript(4), StoryScript(4, agreement=0.0)
    outcome = solve(lookahead(verifier=Failing()), *scripts, target_seconds=0.002, virtual_time=True)
    verdicts = [step.verdict for step in outcome.steps if step.verdict is not None]
    assert any(verdict.decision == "unknown" and "out of order" in verdict.reason for verdict in verdicts)
    assert {step.origin for step in outcome.steps[:-1]} == {"target"}
    assert outcome.text == solve(autoregressive, *scripts).text


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), depth=st.integers(0, 4))
def test_the_draft_never_runs_further_ahead_than_the_depth(seed: int, depth: int) -> None:
    outcome = solve(
        lookahead(depth), StoryScript(seed), StoryScript(seed, 0.7), target_seconds=0.001, virtual_time=True
    )
    num_final, furthest = 0, 0
    for event in outcome.recorder.events:
        num_final += event.kind == "final"
        if (event.kind, event.lane) == ("started", "draft") and depth > 0:
            furthest = max(furthest, event.step_index - num_final + 1)
    assert furthest <= depth
    if depth == 0:
        drafted = [event for event in outcome.recorder.events if event.lane == "draft"]
        # Inside a step the draft still writes tokens ahead.
        assert not any(event.purpose == "step" for event in drafted)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_draft_that_stands_is_followed_up_to_the_depth_and_no_further(depth: int) -> None:
    outcome = solve(lookahead(depth), StoryScript(3), StoryScript(3), target_seconds=0.01, virtual_time=True)
    events = outcome.recorder.events
    first_final = next(place for place, event in enumerate(events) if event.kind == "final")
    drafted = [
        e for e in events[:first_final] if (e.kind, e.purpose) == ("started", "step") and e.lane == "draft"
    ]
    assert [event.step_index for event in drafted] == list(range(depth))


def test_wider_drafting_finds_a_step_that_the_first_draft_missed() -> None:
    @dataclass(frozen=True)
    class RightWhenWarm:
        """Writes the target's story only when it samples, as a second draft does."""

        seed: int

        def __call__(self, text: str, sampling: Sampling) -> str:
            agreement = 0.0 if sampling.greedy else 1.0
            return StoryScript(self.seed, agreement)(text, Sampling())

    narrow = solve(
        lookahead(width=1), StoryScript(2), RightWhenWarm(2), target_seconds=0.002, virtual_time=True
    )
    wide = solve(
        lookahead(width=2), StoryScript(2), RightWhenWarm(2), target_seconds=0.002, virtual_time=True
    )
    assert {step.origin for step in narrow.steps[:-1]} == {"target"}
    assert {step.origin for step in wide.steps} == {"draft"}
    assert wide.text == narrow.text


def test_a_draft_that_repeats_itself_is_not_followed() -> None:
    def chant(text: str, sampling: Sampling) -> str:
        return "Again and again.\n\n" * 50

    outcome = solve(lookahead(depth=6), StoryScript(1), chant, target_seconds=0.002, virtual_time=True)
    drafted_ahead = [
        event
        for event in outcome.recorder.events
        if event.kind == "started" and event.lane == "draft" and event.purpose == "step"
    ]
    assert outcome.text == solve(autoregressive, StoryScript(1), StoryScript(1)).text
    assert len(drafted_ahead) <= 3 * len(outcome.steps)


@pytest.mark.parametrize("plan", [None, Plan(0, 0), Plan(2, 0)], ids=str)
def test_a_head_drafts_the_tokens_of_every_request_and_the_draft_model_steps_alone(
    plan: Plan | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HasHead, "requests", [])
    scripts = StoryScript(1), StoryScript(1, 0.7)
    budget = SpeculationBudget() if plan is None else SpeculationBudget(planner=FixedPlanner(plan))
    ahead = solve(lookahead(), *scripts, target_kind=HasHead, budget=budget)
    assert ahead.tokens == solve(autoregressive, *scripts).tokens
    assert all(request.model_drafts and request.num_draft_tokens > 0 for request in HasHead.requests)
    drafted = [event for event in ahead.recorder.events if event.kind == "started" and event.lane == "draft"]
    assert {event.purpose for event in drafted} == ({"step"} if plan != Plan(0, 0) else set())


@pytest.mark.parametrize(("named", "used"), [("auto", "recycling"), ("none", "none")])
def test_a_plan_without_the_draft_model_keeps_the_drafts_that_need_none(
    named: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HasHead, "requests", [])
    monkeypatch.setattr(HasHead, "drafts_itself", False)
    scripts, budget = (StoryScript(1), StoryScript(1)), SpeculationBudget(planner=FixedPlanner(Plan(0, 0)))
    make = lookahead(token_drafter=named)
    planned = solve(make, *scripts, target_kind=HasHead, budget=budget)
    assert planned.tokens == solve(autoregressive, *scripts).tokens
    [request] = HasHead.requests
    assert request.num_draft_tokens == StrategySettings().num_draft_tokens
    assert request.token_drafter == used
    assert planned.recorder.draft_usage.num_passes == 0


@pytest.mark.parametrize("target_kind", [ScriptedEngine, DraftsByItself])
@pytest.mark.parametrize("plan", [Plan(0, 0), Plan(0, 8), Plan(2, 8)], ids=str)
def test_every_plan_can_be_written_whether_the_target_takes_hints_or_not(
    plan: Plan, target_kind: type[ScriptedEngine]
) -> None:
    scripts = StoryScript(1), StoryScript(1, 0.7)
    budget = SpeculationBudget(planner=FixedPlanner(plan))
    ahead = solve(lookahead(), *scripts, target_kind=target_kind, budget=budget)
    assert ahead.tokens == solve(autoregressive, *scripts).tokens
    assert ahead.left_running == 0


def test_one_request_in_the_place_of_steps_drafts_all_tokens_and_not_a_steps_share() -> None:
    passes = {}
    for name, make in (("planned", lookahead()), ("speculative", speculative)):
        controller = LoadController(LoadControlSettings(at_most="tokens"), lambda: None)
        with controller.admit(RequestedBudget(4, 16), FixedPlanner(Plan(4, 1))) as live:
            # A slow target, so that the draft writes all it may during a pass.
            gated = solve(
                make, StoryScript(3), StoryScript(3), target_seconds=0.01, virtual_time=True, budget=live
            )
        passes[name] = gated.recorder.target_usage.num_passes
        assert len(gated.tokens) > 60
    assert passes["planned"] <= passes["speculative"] + 4
    assert passes["planned"] < len(gated.tokens) / 3


async def test_the_time_of_the_reader_is_known_apart() -> None:
    target, draft = (ScriptedEngine(name, StoryScript(3, num_steps=3)) for name in ("target", "draft"))
    await target.start()
    await draft.start()
    prompt = Prefix(target.tokenizer.encode(PROMPT))
    recorder, num_steps = Recorder(), 0
    async with aclosing(
        lookahead()(target, draft).solve(SolveRequest(PROMPT, prompt, prompt, 500), recorder)
    ) as steps:
        async for _ in steps:
            num_steps += 1
            await asyncio.sleep(0.05)
    await target.close()
    await draft.close()
    # The pause behind the last step is not part of its time.
    assert num_steps > 2
    assert recorder.reader_seconds >= 0.05 * (num_steps - 1)
    last = next(event.at for event in reversed(recorder.events) if event.kind == "final")
    assert recorder.reader_seconds < last
