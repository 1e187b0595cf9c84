"""The step loop: what it writes is what plain decoding writes, whatever shares its passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from reason_spec.engines.generation import EngineRequest, GenerationResult, Hint
from reason_spec.engines.torch import scheduler as scheduler_module
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.segment import Boundary, BoundaryScanner
from reason_spec.speculation.acceptance import truncated_probabilities
from reason_spec.types import NoiseKey, Prefix, Sampling
from tests.engines.tiny_models import (
    LENGTH,
    NUM_PROMPTS,
    Counting,
    Results,
    Served,
    drain,
    prompt,
    spoiled,
    write,
)

# --- equal to plain decoding ---------------------------------------------------------------------------

hints = st.one_of(
    st.just(("none", 0)),
    st.just(("right", 0)),
    st.tuples(st.just("wrong"), st.integers(0, 50)),
    st.tuples(st.just("late"), st.integers(0, 50)),
    st.tuples(st.just("tree"), st.integers(0, 50)),
    st.tuples(st.just("noise"), st.integers(0, 50)),
)
jobs = st.fixed_dictionaries(
    {
        "prompt": st.integers(0, NUM_PROMPTS - 1),
        "hint": hints,
        "drafter": st.sampled_from(["none", "prompt_lookup", "recycling"]),
        "num_draft_tokens": st.integers(1, 12),
        "start": st.integers(0, 12),
        "cancel": st.one_of(st.none(), st.none(), st.integers(0, 20)),
        "priority": st.integers(0, 2),
    }
)


@settings(max_examples=25)
@given(
    st.lists(jobs, min_size=1, max_size=6),
    st.sampled_from([70, 120, 400]),
    st.integers(1, 6),
    st.sampled_from([16, 64]),
)
def test_greedy_is_equal_under_any_batching(
    qwen: Served,
    expected: list[tuple[int, ...]],
    mix: list[dict[str, Any]],
    num_slots: int,
    max_running: int,
    prefill_chunk: int,
) -> None:
    """Requests come at any time, with any hints, are cancelled, wait for slots and are suspended."""
    model = replace(qwen.model, max_context=min(num_slots, 70))
    scheduler = Scheduler(
        model, qwen.tokenizer, num_slots=num_slots, max_running=max_running,
        prefill_chunk=prefill_chunk, debug=True,
    )  # fmt: skip
    results: dict[int, object] = {}
    for step in range(2000):
        for number, job in enumerate(mix):
            text = expected[job["prompt"]]
            kind, detail = job["hint"]
            if step == job["start"]:
                hint = {"right": text, "wrong": spoiled(text, detail), "noise": spoiled(text, 0)[::-1]}
                scheduler.submit(
                    number,
                    EngineRequest(
                        Prefix(prompt(job["prompt"])), LENGTH, hint=hint.get(kind, ()),
                        token_drafter=job["drafter"], num_draft_tokens=job["num_draft_tokens"],
                        priority=job["priority"],
                    ),
                )  # fmt: skip
            if kind == "late" and step == job["start"] + 4:
                scheduler.offer_hint(number, Hint(spoiled(text, detail)))
            if kind == "tree" and step == job["start"] + detail % 4:
                # Three ways to go on, one of them right, each beginning at a place of its own.
                for index, tokens in enumerate((spoiled(text, detail), spoiled(text, detail + 3), text)):
                    scheduler.offer_hint(number, Hint(tokens[index:], start=index, index=index))
            if job["cancel"] is not None and step == job["start"] + job["cancel"]:
                scheduler.cancel(number)
        if step > 40 and not scheduler.has_work:
            break
        results.update(scheduler.step().results)
    assert len(results) == len(mix)
    for number, job in enumerate(mix):
        result = results[number]
        assert isinstance(result, GenerationResult)
        text = expected[job["prompt"]]
        if result.finish == "cancelled":
            assert job["cancel"] is not None
            assert result.tokens == text[: len(result.tokens)]
        else:
            assert result.tokens == text
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    scheduler.reset_prefix_cache()
    assert scheduler.stats().num_cached_tokens == 0


@settings(max_examples=8)
@given(
    st.floats(0.3, 1.5),
    st.integers(0, 30),
    st.floats(0.5, 1.0),
    st.integers(0, 1000),
    st.integers(0, NUM_PROMPTS - 1),
    st.integers(0, 30),
)
def test_sampling_is_equal_with_and_without_drafts(
    qwen: Served, temperature: float, top_k: int, top_p: float, seed: int, which: int, place: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p, NoiseKey(seed, which, 0))
    request = EngineRequest(Prefix(prompt(which)), LENGTH, sampling=sampling)
    plain = write(qwen.scheduler(), request)
    scheduler = qwen.scheduler()
    other = replace(request, sampling=replace(sampling, noise=NoiseKey(seed, which, 1)))
    scheduler.submit(0, replace(request, hint=spoiled(plain.tokens, place), num_draft_tokens=5))
    scheduler.submit(1, replace(request, token_drafter="prompt_lookup"))
    scheduler.submit(2, other)
    results = drain(scheduler)
    for number in (0, 1):
        result = results[number]
        assert isinstance(result, GenerationResult)
        assert result.tokens == plain.tokens
        np.testing.assert_allclose(result.logprobs, plain.logprobs, atol=1e-3)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20], ids=["checked in passes", "from a kept prediction"])
def test_sampled_tokens_are_distributed_as_the_truncated_softmax(qwen: Served, kept_bytes: int) -> None:
    """Second tokens of many samples, drafted by a hint, against the module's own probabilities."""
    text = prompt(4)
    base = Sampling(temperature=2.5, top_k=8, top_p=0.95)
    first = int(torch.argmax(qwen.logits(text)[-1]))
    logits = qwen.logits((*text, first))[-1].double().numpy()
    probabilities = truncated_probabilities(logits, base)
    drafted = int(np.argsort(probabilities)[-2])
    scheduler = qwen.scheduler(max_running=32, kept_prediction_bytes=kept_bytes)
    num_samples = 1500
    for sample in range(num_samples):
        sampling = replace(base, noise=NoiseKey(9, 0, sample))
        prefix = Prefix((*text, first))
        scheduler.submit(
            sample, EngineRequest(prefix, 2, sampling=sampling, hint=(drafted,), num_draft_tokens=1)
        )
    counts = np.zeros(len(probabilities))
    num_accepted = 0
    for result in drain(scheduler).values():
        assert isinstance(result, GenerationResult)
        counts[result.tokens[0]] += 1
        num_accepted += result.usage.num_accepted_draft_tokens
    kept = probabilities > 0
    assert kept.sum() >= 4
    assert counts[~kept].sum() == 0
    assert chisquare(counts[kept], probabilities[kept] * num_samples).pvalue > 1e-4
    assert counts[drafted] > 0
    # A token that is chosen from a kept prediction needs no pass, and so has no draft that one checked.
    assert num_accepted == (counts[drafted] if kept_bytes == 0 else 1)


def test_several_continuations_are_checked_in_one_pass(qwen: Served, expected: list[tuple[int, ...]]) -> None:
    """The right path is found whatever its place in the tree, and its keys and values are its own."""
    text = expected[1]
    paths = [spoiled(text, 2), spoiled(text, 0), spoiled(text, 7), text[:12]]
    for order in (paths, paths[::-1]):
        scheduler = qwen.scheduler()
        scheduler.submit(0, EngineRequest(Prefix(prompt(1)), LENGTH, num_draft_tokens=40))
        for index, path in enumerate(order):
            scheduler.offer_hint(0, Hint(path, index=index))
        result = drain(scheduler)[0]
        assert isinstance(result, GenerationResult)
        assert result.tokens == text
        plain = torch.log_softmax(qwen.logits(prompt(1) + text), -1)[len(prompt(1)) - 1 : -1]
        exact = plain[torch.arange(LENGTH), torch.tensor(text)]
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)
        assert result.usage.num_accepted_draft_tokens > 12


# --- ends ----------------------------------------------------------------------------------------------


def test_a_generation_ends_with_the_token_that_completes_its_boundary(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    """The delimiter is cut out of what the model writes, across two of its tokens."""
    for index in range(NUM_PROMPTS):
        tokens = expected[index]
        pieces = [qwen.tokenizer.token_bytes(token) for token in tokens]
        place = next(
            (i for i in range(3, LENGTH - 1)
             if pieces[i] and pieces[i + 1] and (pieces[i] + pieces[i + 1]).isascii()
             and not (pieces[i] + pieces[i + 1]).isspace()), None,
        )  # fmt: skip
        if place is None:
            continue
        boundary = Boundary((pieces[place] + pieces[place + 1]).decode(), (), False, False)
        scanner = BoundaryScanner(boundary)
        end = next(i for i, piece in enumerate(pieces, start=1) if scanner.feed(piece))
        for hint in ((), tokens):
            request = EngineRequest(Prefix(prompt(index)), LENGTH, boundary=boundary, hint=hint)
            result = write(qwen.scheduler(), request)
            assert result.finish == "boundary"
            assert result.tokens == tokens[:end]
            assert result.text == qwen.tokenizer.decode(tokens[:end])
            if hint:
                assert result.usage.num_discarded_tokens > 0
        return
    pytest.fail("no delimiter was found in what the model writes")


def test_a_stop_cuts_the_text_and_may_begin_in_the_context(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    text = qwen.tokenizer.decode(expected[1])
    stop = text[4:7]
    result = write(qwen.scheduler(), EngineRequest(Prefix(prompt(1)), LENGTH, stops=(stop,)))
    assert result.finish == "stop"
    assert result.text == text[: text.index(stop)]
    straddling = write(
        qwen.scheduler(),
        EngineRequest(Prefix(prompt(1)), LENGTH, stops=("ab" + text[:2],), stop_context="xxab"),
    )
    assert straddling.finish == "stop"
    assert straddling.text == ""
    assert straddling.num_stop_overlap == 2


def test_deltas_add_up_to_the_result(qwen: Served, expected: list[tuple[int, ...]]) -> None:
    scheduler = qwen.scheduler()
    hint = spoiled(expected[2], 9)
    scheduler.submit(0, EngineRequest(Prefix(prompt(2)), LENGTH, hint=hint, num_draft_tokens=4))
    scheduler.submit(1, EngineRequest(Prefix(prompt(3)), LENGTH, stream=False))
    tokens: list[int] = []
    logprobs: list[float] = []
    results: Results = {}
    while scheduler.has_work:
        report = scheduler.step()
        results.update(report.results)
        for number, delta in report.deltas:
            assert number == 0, "a request that does not stream got a delta"
            tokens += delta.tokens
            logprobs += delta.logprobs
    result = results[0]
    assert isinstance(result, GenerationResult)
    assert (tuple(tokens), tuple(logprobs)) == (result.tokens, result.logprobs)
    plain = torch.log_softmax(qwen.logits(prompt(2) + expected[2]), -1)[len(prompt(2)) - 1 : -1]
    exact = plain[torch.arange(LENGTH), torch.tensor(expected[2])]
    np.testing.assert_allclose(logprobs, exact, atol=1e-4)


# --- drafts under load ----------------------------------------------------------------------------------


def test_the_logits_of_drafts_are_bounded_and_every_request_has_its_part(
    qwen: Served, expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 9
    monkeypatch.setattr(scheduler_module, "_MAX_DRAFT_LOGITS", most * qwen.model.vocab_size)
    drafted: list[int] = []
    for number in (1, 3):
        counting = Counting(qwen)
        scheduler = Scheduler(counting, qwen.tokenizer, num_slots=400, debug=True)
        for index in range(number):
            request = EngineRequest(Prefix(prompt(3 + index)), LENGTH, hint=expected[3 + index])
            scheduler.submit(index, request)
        results = [result for _, result in sorted(drain(scheduler).items())]
        written = [result for result in results if isinstance(result, GenerationResult)]
        assert [result.tokens for result in written] == expected[3 : 3 + number]
        assert max(len(layout.logits_entries) for layout in counting.layouts) == most + number
        drafted = [result.usage.num_drafted_tokens for result in written]
    assert min(drafted) == max(drafted) > 0


@pytest.mark.parametrize("limited", [False, True])
def test_a_full_batch_checks_fewer_drafts_and_writes_the_same(
    qwen: Served, expected: list[tuple[int, ...]], limited: bool
) -> None:
    """Where each token takes a pass a third longer, and half of the hints are wrong."""
    drafted: dict[int, float] = {}
    for number in (1, NUM_PROMPTS):
        scheduler = qwen.scheduler()
        scheduler.pass_times.num_threads = -1
        for size in (1, 2, 4, 8, 16, 32):
            for _ in range(200):
                scheduler.pass_times.add_batch(size, min(size, 4), 0.001 * (3 + size))
        add_batch = scheduler.pass_times.add_batch
        scheduler.pass_times.add_batch = lambda *_: None  # type: ignore[method-assign]
        for index in range(number):
            hint = spoiled(expected[index], 3)
            request = EngineRequest(Prefix(prompt(index)), LENGTH, hint=hint, limit_drafts=limited)
            scheduler.submit(index, request)
        results = drain(scheduler)
        scheduler.pass_times.add_batch = add_batch  # type: ignore[method-assign]
        written = [one for index in range(number) if isinstance(one := results[index], GenerationResult)]
        assert [one.tokens for one in written] == expected[:number]
        drafted[number] = sum(one.usage.num_drafted_tokens for one in written) / number
    if limited:
        assert drafted[NUM_PROMPTS] < drafted[1]
