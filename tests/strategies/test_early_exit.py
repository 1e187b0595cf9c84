"""A thinking ends where the rule says so, in every strategy; trials never change the text before the exit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.exit.policy import SHIPPED, ExitMonitor
from reason_spec.exit.trials import DEER_PROMPT, DYNASOR_PROMPT
from reason_spec.routers.simple import RandomRouter
from reason_spec.segment import split_steps
from reason_spec.settings import ExitSettings, StrategySettings
from reason_spec.strategies.arbitrage import Arbitrage
from reason_spec.strategies.autoregressive import (
    DraftModelSpeculation,
    PromptLookup,
    SelfSpeculation,
    TokenRecycling,
)
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.early_exit import BOX_PROMPT, PHRASE_PROMPT, ExitWatch, policy_of
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.oracle import Oracle
from reason_spec.strategies.scot import Scot
from reason_spec.strategies.specreason import Atts, Hybrid, Rsd, SpecReason
from reason_spec.strategies.speculative_thinking import SpeculativeThinking
from reason_spec.strategies.ssr import Ssr
from reason_spec.strategies.thinking import CLOSER, ThinkingLimit
from reason_spec.types import Sampling
from reason_spec.verifiers.cascade import CascadeVerifier
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.solving import PROMPT, Outcome, Says, autoregressive, solve

QUESTION = "Ana has 3 boxes of 4 apples. She eats 2 apples. How many apples are left?"
STEPS = (
    "Ana has 3 boxes of 4 apples, so she has 3 * 4 = 12 apples.\n\n",
    "She eats 2 of them: 12 - 2 = 10. So 10 apples are left.\n\n",
    "Wait, let me check that again. 3 * 4 = 12 and 12 - 2 = 10. Correct.\n\n",
    "Wait, maybe the boxes are full. No, they hold 4 apples each.\n\n",
    "Therefore, the answer is 10 apples.\n\n",
    "I have checked it twice now. Let me check it once more, 3 * 4 = 12 and 12 - 2 = 10.\n\n",
)
END = "The apples that are left: \\boxed{10}"
Make = Callable[[ScriptedEngine, ScriptedEngine], Strategy]


class Thinks:
    """A script that thinks, answers trials with ``value``, and answers; without ``closer`` it only thinks.

    At each fourth step its words are others where ``agrees`` is False.
    """

    def __init__(self, value: str = "10", closer: str = CLOSER, *, agrees: bool = True) -> None:
        self.value, self.closer, self.agrees = value, closer, agrees

    def __call__(self, text: str, sampling: Sampling) -> str:
        written = text.removeprefix(PROMPT)
        for prompt, begun in ((DEER_PROMPT, "{"), (DYNASOR_PROMPT, ""), (BOX_PROMPT, "")):
            if written.endswith(prompt):
                return f"{begun}{self.value}}}\n"
        if written.endswith(PHRASE_PROMPT):
            return f" {self.value}."
        thinking, closed, answer = written.partition(self.closer) if self.closer else (written, "", "")
        if closed:
            return f"\n\n{END}".removeprefix(answer)
        steps = STEPS if self.agrees else (*STEPS[:3], "Hmm, no.\n\n", *STEPS[4:])
        whole = "".join(steps) + (f"{self.closer}\n\n{END}" if self.closer else "That is all.")
        if whole.startswith(thinking):
            return whole[len(thinking) :]
        complete = [step for step in split_steps(thinking) if step.endswith("\n\n")]
        partial_step = "".join(split_steps(thinking)[len(complete) :])
        return "".join(steps[len(complete) :]).removeprefix(partial_step)


def watched(rule: str, answer_prompt: str = "", **values: Any) -> ThinkingLimit:
    settings = ExitSettings.model_validate({"rule": rule, **values})
    monitor = partial(ExitWatch, settings, answer_prompt=answer_prompt)
    if answer_prompt:
        return ThinkingLimit(monitor=monitor, closer="", closing=f"\n\n{answer_prompt}", answer_tokens=32)
    return ThinkingLimit(monitor=monitor)


def by(kind: type[Strategy], verifier: Any = None, router: Any = None, **values: Any) -> Make:
    settings = StrategySettings(planner=False, **values)
    return lambda target, draft: kind(settings, target, draft, verifier, router)


STRATEGIES: dict[str, Make] = {
    "autoregressive": autoregressive,
    "prompt_lookup": by(PromptLookup),
    "token_recycling": by(TokenRecycling),
    "self_speculative": by(SelfSpeculation),
    "speculative": by(DraftModelSpeculation),
    "lookahead": by(Lookahead, ExactVerifier(), depth=3),
    "specreason": by(SpecReason, Says("accept"), depth=3),
    "rsd": by(Rsd, Says("accept"), depth=3),
    "atts": by(Atts, Says("reject"), depth=3),
    "hybrid": by(Hybrid, CascadeVerifier([Says("unknown"), ExactVerifier()]), depth=3),
    "arbitrage": by(Arbitrage, router=RandomRouter(0.5), depth=3),
    "scot": by(Scot, Says("accept")),
    "oracle": by(Oracle, Says("accept"), depth=2),
    "speculative_thinking": by(SpeculativeThinking, depth=3),
}
EXACT = ("autoregressive", "prompt_lookup", "speculative", "lookahead")


def think(make: Make, limit: ThinkingLimit | None, target: Thinks | None = None, **options: Any) -> Outcome:
    target = target or Thinks()
    options = {"target_seconds": 0.01, "draft_seconds": 0.002, "virtual_time": True, **options}
    draft = options.pop("draft", Thinks(target.value, target.closer))
    return solve(make, target, draft, thinking=limit, question=QUESTION, **options)


def first_stop(threshold: float) -> int:
    """Return after how many steps the policy alone ends the thinking."""
    monitor = ExitMonitor(policy_of(ExitSettings(rule="policy", threshold=threshold)), QUESTION)
    return next(number for number, step in enumerate(STEPS, 1) if monitor.read(step) is not None)


def test_settings_choose_the_policy_with_a_small_model() -> None:
    assert policy_of(ExitSettings(rule="policy")).reading is None
    policy = policy_of(ExitSettings(rule="policy", read_along=True, threshold=0.9))
    assert policy.reading is not None
    assert (policy.reading.model, policy.threshold) == ("models:smollm2-gsm8k", 0.9)
    with pytest.raises(ValueError, match="leave out it or exit"):
        ExitSettings(rule="policy", read_along=True, policy=SHIPPED)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_policy_ends_the_thinking_in_every_strategy(name: str) -> None:
    outcome = think(STRATEGIES[name], watched("policy", threshold=0.5))
    num_kept = first_stop(0.5)
    assert 1 < num_kept < len(STEPS)
    assert outcome.text == "".join(STEPS[:num_kept]).rstrip("\n") + f"\n\n{CLOSER}\n\n{END}"
    found = outcome.recorder.early_exit
    assert found is not None
    assert (found.rule, found.num_steps, found.answer) == ("policy", num_kept, "10")
    assert outcome.left_running == 0
    assert [step.origin for step in outcome.steps].count("inserted") == 1
    events = [event for event in outcome.recorder.events if event.kind == "exited"]
    assert [(event.step_index, event.text) for event in events] == [(num_kept, "10")]


def test_behind_an_exit_no_direction_is_inserted_into_the_answer() -> None:
    make = by(Ssr, Says("accept"), directions=("Let us count.",))
    outcome = think(make, watched("policy", threshold=0.5))
    thinking, closed, answer = outcome.text.partition(CLOSER)
    assert thinking.startswith("Let us count.\n\n")
    assert (closed, answer) == (CLOSER, f"\n\n{END}")
    assert outcome.recorder.early_exit is not None


@pytest.mark.parametrize("name", STRATEGIES)
def test_without_an_exit_a_text_without_thinking_tags_is_the_models_at_any_length(name: str) -> None:
    target, limit = Thinks(closer=""), watched("policy", BOX_PROMPT, threshold=1.0)
    whole = len(think(STRATEGIES[name], None, target).tokens)
    for max_tokens in (1, whole // 3, whole // 2, whole - 2, whole - 1, whole):
        free = think(STRATEGIES[name], None, target, max_tokens=max_tokens)
        limited = think(STRATEGIES[name], limit, target, max_tokens=max_tokens)
        assert (limited.tokens, limited.steps[-1].finish) == (free.tokens, free.steps[-1].finish)


def test_an_exit_leaves_room_for_the_answer() -> None:
    kept = "".join(STEPS[: first_stop(0.5)])
    asked = ScriptedTokenizer().encode(kept + BOX_PROMPT)
    ended = []
    for max_tokens in range(len(asked) - 10, len(asked) + 40):
        limit, target = watched("policy", BOX_PROMPT, threshold=0.5), Thinks(closer="")
        outcome = think(autoregressive, limit, target, max_tokens=max_tokens)
        assert len(outcome.tokens) <= max_tokens
        if outcome.recorder.early_exit is not None and BOX_PROMPT in outcome.text:
            assert outcome.text.partition(BOX_PROMPT)[2]
            ended.append(max_tokens)
    assert ended
    assert min(ended) > len(asked)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("rule", ["probes", "deer", "dynasor"])
@pytest.mark.parametrize("value", ["10", "11", ""])
def test_trials_do_not_change_the_text_before_the_exit(name: str, rule: str, value: str) -> None:
    limit = watched(rule, threshold=1.0, probe_every=10, agreeing=2, least_chance=0.3)
    target, draft = Thinks(value), Thinks(value, agrees=False)
    alone = think(autoregressive, None, target).text
    outcome = think(STRATEGIES[name], limit, target, draft=draft)
    before, closed, _ = outcome.text.partition(CLOSER)
    assert closed
    assert alone.startswith(before.rstrip("\n"))
    assert outcome.recorder.num_probes > 0
    assert outcome.left_running == 0
    if outcome.recorder.early_exit is None:
        assert outcome.text == alone


def test_deer_leaves_out_the_step_that_reconsiders() -> None:
    outcome = think(autoregressive, watched("deer"))
    assert outcome.text == "".join(STEPS[:2]).rstrip("\n") + f"\n\n{CLOSER}\n\n{END}"
    assert outcome.recorder.early_exit is not None
    assert outcome.recorder.early_exit.num_steps == 2


class HangingTrials(ScriptedEngine):
    """Writes no trial: a request that ends with a trial's prompt waits until it is cancelled."""

    def submit(self, request: EngineRequest) -> Generation:
        generation = super().submit(request)
        text = self.tokenizer.decode(request.prefix.to_tuple())
        if text.endswith((DEER_PROMPT, DYNASOR_PROMPT, BOX_PROMPT)):
            self._running[-1].continuation = ()
        return generation

    def _advance(self, running: Any, drafts: tuple[int, ...]) -> None:
        if running.continuation:
            super()._advance(running, drafts)


@pytest.mark.parametrize("rule", ["probes", "deer", "dynasor"])
@pytest.mark.parametrize("name", ["autoregressive", "lookahead"])
def test_hanging_trials_leave_the_answer_as_it_is(name: str, rule: str) -> None:
    limit = watched(rule, threshold=1.0, probe_every=10, least_chance=0.3)
    outcome = think(STRATEGIES[name], limit, target_kind=HangingTrials)
    assert outcome.text == think(autoregressive, None).text
    assert outcome.recorder.early_exit is None
    assert outcome.recorder.num_probes > 0
    assert outcome.left_running == 0


def test_the_work_of_trials_is_counted_with_the_targets() -> None:
    plain = think(autoregressive, watched("policy", threshold=1.0)).recorder
    probed = think(autoregressive, watched("deer"), Thinks("")).recorder
    assert (plain.num_probes, plain.num_probe_tokens) == (0, 0)
    assert probed.num_probes == 2
    more = probed.target_usage.num_generated_tokens - plain.target_usage.num_generated_tokens
    assert probed.num_probe_tokens == more > 0


@pytest.mark.parametrize("prompt", [BOX_PROMPT, PHRASE_PROMPT])
def test_a_text_without_thinking_tags_ends_with_an_answer(prompt: str) -> None:
    outcome = think(autoregressive, watched("policy", prompt, threshold=0.5), Thinks(closer=""))
    kept = "".join(STEPS[: first_stop(0.5)])
    assert outcome.text.startswith(kept + prompt)
    assert outcome.text.removeprefix(kept + prompt).strip(" .}\n") == "10"
    assert outcome.steps[-1].finish == "eos"


def test_a_text_that_states_its_answer_is_not_asked_again() -> None:
    steps = ("The answer is 10.\n\n", "Let me check.\n\n", "The answer is 10.")
    script = lambda text, sampling: "".join(steps).removeprefix(text.removeprefix(PROMPT))  # noqa: E731
    limit = watched("policy", PHRASE_PROMPT, threshold=0.0)
    outcome = solve(autoregressive, script, script, thinking=limit, question=QUESTION)
    assert outcome.text == steps[0]
    assert outcome.steps[-1].ends_text


@pytest.mark.parametrize("stop", ["check that", "boxes are"])
def test_stops_hold_in_a_text_without_thinking_tags(stop: str) -> None:
    limit = watched("policy", BOX_PROMPT, threshold=1.0)
    outcome = think(autoregressive, limit, Thinks(closer=""), stops=(stop,))
    assert outcome.text == "".join(STEPS).partition(stop)[0]
    assert outcome.steps[-1].finish == "stop"


def test_a_step_that_was_cut_is_read_with_the_next() -> None:
    whole = think(autoregressive, watched("policy", threshold=0.5))
    make = by(Lookahead, ExactVerifier(), depth=2, step_max_tokens=7)
    cut = think(make, watched("policy", threshold=0.5))
    assert len(cut.steps) > len(whole.steps)
    assert cut.text == whole.text


def test_text_of_the_thinking_is_told_before_its_end_only_as_whole_steps() -> None:
    told: list[tuple[int, str]] = []
    outcome = think(autoregressive, watched("policy", threshold=0.5), told=told)
    answer_at = outcome.text.index(END)
    assert all(start >= answer_at for start, _ in told)
    assert "".join(text for _, text in told) == END


def test_an_abandoned_answer_leaves_no_trial_running() -> None:
    outcome = think(autoregressive, watched("dynasor", probe_every=5), stop_after=2)
    assert outcome.left_running == 0
    assert outcome.recorder.early_exit is None
