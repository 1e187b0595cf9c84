"""A limit ends the thinking at a step boundary, never a token over, with its tag and an answer after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.control.answer_model import NOTHING_CACHED, CacheForecast
from reason_spec.control.budget import SpeculationBudget
from reason_spec.control.costs import Costs, PassCost
from reason_spec.control.planner import Planner
from reason_spec.engines.script import Script
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.engines.stats import PassTime
from reason_spec.events import Recorder, ThinkingOutcome
from reason_spec.routers.simple import RandomRouter
from reason_spec.segment import split_steps
from reason_spec.settings import StrategySettings
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.strategies.arbitrage import Arbitrage
from reason_spec.strategies.autoregressive import (
    Autoregressive,
    DraftModelSpeculation,
    PromptLookup,
    SelfSpeculation,
    TokenRecycling,
)
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.oracle import Oracle
from reason_spec.strategies.scot import Scot
from reason_spec.strategies.specreason import Atts, Hybrid, Rsd, SpecReason
from reason_spec.strategies.speculative_thinking import SpeculativeThinking
from reason_spec.strategies.ssr import Ssr
from reason_spec.strategies.thinking import CLOSER, MonitorDecision, ThinkingLimit
from reason_spec.suffix.scopes import SuffixCaches
from reason_spec.types import Plan, Sampling, Step
from reason_spec.verifiers.base import Verifier
from reason_spec.verifiers.cascade import CascadeVerifier
from reason_spec.verifiers.exact import ExactVerifier
from reason_spec.verifiers.likelihood import LikelihoodVerifier
from tests.naive_suffix import NaiveCache, naive_caches
from tests.strategies.solving import PROMPT, Agrees, Outcome, Says, autoregressive, solve

Make = Callable[[ScriptedEngine, ScriptedEngine], Strategy]
TOKENIZER = ScriptedTokenizer()
ANSWER = "It is 4."
THOUGHT = "Two and two.\n\nThat makes four.\n\nLet me check: four.\n\nYes.\n"


@dataclass(frozen=True)
class Thinks:
    """A script that thinks, closes its thinking and answers; it answers behind any closing tag."""

    thought: str = THOUGHT
    closer: str = f"{CLOSER}\n\n"
    opening: str = ""
    answer: str = ANSWER

    def __call__(self, text: str, sampling: Sampling) -> str:
        written = text.partition(PROMPT)[2].removeprefix(self.opening)
        thought, closed, answer = written.partition(CLOSER)
        if closed:
            whole = f"\n\n{self.answer}"
            return whole[len(answer) :] if whole.startswith(answer) else self.answer[len(answer) :]
        ending = f"{self.closer}{self.answer}" if self.closer else ""
        whole = f"{self.thought}{ending}"
        return whole[len(thought) :] if len(thought) <= len(self.thought) else whole[len(self.thought) :]


def with_settings(
    kind: Any, verifier: Callable[[ScriptedEngine], Verifier] | None = None, **chosen: Any
) -> Make:
    def make(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        made: Strategy = kind(
            StrategySettings(**chosen), target, draft, None if verifier is None else verifier(target)
        )
        return made

    return make


def routed(**chosen: Any) -> Make:
    return lambda target, draft: Arbitrage(StrategySettings(**chosen), target, draft, None, RandomRouter(0.5))


def compares(target: ScriptedEngine) -> Verifier:
    return CascadeVerifier([LikelihoodVerifier(target), ExactVerifier()])


MAKERS: dict[str, Callable[..., Make]] = {
    "autoregressive": lambda **more: with_settings(Autoregressive, **more),
    "prompt_lookup": lambda **more: with_settings(PromptLookup, **more),
    "token_recycling": lambda **more: with_settings(TokenRecycling, **more),
    "self_speculative": lambda **more: with_settings(SelfSpeculation, **more),
    "speculative": lambda **more: with_settings(DraftModelSpeculation, **more),
    "lookahead": lambda **more: with_settings(Lookahead, lambda _: ExactVerifier(), **more),
    "lookahead, accepting": lambda **more: with_settings(Lookahead, lambda _: Agrees(), **more),
    "specreason": lambda **more: with_settings(SpecReason, lambda _: Says("accept"), **more),
    "rsd": lambda **more: with_settings(Rsd, lambda _: Says("accept"), **more),
    "atts": lambda **more: with_settings(Atts, lambda _: Says("reject"), **more),
    "arbitrage": routed,
    "hybrid": lambda **more: with_settings(Hybrid, compares, **more),
    "speculative_thinking": lambda **more: with_settings(SpeculativeThinking, **more),
    "scot": lambda **more: with_settings(Scot, lambda _: Says("accept"), **more),
    "oracle": lambda **more: with_settings(Oracle, lambda _: Says("accept"), **more),
}
STRATEGIES = {name: make() for name, make in MAKERS.items()}
LIMITED = {**MAKERS, "ssr": lambda **more: with_settings(Ssr, lambda _: Says("accept"), **more)}
"""Strategies that write what the target would, and those that lead it elsewhere."""
all_strategies = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())


def think(make: Make, limit: ThinkingLimit, target: Thinks | None = None, **more: Any) -> Outcome:
    target = target or Thinks()
    return solve(make, target, more.pop("draft", target), thinking=limit, **more)


def parts(outcome: Outcome, closer: str = CLOSER) -> tuple[str, str]:
    """The thinking and the answer of a text that closes its thinking once."""
    assert outcome.text.count(closer) == 1
    thought, _, answer = outcome.text.partition(closer)
    return thought, answer


def thought_steps(outcome: Outcome) -> list[Step]:
    closed = next(index for index, step in enumerate(outcome.steps) if CLOSER in step.text)
    return outcome.steps[:closed]


@all_strategies
def test_the_thinking_ends_with_the_last_step_that_fits(make: Make) -> None:
    ends = [0, *accumulate(len(TOKENIZER.encode(step)) for step in split_steps(THOUGHT))]
    for budget in range(ends[1], ends[-1]):
        outcome = think(make, ThinkingLimit(max_tokens=budget))
        fitting = max(end for end in ends if end <= budget)
        thought, answer = parts(outcome)
        kept = TOKENIZER.decode(TOKENIZER.encode(THOUGHT)[:fitting])
        assert (thought, answer) == (kept, f"\n\n{ANSWER}")
        assert outcome.recorder.thinking == ThinkingOutcome(fitting, ends.index(fitting), "tokens")


@all_strategies
def test_a_first_step_that_does_not_fit_is_cut_at_the_limit(make: Make) -> None:
    first = len(TOKENIZER.encode(split_steps(THOUGHT)[0]))
    for budget in range(first):
        outcome = think(make, ThinkingLimit(max_tokens=budget))
        thought, answer = parts(outcome)
        kept = TOKENIZER.decode(TOKENIZER.encode(THOUGHT)[:budget])
        assert (thought.removesuffix("\n"), answer) == (kept, f"\n\n{ANSWER}")
        assert outcome.recorder.thinking == ThinkingOutcome(budget, 0, "tokens")


@all_strategies
def test_a_limit_that_is_not_reached_changes_nothing(make: Make) -> None:
    whole = len(TOKENIZER.encode(THOUGHT))
    free = solve(make, Thinks(), Thinks())
    for limit in (ThinkingLimit(max_tokens=whole), ThinkingLimit(max_steps=9), ThinkingLimit()):
        outcome = think(make, limit)
        assert (outcome.text, outcome.tokens) == (free.text, free.tokens)
        assert outcome.recorder.thinking == ThinkingOutcome(whole, 3, "model")


@all_strategies
@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_steps_of_the_thinking_are_counted(make: Make, most: int) -> None:
    outcome = think(make, ThinkingLimit(max_steps=most))
    kept = "".join(split_steps(THOUGHT)[:most])
    assert parts(outcome) == (kept or "\n", f"\n\n{ANSWER}")
    assert outcome.recorder.thinking is not None
    assert (outcome.recorder.thinking.num_steps, outcome.recorder.thinking.ended_by) == (most, "steps")


@all_strategies
@pytest.mark.parametrize("decision", ["end_before", "end_after"])
def test_a_monitor_reads_each_step_and_ends_the_thinking(make: Make, decision: MonitorDecision) -> None:
    read: list[tuple[str, str]] = []
    closed: list[str] = []

    class Second:
        closing = None

        async def read(self, step: Step, before: SolveRequest, after: SolveRequest) -> MonitorDecision:
            assert before.text_before + step.text == after.text_before
            for left in (before, after):
                assert left.target_prompt.to_tuple() == TOKENIZER.encode(PROMPT + left.text_before)
            read.append((step.text, after.question))
            await asyncio.sleep(0)
            return decision if len(read) == 2 else "go_on"

        async def close(self) -> None:
            closed.append("closed")

    outcome = think(make, ThinkingLimit(monitor=lambda *_: Second()))
    first, second, *_ = split_steps(THOUGHT)
    kept = first + second if decision == "end_after" else first
    assert read == [(first, PROMPT), (second, PROMPT)]
    assert closed == ["closed"]
    assert parts(outcome) == (kept, f"\n\n{ANSWER}")
    assert outcome.recorder.thinking is not None
    assert outcome.recorder.thinking.ended_by == "monitor"
    assert outcome.left_running == 0


@all_strategies
def test_a_model_that_stops_within_its_thinking_is_led_to_the_answer(make: Make) -> None:
    outcome = think(make, ThinkingLimit(), Thinks(closer=""))
    assert parts(outcome) == (THOUGHT, f"\n\n{ANSWER}")


@all_strategies
def test_a_thinking_that_stands_alone_ends_with_its_tag_as_a_stop(make: Make) -> None:
    for most, ended_by in ((9, "tokens"), (None, "model")):
        outcome = think(make, ThinkingLimit(max_tokens=most, stands_alone=True))
        assert THOUGHT.startswith(outcome.text)
        assert outcome.steps[-1].finish == "stop"
        written = TOKENIZER.decode(outcome.tokens)
        assert written.partition(CLOSER)[0].removesuffix("\n") == outcome.text.removesuffix("\n")
        assert CLOSER in written
        assert outcome.recorder.thinking is not None
        assert outcome.recorder.thinking.ended_by == ended_by


@all_strategies
@pytest.mark.parametrize(
    "stops", [("That", " 4"), ("four", " 4", "a stop that is longer than the tag"), (">\n\nIt", " 4")]
)
def test_stops_are_for_the_answer_alone(make: Make, stops: tuple[str, ...]) -> None:
    outcome = think(make, ThinkingLimit(max_steps=2), stops=stops)
    assert parts(outcome) == ("".join(split_steps(THOUGHT)[:2]), "\n\nIt is")


def test_tags_and_what_leads_to_the_answer_are_those_of_the_limit() -> None:
    limit = ThinkingLimit(
        max_steps=1, opening="<think>\n", closing="\n</think>\n\n**Final answer** ", heading="never"
    )
    target = Thinks(opening="<think>\n", answer="**Final answer** 4")
    outcome = think(autoregressive, limit, target)
    assert outcome.text == "<think>\nTwo and two.\n\n</think>\n\n**Final answer** 4"
    assert [step.origin for step in outcome.steps] == ["inserted", "target", "inserted", "target"]
    led = think(autoregressive, ThinkingLimit(heading="It is "))
    assert led.text == f"{THOUGHT}{CLOSER}It is 4."


def test_a_part_of_the_room_is_kept_for_the_answer() -> None:
    num_closing = len(TOKENIZER.encode(f"\n{CLOSER}\n\n"))
    for max_tokens in range(num_closing + 1, 30):
        room = max_tokens - num_closing
        outcome = think(
            autoregressive, ThinkingLimit(max_tokens=1000, answer_tokens=4), max_tokens=max_tokens
        )
        assert len(outcome.tokens) <= max_tokens
        assert outcome.recorder.thinking is not None
        assert outcome.recorder.thinking.num_tokens <= room - max(1, min(4, room // 2))
        _, answer = parts(outcome)
        assert answer.strip()
        assert ANSWER.startswith(answer.strip())


@pytest.mark.parametrize("max_tokens", [1, 3, 6])
def test_without_room_for_the_tag_the_text_ends_in_the_thinking(max_tokens: int) -> None:
    outcome = think(autoregressive, ThinkingLimit(max_tokens=1000), max_tokens=max_tokens)
    assert len(outcome.tokens) == max_tokens
    assert THOUGHT.startswith(outcome.text)


def test_text_of_the_thinking_is_told_when_it_is_final_and_that_of_the_answer_at_once() -> None:
    told: list[tuple[int, str]] = []
    outcome = think(autoregressive, ThinkingLimit(max_tokens=9), told=told)
    begin = outcome.text.index(ANSWER)
    assert begin == told[0][0]
    assert "".join(text for _, text in told) == ANSWER
    assert all(outcome.text[start:].startswith(text) for start, text in told)


def test_work_after_the_end_of_the_thinking_is_discarded() -> None:
    outcome = think(autoregressive, ThinkingLimit(max_steps=1))
    usage = outcome.recorder.target_usage
    inserted = sum(len(step.tokens) for step in outcome.steps if step.origin == "inserted")
    num_used = len(outcome.tokens) - inserted
    assert usage.num_generated_tokens - usage.num_discarded_tokens == num_used
    assert usage.num_discarded_tokens > 0


def test_what_a_limit_leaves_out_is_not_learned() -> None:
    cache = NaiveCache()

    class Learns(ScriptedEngine):
        def __init__(self, name: str, script: Script, **options: Any) -> None:
            earlier = EarlierTexts(SuffixCaches(lambda scope: cache))
            super().__init__(name, script, earlier=earlier, **options)

    limit = ThinkingLimit(max_tokens=9)
    outcome = think(STRATEGIES["prompt_lookup"], limit, target_kind=Learns, suffix=naive_caches())
    assert outcome.recorder.thinking is not None
    assert outcome.recorder.thinking.ended_by == "tokens"
    assert cache.documents["default"] == [[*TOKENIZER.encode(PROMPT), *outcome.tokens]]


@pytest.mark.parametrize("options", [{}, {"max_tokens": 9}, {"max_steps": 1}, {"stands_alone": True}])
def test_the_planner_plans_a_text_once_and_learns_once_from_all_of_it(options: dict[str, Any]) -> None:
    planned: list[CacheForecast] = []
    learned: list[int] = []

    class Learning(Planner):
        def plan(self, cached: CacheForecast = NOTHING_CACHED, *, may_explore: bool = True) -> Plan:
            planned.append(cached)
            return super().plan(cached)

        def learn(
            self, answer: Recorder, target: Sequence[PassTime] = (), draft: Sequence[PassTime] = ()
        ) -> None:
            learned.append(len(answer.steps))
            super().learn(answer, target, draft)

    costs = Costs(PassCost(((1, 0.02), (64, 0.05))), draft_token=0.01)
    budget = SpeculationBudget(planner=Learning(costs, max_depth=3, max_draft_tokens=16))
    outcome = think(STRATEGIES["lookahead"], ThinkingLimit(**options), budget=budget)
    assert len(planned) == 1
    assert learned == [len(outcome.steps)]


pieces = st.sampled_from(
    ["Two", " and", " two", ".\n\n", "\n", "<", "</", "</thin", "é", " 4", "ok.\n\n", "```\n", "{"]
)
thoughts = st.lists(pieces, min_size=1, max_size=30).map("".join).filter(lambda text: CLOSER not in text)


@pytest.mark.parametrize("longest", [1, 2, 3, 4])
@pytest.mark.parametrize("max_tokens", [9, 11, 13])
def test_a_tag_that_steps_and_a_limit_cut_is_whole_in_text_and_tokens(longest: int, max_tokens: int) -> None:
    outcome = think(
        LIMITED["autoregressive"](step_max_tokens=longest),
        ThinkingLimit(),
        Thinks("Two"),
        draft=Thinks("Two"),
        max_tokens=max_tokens,
    )
    assert outcome.text == TOKENIZER.decode(outcome.tokens)
    assert outcome.text.startswith((f"Two{CLOSER}", f"Two\n{CLOSER}"))
    assert outcome.recorder.thinking is not None
    assert outcome.recorder.thinking.num_tokens == 1


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(LIMITED)),
    own=thoughts,
    drafted=thoughts | st.none(),
    closes=st.booleans(),
    budget=st.none() | st.integers(0, 40),
    most_steps=st.none() | st.integers(0, 5),
    max_tokens=st.integers(8, 90),
    longest=st.sampled_from([3, 7, 512]),
    other_tokens=st.booleans(),
    stands_alone=st.booleans(),
)
def test_never_a_token_over_never_a_broken_tag_and_always_an_answer(
    name: str,
    own: str,
    drafted: str | None,
    closes: bool,
    budget: int | None,
    most_steps: int | None,
    max_tokens: int,
    longest: int,
    other_tokens: bool,
    stands_alone: bool,
) -> None:
    target = Thinks(own, f"{CLOSER}\n\n" if closes else "")
    draft = target if drafted is None else Thinks(drafted)
    other = ScriptedTokenizer(r"\n+|\w|.") if other_tokens and name != "speculative" else None
    outcome = think(
        LIMITED[name](step_max_tokens=longest),
        ThinkingLimit(max_tokens=budget, max_steps=most_steps, stands_alone=stands_alone),
        target,
        draft=draft,
        max_tokens=max_tokens,
        draft_tokenizer=other,
    )
    found = outcome.recorder.thinking
    assert found is not None
    assert outcome.left_running == 0
    assert len(outcome.tokens) <= max_tokens
    written = TOKENIZER.decode(outcome.tokens)
    assert written.count(CLOSER) == 1
    thought, _, answer = written.partition(CLOSER)
    assert len(TOKENIZER.encode(thought.removesuffix("\n"))) <= found.num_tokens
    if budget is not None:
        assert found.num_tokens <= budget
    if most_steps is not None:
        assert found.num_steps <= most_steps
    if stands_alone:
        assert outcome.steps[-1].finish == "stop"
    else:
        assert outcome.text == written
        assert answer.strip()
        assert ANSWER.startswith(answer.strip())


def test_a_step_that_was_cut_counts_as_a_step_of_the_thinking() -> None:
    thought = " ".join(f"w{number}" for number in range(400))
    outcome = solve(
        with_settings(Autoregressive, step_max_tokens=64),
        Thinks(thought=thought),
        Thinks(thought=thought),
        thinking=ThinkingLimit(max_steps=1),
    )
    assert outcome.recorder.thinking is not None
    assert outcome.recorder.thinking.num_steps == 1
    assert outcome.text.endswith(ANSWER)


def test_the_header_of_an_answer_is_left_out_where_it_has_no_room() -> None:
    heading = "<|start|>assistant<|channel|>final<|message|>"
    for max_tokens in range(4, 30):
        outcome = solve(
            with_settings(Autoregressive),
            Thinks(thought="a b.", closer=CLOSER),
            Thinks(),
            thinking=ThinkingLimit(max_steps=5, closing=f"{CLOSER}\n\n{heading}", heading=heading),
            max_tokens=max_tokens,
        )
        assert len(outcome.tokens) <= max_tokens


@pytest.mark.parametrize("opening", ["", "<think>\n"])
def test_an_inserted_tag_is_none_of_the_first_steps_of_the_target(opening: str) -> None:
    script = Thinks(opening=opening)
    outcome = solve(
        with_settings(SpecReason, LikelihoodVerifier, first_by_target=1),
        script,
        script,
        thinking=ThinkingLimit(max_steps=9, opening=opening),
    )
    written = [step.origin for step in outcome.steps if step.origin != "inserted"]
    assert written[:2] == ["target", "draft"]
