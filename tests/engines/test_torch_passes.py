"""What passes hold: no token is run twice, and predictions are kept where requests begin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines.generation import EngineRequest, GenerationResult, Hint
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.engines.torch.layout import Chain, PassBuilder
from reason_spec.engines.torch.predictions import KeptPredictions, Predictions
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.segment import Boundary
from reason_spec.types import NoiseKey, Prefix, Sampling
from tests.engines.tiny_models import LENGTH, NUM_PROMPTS, Counting, Served, drain, prompt, spoiled, write

# --- what is run, and how often ------------------------------------------------------------------------


def test_no_token_is_run_twice_along_a_text_written_step_by_step(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    """Every token of the prompt and of the answer is run once, but the last, which is never run."""
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    prefix = Prefix(prompt(0))
    for number in range(4):
        result = write(scheduler, EngineRequest(prefix, LENGTH // 4), number)
        prefix = prefix.extend(result.tokens)
    assert prefix.to_tuple() == prompt(0) + expected[0]
    assert counting.num_run == len(prefix) - 1


def test_only_rejected_drafts_and_a_token_in_the_middle_of_a_text_are_run_for_nothing(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    hint = spoiled(expected[0], 10)
    first = write(scheduler, EngineRequest(Prefix(prompt(0)), LENGTH, hint=hint, num_draft_tokens=6), 0)
    rejected = first.usage.num_drafted_tokens - first.usage.num_accepted_draft_tokens
    assert rejected > 0
    num_unique = len(prompt(0)) + LENGTH - 1
    assert counting.num_run == num_unique + rejected
    # A request that begins in the middle of what was written: no prediction is kept there.
    second = write(scheduler, EngineRequest(Prefix(prompt(0) + first.tokens[:12]), 1), 1)
    assert second.tokens == first.tokens[12:13]
    assert second.usage.num_cached_prompt_tokens == len(prompt(0)) + 11
    assert counting.num_run == num_unique + rejected + 1


def test_requests_with_one_prompt_share_its_passes_and_slots(qwen: Served) -> None:
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    for sample in range(4):
        sampling = Sampling(2.0, noise=NoiseKey(0, 0, sample))
        scheduler.submit(sample, EngineRequest(Prefix(prompt(1)), 1, sampling=sampling))
    results = drain(scheduler)
    assert counting.num_run == len(prompt(1))
    assert len({result.tokens for result in results.values() if isinstance(result, GenerationResult)}) > 1


steps_of_an_answer = st.lists(
    st.fixed_dictionaries(
        {"length": st.integers(1, 9), "draft_is_right": st.booleans(), "delay": st.integers(0, 4)}
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25)
@given(
    st.integers(0, NUM_PROMPTS - 1),
    steps_of_an_answer,
    st.integers(1, 6),
    st.sampled_from([16, 64]),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
)
def test_no_token_of_the_answer_is_run_twice_under_lookahead(
    qwen: Served,
    which: int,
    steps: list[dict[str, Any]],
    num_draft_tokens: int,
    prefill_chunk: int,
    temperature: float,
    hinted: bool,
) -> None:
    """Each step is drafted after a delay; a request behind the draft then runs beside the step's own."""
    ends = np.cumsum([step["length"] for step in steps]).tolist()
    sampling = Sampling(temperature, noise=NoiseKey(3))
    base = EngineRequest(
        Prefix(prompt(which)), ends[-1], sampling=sampling, num_draft_tokens=num_draft_tokens
    )
    endless = HuggingFaceTokenizer(qwen.tokenizer._rust, eos_ids=frozenset())
    answer = write(Scheduler(qwen.model, endless, num_slots=2048), base).tokens
    counting = Counting(qwen)
    scheduler = Scheduler(counting, endless, num_slots=2048, prefill_chunk=prefill_chunk, debug=True)
    results: dict[int, object] = {}
    before = prompt(which)
    for number, (step, end) in enumerate(zip(steps, ends, strict=True)):
        scheduler.submit(number, replace(base, prefix=Prefix(before), max_tokens=step["length"]))
        for _ in range(step["delay"]):
            results.update(scheduler.step().results)
        right = answer[end - step["length"] : end]
        drafted = right if step["draft_is_right"] else spoiled(right, number)
        if hinted:
            scheduler.offer_hint(number, Hint(drafted))
        if not step["draft_is_right"]:
            scheduler.submit(-number - 1, replace(base, prefix=Prefix(before + drafted)))
            while number not in results:
                results.update(scheduler.step().results)
            scheduler.cancel(-number - 1)
        before += right
    results.update(drain(scheduler))
    written = [results[number] for number in range(len(steps))]
    assert answer == tuple(t for r in written if isinstance(r, GenerationResult) for t in r.tokens)
    # The last token is never run.
    assert {counting.times_run[before[:length]] for length in range(1, len(before))} == {1}


# --- kept predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_prompt_asked_again_is_answered_without_running_it(qwen: Served, temperature: float) -> None:
    requests = [
        EngineRequest(Prefix(prompt(0)), 3, sampling=Sampling(temperature, noise=NoiseKey(0, 0, sample)))
        for sample in range(8)
    ]
    plain = qwen.scheduler(kept_prediction_bytes=0)
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    for number, request in enumerate(requests):
        expected = write(plain, request, number)
        result = write(scheduler, request, number)
        assert result.tokens == expected.tokens
        np.testing.assert_allclose(result.logprobs, expected.logprobs, atol=1e-4)
        cached = result.usage.num_cached_prompt_tokens
        assert cached == (len(prompt(0)) if number else 0)
    assert counting.times_run[prompt(0)] == 1
    assert plain.num_tokens_run >= counting.num_run + len(requests) - 1


def test_a_step_that_ends_with_an_accepted_draft_is_not_run_again(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    boundary = Boundary(step_delimiter(qwen, expected[0]), (), False, False)
    request = EngineRequest(Prefix(prompt(0)), LENGTH, boundary=boundary, hint=expected[0])
    step = write(scheduler, request).tokens
    num_run = counting.num_run
    assert counting.times_run[prompt(0) + step] == 1, "the step must end with a draft"
    following = write(scheduler, EngineRequest(Prefix(prompt(0) + step), 1), 1)
    assert following.tokens == expected[0][len(step) : len(step) + 1]
    assert (following.finish, following.usage.num_passes) == ("length", 0)
    assert counting.num_run == num_run


def step_delimiter(qwen: Served, tokens: tuple[int, ...]) -> str:
    """A text that ends somewhere in the middle of what the model writes."""
    text = qwen.tokenizer.decode(tokens[:12])
    return next(character for character in text[3:] if character.isascii() and not character.isspace())


def test_a_kept_prediction_can_end_the_text_at_once(qwen: Served, expected: list[tuple[int, ...]]) -> None:
    """No pass is run for it, nor planned for a request that is over; others are served in the same step."""
    ends_at_once = HuggingFaceTokenizer(qwen.tokenizer._rust, eos_ids=frozenset({expected[3][0]}))
    scheduler = Scheduler(qwen.model, ends_at_once, num_slots=2048, debug=True)
    first = write(scheduler, EngineRequest(Prefix(prompt(3)), 5))
    num_passes = scheduler.pass_times.num_passes
    scheduler.submit(1, EngineRequest(Prefix(prompt(3)), 5))
    scheduler.submit(2, EngineRequest(Prefix(prompt(4)), 1))
    report = scheduler.step()
    results = dict(report.results)
    again, other = results[1], results[2]
    assert isinstance(again, GenerationResult)
    assert isinstance(other, GenerationResult)
    assert (again.finish, again.tokens, again.text) == ("eos", first.tokens, "")
    assert again.logprobs == first.logprobs
    assert again.usage.num_passes == 0
    assert other.tokens == expected[4][:1]
    deltas = dict(report.deltas)
    assert (deltas[1].tokens, deltas[1].logprobs) == (first.tokens, first.logprobs)
    assert scheduler.pass_times.num_passes == num_passes + 1
    assert not scheduler.has_work


@pytest.mark.parametrize("forget", ["reset", "evicted", "no memory"])
def test_a_prediction_is_gone_with_its_node_and_made_again(
    qwen: Served, expected: list[tuple[int, ...]], forget: str
) -> None:
    counting = Counting(qwen)
    counting.max_context = 64
    scheduler = Scheduler(
        counting, qwen.tokenizer, num_slots=64, debug=True,
        kept_prediction_bytes=0 if forget == "no memory" else 1 << 20,
    )  # fmt: skip
    write(scheduler, EngineRequest(Prefix(prompt(0)), 1), 0)
    if forget == "reset":
        scheduler.reset_prefix_cache()
    elif forget == "evicted":
        write(scheduler, EngineRequest(Prefix(prompt(5) + prompt(4) + prompt(3)[:4]), 12), 1)
    again = write(scheduler, EngineRequest(Prefix(prompt(0)), 3), 2)
    assert again.tokens == expected[0][:3]
    assert counting.times_run[prompt(0)] == 2


def test_kept_predictions_are_bounded_and_the_least_recently_used_go_first() -> None:
    pass_of_eight = Predictions.of_pass(torch.randn(8, 100), list(range(10, 18)))
    one = pass_of_eight.only(10)
    assert one.num_bytes == 400
    kept = KeptPredictions(max_bytes=1000)
    kept.keep(1, one)
    kept.keep(2, pass_of_eight.only(11))
    kept.keep(1, one)
    assert kept.find(2) is not None
    kept.keep(3, pass_of_eight.only(12))
    assert [key for key in (1, 2, 3) if kept.find(key) is not None] == [2, 3]
    kept.clear()
    assert len(kept) == 0
    kept.keep(4, one)
    kept.keep(5, one)
    assert len(kept) == 2


def test_requests_that_share_no_row_still_share_what_both_need(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    """A request has outgrown the text its group was made for when another begins on top of it."""
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    text = prompt(3) + expected[3]
    scheduler.submit(0, EngineRequest(Prefix(prompt(3)), LENGTH, num_draft_tokens=4))
    for _ in range(15):
        scheduler.step()
    scheduler.offer_hint(0, Hint(expected[3]))
    scheduler.submit(1, EngineRequest(Prefix(text), 2))
    scheduler.step()
    assert len(counting.layouts[-1].blocks) > 1 or len(counting.layouts[-1].blocks[0].rows) > 1
    results = drain(scheduler)
    assert isinstance(results[0], GenerationResult)
    assert isinstance(results[1], GenerationResult)
    assert results[0].tokens == expected[3]
    assert results[1].tokens == qwen.generate(text, 2)
    assert set(counting.times_run.values()) == {1}


@pytest.mark.parametrize(("owner", "num_predictions"), [("ana", 6), ("ben", 2)])
def test_only_texts_of_one_owner_get_predictions_from_each_others_prompts(
    qwen: Served, expected: list[tuple[int, ...]], owner: str, num_predictions: int
) -> None:
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    scheduler.submit(0, EngineRequest(Prefix(prompt(3), owner="ana"), LENGTH))
    for _ in range(4):
        scheduler.step()
    scheduler.submit(1, EngineRequest(Prefix(prompt(3) + expected[3][:9], owner=owner), 2))
    scheduler.step()
    assert len(counting.layouts[-1].logits_entries) == num_predictions
    drain(scheduler)


def test_branches_of_one_problem_gather_their_common_prefix_once(qwen: Served) -> None:
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    trunk = prompt(5) + prompt(2)
    write(scheduler, EngineRequest(Prefix(trunk), 1), 0)
    for number, branch in enumerate([(1, 2, 3), (4, 5), (6,)]):
        scheduler.submit(number, EngineRequest(Prefix(trunk + branch), 3))
    drain(scheduler)
    last = counting.layouts[-1]
    assert len(last.tokens) == 3
    (block,) = last.blocks
    (row,) = block.rows
    assert len(row.columns) == len(set(row.columns)) < len(trunk) + 3 * 6


def test_a_tree_of_drafts_is_one_row_also_where_its_text_has_outgrown_its_group() -> None:
    def chain(tokens: list[int], length: int, key: int) -> Chain:
        return Chain(tokens, np.arange(length), key, len(tokens), 0, 10)

    tree = [chain([1, 2, 3], 100, 1), chain([1, 4], 100, 1), chain([1, 2, 5], 100, 1)]
    layout = PassBuilder().build([*tree, chain([6], 101, 2)], range(200, 210))
    rows = [row for block in layout.blocks for row in block.rows]
    assert sorted((row.num_entries, row.num_columns) for row in rows) == [(1, 102), (5, 105)]
    of_tree = max(rows, key=lambda row: row.num_entries)
    assert of_tree.mask is not None
    assert of_tree.mask[:, :100].all()
    # 1, then 2 and 3 after it, 4 after 1, 5 after 2.
    assert [np.flatnonzero(row).tolist() for row in of_tree.mask[:, 100:]] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 3],
        [0, 1, 4],
    ]


def test_a_long_prompt_is_run_in_chunks_beside_others(qwen: Served) -> None:
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, prefill_chunk=16, debug=True)
    text = prompt(0) + prompt(3) + prompt(4)
    scheduler.submit(0, EngineRequest(Prefix(prompt(5)), 10))
    scheduler.step()
    scheduler.step()
    scheduler.submit(1, EngineRequest(Prefix(text), 5))
    results = drain(scheduler)
    assert max(len(layout.tokens) for layout in counting.layouts) <= 17
    result = results[1]
    assert isinstance(result, GenerationResult)
    assert result.tokens == qwen.generate(text, 5)
