"""Which requests run in the step loop: places, priorities, cancellation, and requests that fail alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reason_spec.engines.generation import EngineRequest, GenerationResult
from reason_spec.engines.torch.layout import PassLayout
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.speculation.draft_calibration import MAX_CACHE_KEYS
from reason_spec.speculation.draft_tree import NextTokens
from reason_spec.types import Prefix
from tests.engines.tiny_models import (
    LENGTH,
    NUM_PROMPTS,
    Counting,
    Served,
    drain,
    prompt,
    write,
)


def test_cancellation_frees_every_slot(qwen: Served) -> None:
    scheduler = qwen.scheduler(num_slots=512)
    for number in range(4):
        scheduler.submit(number, EngineRequest(Prefix(prompt(number)), 100))
    for _ in range(5):
        scheduler.step()
    for number in range(4):
        scheduler.cancel(number)
        scheduler.cancel(number)
    report = scheduler.step()
    assert {number for number, _ in report.results} == {0, 1, 2, 3}
    assert all(isinstance(r, GenerationResult) and r.finish == "cancelled" for _, r in report.results)
    assert not scheduler.has_work
    assert scheduler.stats().num_running == 0
    scheduler.reset_prefix_cache()
    assert scheduler.stats().num_cached_tokens == 0


def test_cancelled_work_is_counted(qwen: Served) -> None:
    scheduler = qwen.scheduler()
    scheduler.submit(0, EngineRequest(Prefix(prompt(0)), 100))
    for _ in range(5):
        scheduler.step()
    scheduler.cancel(0)
    ((_, result),) = scheduler.step().results
    assert isinstance(result, GenerationResult)
    assert result.usage.num_passes == result.usage.num_generated_tokens == 5
    assert scheduler.stats().usage == result.usage


def test_requests_that_do_not_fit_together_wait_for_each_other(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    model = replace(qwen.model, max_context=64)
    scheduler = Scheduler(model, qwen.tokenizer, num_slots=64, debug=True)
    for number in (3, 4, 5):
        scheduler.submit(number, EngineRequest(Prefix(prompt(number)), LENGTH))
    results = drain(scheduler)
    for number in (3, 4, 5):
        result = results[number]
        assert isinstance(result, GenerationResult)
        assert result.tokens == expected[number]


def test_urgent_requests_go_first_when_a_pass_cannot_hold_all(qwen: Served) -> None:
    scheduler = qwen.scheduler(max_running=1)
    ended: list[int] = []
    scheduler.submit(0, EngineRequest(Prefix(prompt(3)), 20, priority=5))
    scheduler.step()
    scheduler.submit(1, EngineRequest(Prefix(prompt(4)), 3, priority=5))
    scheduler.submit(2, EngineRequest(Prefix(prompt(5)), 3, priority=1))
    while scheduler.has_work:
        ended += [number for number, _ in scheduler.step().results]
    assert ended == [2, 0, 1]


def test_a_request_that_became_certain_goes_before_what_is_speculative(qwen: Served) -> None:
    """With two places, and more speculative requests than they can hold arriving all the time."""
    scheduler = qwen.scheduler(max_running=2)
    scheduler.submit(0, EngineRequest(Prefix(prompt(3)), 20, priority=3))
    for number in range(1, 400):
        scheduler.submit(number, EngineRequest(Prefix(prompt(number % NUM_PROMPTS)), 3, priority=1))
        if number == 10:
            scheduler.set_priority(0, 0)
        if any(ended == 0 for ended, _ in scheduler.step().results):
            break
    assert 10 < number < 40
    scheduler.set_priority(0, 1)
    scheduler.cancel_all()
    drain(scheduler)


def test_how_often_hints_are_right_is_kept_for_the_accounts_used_last(qwen: Served) -> None:
    scheduler = qwen.scheduler()
    predicted = NextTokens((7,), (0.5,))
    for number in range(2000):
        for place, cache_key in enumerate((("regular", ""), (f"tenant {number}", ""))):
            scheduler.submit(2 * number + place, EngineRequest(Prefix(prompt(3)), 5, cache_key=cache_key))
        scheduler.cancel_all()
        drain(scheduler)
        scheduler._draft_rates[f"tenant {number}", ""].tables["recycling"].learn((1, 2), predicted)
        if number == 0:
            regular = scheduler._draft_rates["regular", ""]
            regular.tables["recycling"].learn((1, 2), predicted)
    assert len(scheduler._draft_rates) == MAX_CACHE_KEYS
    assert scheduler._draft_rates["regular", ""] is regular
    assert ("tenant 1999", "") in scheduler._draft_rates
    with_predictions = [rates for rates in scheduler._draft_rates.values() if len(rates.tables["recycling"])]
    assert len(with_predictions) == 64
    assert regular in with_predictions


@pytest.mark.parametrize(
    ("tokens", "message"),
    [((), "empty"), (tuple([5] * 256), "no room"), ((5, 272), "token 272"), ((-1,), "token -1")],
)
def test_impossible_prefixes_fail_their_own_generation(
    qwen: Served, tokens: tuple[int, ...], message: str
) -> None:
    scheduler = qwen.scheduler()
    scheduler.submit(0, EngineRequest(Prefix(tokens), 5))
    scheduler.submit(1, EngineRequest(Prefix(prompt(3)), 5))
    results = drain(scheduler)
    failed, other = results[0], results[1]
    assert isinstance(failed, GenerationResult)
    assert failed.finish == "failed"
    assert message in (failed.error or "")
    assert isinstance(other, GenerationResult)
    assert other.finish == "length"


def test_hint_tokens_of_another_vocabulary_are_ignored(qwen: Served, expected: list[tuple[int, ...]]) -> None:
    hint = (*expected[3][:4], 99_999, *expected[3][5:])
    result = write(qwen.scheduler(), EngineRequest(Prefix(prompt(3)), LENGTH, hint=hint))
    assert result.tokens == expected[3]
    assert result.usage.num_accepted_draft_tokens == 4


def test_the_end_of_the_context_is_the_length_limit(qwen: Served) -> None:
    text = tuple(prompt(0) * 10)[:250]
    result = write(qwen.scheduler(), EngineRequest(Prefix(text), 50, hint=tuple(range(40))))
    assert result.finish == "length"
    assert len(text) + len(result.tokens) == qwen.model.max_context


def test_logits_that_are_not_numbers_fail_the_generation(qwen: Served) -> None:
    class Broken(Counting):
        def run(self, layout: PassLayout) -> torch.Tensor:
            return super().run(layout) * float("nan")

    scheduler = Scheduler(Broken(qwen), qwen.tokenizer, num_slots=2048, debug=True)
    result = write(scheduler, EngineRequest(Prefix(prompt(0)), 5))
    assert result.finish == "failed"
    assert "NaN" in (result.error or "")
    assert result.tokens == ()
