"""vLLM behind the contract: the same tokens, hints that save passes, the model's distribution."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from scipy.stats import chisquare

from reason_spec.accelerator import Accelerator, Generator
from reason_spec.accelerator.cores import available_cores
from reason_spec.engines.factory import create_engine
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.text_updates import BeginText, Opening
from reason_spec.engines.vllm.arguments import installed_version
from reason_spec.engines.vllm.engine import VllmEngine
from reason_spec.errors import EngineError
from reason_spec.segment import Boundary
from reason_spec.settings import EngineSettings, VerifierSettings, load_settings
from reason_spec.settings.engines import VllmSettings
from reason_spec.speculation.acceptance import truncated_probabilities
from reason_spec.types import NoiseKey, Prefix, Sampling
from tests.engines.contract import PROMPT, SUFFIX, WorkerEngineContract
from tests.engines.tiny_models import Served

pytestmark = [
    pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed; `make cpu` installs it"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
]
NUM_SAMPLES = 1500


@pytest.fixture(scope="module")
def served(serve: Callable[[str], Served]) -> Served:
    """vLLM's attention on CPUs wants heads of 32 at least."""
    return serve("qwen3-wide")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_folder: Callable[[str], Path]) -> AsyncIterator[VllmEngine]:
    engine = make_engine(model_folder("qwen3-wide"))
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def own_engine(model_folder: Callable[[str], Path]) -> AsyncIterator[VllmEngine]:
    engine = make_engine(model_folder("qwen3-wide"))
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undrafted(model_folder: Callable[[str], Path]) -> AsyncIterator[VllmEngine]:
    """An engine that drafts nothing and runs one request at a time."""
    engine = make_engine(model_folder("qwen3-wide"), max_running=1, token_method="none")
    await engine.start()
    yield engine
    await engine.close()


def make_engine(
    folder: Path,
    arguments: Mapping[str, object] | None = None,
    start_timeout: float = 300,
    max_running: int = 64,
    **vllm: Any,
) -> VllmEngine:
    engine = create_engine(
        "target",
        EngineSettings(
            model=str(folder),
            kind="vllm",
            dtype="float32",
            cache_tokens=4096,
            start_timeout=start_timeout,
            max_running=max_running,
            vllm=VllmSettings(arguments={"enforce_eager": True, **(arguments or {})}, **vllm),
        ),
        SUFFIX,
    )
    assert isinstance(engine, VllmEngine)
    return engine


class TestVllmKeepsTheContract(WorkerEngineContract):
    pass


async def test_a_seeded_prompt_that_is_read_in_parts_has_the_samples_of_one_read_at_once(
    model_folder: Callable[[str], Path],
) -> None:
    """The second time its prefix is cached, and the last part alone is read."""
    engine = make_engine(model_folder("qwen3-wide"), {"max_num_batched_tokens": 32}, max_running=4)
    await engine.start()
    try:
        sampling = Sampling(temperature=1.0, noise=NoiseKey(5))
        prompt = Prefix(tuple(range(3, 203)))
        first, second = [
            (await engine.submit(EngineRequest(prompt, 12, sampling)).result()).tokens for _ in range(2)
        ]
    finally:
        await engine.close()
    assert first == second
    assert len(first) == 12


async def test_a_hint_saves_passes_and_changes_no_token(engine: VllmEngine, served: Served) -> None:
    expected = served.generate(PROMPT.to_tuple(), 40)
    wrong = (*expected[:12], (expected[12] + 1) % 260, *expected[13:])
    for hint in (expected, wrong):
        result = await engine.submit(EngineRequest(PROMPT, 40, hint=hint, num_draft_tokens=24)).result()
        assert result.tokens == expected
        # How many tokens of a hint a pass takes depends on measured times: one of each in the worst case.
        assert result.usage.num_passes <= 24
        assert result.usage.num_accepted_draft_tokens >= 16


async def test_a_batch_is_timed_and_its_drafts_are_limited_without_another_token(
    engine: VllmEngine, served: Served
) -> None:
    expected = served.generate(PROMPT.to_tuple(), 60)
    wrong = tuple((token + place % 2) % 260 for place, token in enumerate(expected))
    for cores in ((min(available_cores()),), None):
        await engine.set_cores(cores)
        for hint in (expected, wrong):
            generations = [
                engine.submit(EngineRequest(PROMPT, 60, hint=hint, num_draft_tokens=8, limit_drafts=True))
                for _ in range(12)
            ]
            results = [await generation.result() for generation in generations]
            assert all(result.tokens == expected for result in results)
    seen = engine.batch_times
    assert {time.num_threads for time in seen} == {1, len(available_cores())}
    assert max(time.num_requests for time in seen) > 6
    assert all(time.num_tokens >= time.num_requests * 0.99 for time in seen)


async def test_hints_that_come_late_are_taken(engine: VllmEngine, served: Served) -> None:
    expected = served.generate(PROMPT.to_tuple(), 120)
    generation = engine.submit(EngineRequest(PROMPT, 120))
    async for _ in generation:
        generation.offer_hint(expected[2:], start=2)
        break
    result = await generation.result()
    assert result.tokens == expected
    assert result.usage.num_passes < 120
    assert result.usage.num_accepted_draft_tokens > 0


async def test_many_at_once_write_what_they_write_alone(engine: VllmEngine, served: Served) -> None:
    prompts = [PROMPT.extend((20 + i,)) for i in range(8)]
    generations = [
        engine.submit(EngineRequest(prompt, 25, token_drafter="prompt_lookup" if i % 2 else "none"))
        for i, prompt in enumerate(prompts)
    ]
    results = await asyncio.gather(*(generation.result() for generation in generations))
    assert [r.tokens for r in results] == [served.generate(p.to_tuple(), 25) for p in prompts]


async def test_a_request_that_became_certain_goes_before_those_that_came_earlier(
    undrafted: VllmEngine,
) -> None:
    first, *others = [
        undrafted.submit(EngineRequest(PROMPT, number, priority=1)) for number in (60, 12, 12, 12, 12)
    ]
    later = undrafted.submit(EngineRequest(PROMPT, 12, priority=3))
    later.set_priority(0)
    ended: list[Generation] = []

    async def wait(generation: Generation) -> None:
        await generation.result()
        ended.append(generation)

    await asyncio.gather(*map(wait, [first, *others, later]))
    assert set(ended[:2]) == {first, later}


async def test_without_drafts_it_writes_the_same_and_takes_a_bias(
    undrafted: VllmEngine, served: Served
) -> None:
    result = await undrafted.submit(EngineRequest(PROMPT, 60, hint=(1, 2, 3))).result()
    assert result.tokens == served.generate(PROMPT.to_tuple(), 60)
    assert result.usage.num_drafted_tokens == 0
    biased = await undrafted.submit(EngineRequest(PROMPT, 5, logit_bias=((65, 100.0),))).result()
    assert biased.tokens == (65,) * 5


async def test_a_model_that_is_split_drafts_from_hints_and_earlier_texts(
    model_folder: Callable[[str], Path], served: Served
) -> None:
    """Each part is computed by a worker process of vLLM's own, with its own copy of what is drafted from."""
    expected = served.generate(PROMPT.to_tuple(), 60)
    engine = make_engine(model_folder("qwen3-wide"), {"tensor_parallel_size": 2})
    await engine.start()
    try:
        passes = []
        for text in (1, 2):
            engine.update_text(BeginText(text, Opening("a", "", (("prompt", PROMPT.to_tuple()),))))
            result = await engine.submit(EngineRequest(PROMPT, 60, text=text, num_draft_tokens=8)).result()
            assert result.tokens == expected
            passes.append(result.usage.num_passes)
        assert passes[1] < 15 < passes[0]
        hinted = EngineRequest(PROMPT, 60, hint=expected, num_draft_tokens=8, limit_drafts=True)
        generations = [engine.submit(hinted) for _ in range(12)]
        assert all([(await generation.result()).tokens == expected for generation in generations])
    finally:
        await engine.close()


async def test_nothing_computed_for_one_owner_is_used_for_another(engine: VllmEngine) -> None:
    await engine.reset_prefix_cache()
    tokens = tuple(range(20, 120))
    cached, written = [], []
    for owner in ("ana", "ana", "ben", ""):
        result = await engine.submit(EngineRequest(Prefix(tokens, owner=owner), 4)).result()
        cached.append(result.usage.num_cached_prompt_tokens)
        written.append(result.tokens)
    assert cached[1] > 0
    assert cached[0] == cached[2] == cached[3] == 0
    assert len(set(written)) == 1
    scores = [await engine.score(Prefix(tokens, owner=owner), written[0]) for owner in ("ana", "new")]
    assert scores[0].logprobs == pytest.approx(scores[1].logprobs, abs=1e-4)


async def test_a_step_ends_with_its_boundary_and_nothing_is_run_behind_it(
    engine: VllmEngine, served: Served
) -> None:
    """Boundaries are found by our scanner: a delimiter of two tokens is seen as well as one of one."""
    expected = served.generate(PROMPT.to_tuple(), 60)
    texts = [engine.tokenizer.decode(expected[i : i + 2]) for i in range(4, 40)]
    delimiter = next(text for text in texts if text.isprintable() and len(text) == 2 and text.isascii())
    result = await engine.submit(EngineRequest(PROMPT, 60, boundary=Boundary(delimiter))).result()
    assert result.finish == "boundary"
    assert result.text.endswith(delimiter)
    assert result.tokens == expected[: len(result.tokens)]
    assert result.usage.num_passes == len(result.tokens) < 60


async def test_a_bias_is_refused_with_the_remedy_while_tokens_are_drafted(engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match="token_method to none"):
        await engine.submit(EngineRequest(PROMPT, 5, logit_bias=((65, 100.0),))).result()


async def test_a_cache_that_cannot_be_emptied_now_is_said_and_harms_nothing(engine: VllmEngine) -> None:
    generation = engine.submit(EngineRequest(PROMPT, 200))
    async for _ in generation:
        break
    with pytest.raises(EngineError, match=r"only without requests"):
        await engine.reset_prefix_cache()
    generation.cancel()
    await generation.closed()
    await engine.reset_prefix_cache()


async def test_scores_are_the_models_log_probabilities(engine: VllmEngine, served: Served) -> None:
    """Also when the prefix cache holds all of it, and others were scored with the same continuation."""
    continuation = tuple(range(30, 45))
    expected = []
    for stride in (1, 2, 3):
        prefix = PROMPT.extend(tuple(range(20, 20 + 50 * stride, stride)))
        logits = served.logits((*prefix.to_tuple(), *continuation))
        rows = logits.log_softmax(-1)[len(prefix) - 1 : -1]
        exact = [float(row[token]) for row, token in zip(rows, continuation, strict=True)]
        expected.append((prefix, exact, tuple(rows.argmax(-1).tolist())))
    for _ in range(50):
        for prefix, exact, best in expected:
            score = await engine.score(prefix, continuation)
            assert score.logprobs == pytest.approx(exact, abs=2e-4)
            assert score.best == best


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.6), Sampling(0.6, top_k=20), Sampling(0.6, top_p=0.95), Sampling(0.9, top_k=20, top_p=0.95)],
    ids=["plain", "top_k", "top_p", "both"],
)
async def test_samples_with_drafts_have_the_models_distribution(
    engine: VllmEngine, served: Served, sampling: Sampling
) -> None:
    """Two tokens from a place where the second is always drafted, right or wrong."""
    first = int(served.logits(PROMPT.to_tuple())[-1].argmax())
    prefix = PROMPT.extend((first,))
    likely = truncated_probabilities(served.logits(prefix.to_tuple())[-1].numpy(), sampling)
    token = int(likely.argmax())
    behind = truncated_probabilities(served.logits((*prefix.to_tuple(), token))[-1].numpy(), sampling)
    draft = int(np.argsort(behind)[-2])
    requests = [
        EngineRequest(
            prefix,
            3,
            hint=(token, draft),
            sampling=Sampling(sampling.temperature, sampling.top_k, sampling.top_p, NoiseKey(0, 0, sample)),
            stream=False,
        )
        for sample in range(NUM_SAMPLES)
    ]
    results = await asyncio.gather(*(engine.submit(request).result() for request in requests))
    assert sum(result.usage.num_drafted_tokens for result in results) > NUM_SAMPLES * likely[token] / 2
    counts = Counter(result.tokens[1] for result in results if result.tokens[0] == token)
    total = sum(counts.values())
    assert not [t for t in counts if behind[t] == 0]
    # Cells that are expected often enough for the test, and one for all others together.
    cells = [int(t) for t in np.flatnonzero(behind * total >= 5)]
    observed = np.array([*(counts[t] for t in cells), total - sum(counts[t] for t in cells)])
    chances = np.array([*behind[cells], max(0.0, 1 - behind[cells].sum())])
    kept = chances * total > 0.5
    assert chisquare(observed[kept], chances[kept] / chances[kept].sum() * observed[kept].sum()).pvalue > 1e-4


async def test_equal_seeds_draw_equal_samples_and_others_do_not(engine: VllmEngine) -> None:
    def ask(sample: int) -> EngineRequest:
        return EngineRequest(PROMPT, 12, sampling=Sampling(1.0, noise=NoiseKey(1, 2, sample)))

    results = [await engine.submit(ask(sample)).result() for sample in (0, 0, 1)]
    assert results[0].tokens == results[1].tokens != results[2].tokens


async def test_what_vllm_refuses_is_told_in_its_own_words(model_folder: Callable[[str], Path]) -> None:
    engine = make_engine(model_folder("qwen3-wide"), {"max_num_seqz": 3})
    with pytest.raises(EngineError, match=r"target.*max_num_seqz"):
        await engine.start()


NEEDS_ARCTIC = pytest.mark.skipif(
    importlib.util.find_spec("arctic_inference") is None, reason="suffix needs the package arctic-inference"
)


@pytest.mark.parametrize("method", ["ngram", "draft_model", pytest.param("suffix", marks=NEEDS_ARCTIC)])
async def test_vllms_own_methods_write_the_same(
    method: str, model_folder: Callable[[str], Path], served: Served
) -> None:
    speculative: dict[str, dict[str, object]] = {
        "ngram": {"prompt_lookup_max": 3},
        "draft_model": {"model": str(model_folder("qwen3-wide"))},
    }
    own = {"speculative_config": speculative[method]} if method in speculative else {}
    engine = make_engine(model_folder("qwen3-wide"), own, token_method=method, draft_tokens=6)
    await engine.start()
    try:
        result = await engine.submit(EngineRequest(PROMPT, 60, hint=(1, 2, 3))).result()
    finally:
        await engine.close()
    assert result.tokens == served.generate(PROMPT.to_tuple(), 60)
    assert result.usage.num_drafted_tokens > 0


def under(accelerator: Accelerator, verifier: VerifierSettings) -> Generator:
    """Return a generator over the same models with another verifier."""
    settings = accelerator.settings.model_copy(update={"verifier": verifier})
    return replace(accelerator.generator, settings=settings)


async def test_both_layers_of_the_embedded_pair_answer_as_the_target_alone() -> None:
    flags = {
        "target.kind": "vllm",
        "draft.kind": "vllm",
        "target.vllm.arguments": {"enforce_eager": True},
        "draft.vllm.arguments": {"enforce_eager": True},
        "verifier.name": "exact",
        "strategy.planner": False,
    }
    question = "Ana has 3 apples. Tom has 4 more apples than Ana. How many apples does Tom have?"
    names = ("autoregressive", "speculative", "lookahead")
    async with Accelerator.from_settings(load_settings(flags=flags), strategies=names) as accelerator:
        solutions = {}
        for name in names:
            await accelerator.prepare(name)
            solutions[name] = await accelerator.answer(question, strategy=name)
        strict = VerifierSettings(name="likelihood+exact", thresholds={"likelihood": 1.0})
        judging = under(accelerator, strict)
        await judging.prepare("hybrid")
        judged = await judging.answer(judging.request(question, strategy="hybrid"))
        other = under(accelerator, VerifierSettings())
        for name in ("specreason", "rsd", "arbitrage", "speculative_thinking", "scot", "oracle"):
            await other.prepare(name)
            solution = await other.answer(other.request(question, strategy=name))
            assert solution.steps[-1].ends_text, name
            assert accelerator.draft is not None
            for engine in (accelerator.target, accelerator.draft):
                assert (await engine.stats()).num_running == 0, name
    plain = solutions["autoregressive"]
    assert judged.text == plain.text
    assert judged.recorder.target_usage.num_scored_tokens > 0
    assert judged.recorder.target_usage.num_generated_tokens < plain.num_tokens
    assert all(solution.text == plain.text for solution in solutions.values())
    assert "7" in plain.text
    for name in names[1:]:
        work = solutions[name].recorder.target_usage
        assert work.num_accepted_draft_tokens > 0


async def test_a_draft_of_another_family_changes_no_word(model_folder: Callable[[str], Path]) -> None:
    """Its vocabulary is another one, so steps cross as text and no hint is handed over.

    The torch engine serves it, which is ready sooner.
    """
    flags: dict[str, Any] = {
        "target.kind": "vllm",
        "draft.model": str(model_folder("qwen3-wide")),
        "target.vllm.arguments": {"enforce_eager": True},
        "draft.device": "cpu",
        "draft.dtype": "float32",
        "verifier.name": "exact",
        "strategy.planner": False,
        "strategy.step_max_tokens": 40,
        "sampling.max_tokens": 120,
    }
    names = ("autoregressive", "lookahead")
    async with Accelerator.from_settings(load_settings(flags=flags), strategies=names) as accelerator:
        assert accelerator.draft is not None
        assert accelerator.draft.tokenizer.tokenizer_id != accelerator.target.tokenizer.tokenizer_id
        alone = await accelerator.answer("Ana has 3 apples. How many?", strategy="autoregressive")
        ahead = await accelerator.answer("Ana has 3 apples. How many?", strategy="lookahead")
        strict = VerifierSettings(name="likelihood", thresholds={"likelihood": 1.0})
        judging = under(accelerator, strict)
        judged = await judging.answer(judging.request("Ana has 3 apples. How many?", strategy="specreason"))
    assert ahead.text == judged.text == alone.text
    assert ahead.recorder.draft_usage.num_generated_tokens > 0
    # Under lookahead a draft that is slower than the target is compared with nothing.
    assert judged.recorder.verdicts
    assert judged.recorder.target_usage.num_scored_tokens > 0
