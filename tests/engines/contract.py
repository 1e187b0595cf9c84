"""What every engine with a worker process must do, inherited by the tests of each."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import psutil
import pytest

from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.text_updates import BeginText, CloseText, ExtendText, ForgetTexts, Opening
from reason_spec.engines.worker.engine import WorkerEngine
from reason_spec.errors import ConstraintError, EngineError
from reason_spec.segment import Boundary
from reason_spec.settings import SuffixSettings
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.types import Constraint, NoiseKey, Prefix, Sampling, Usage
from tests.engines.tiny_models import Served
from tests.strategies.solving import write_alone

SUFFIX = SuffixSettings(use="tokens")
"""What the engines under test are made with."""
PROMPT = Prefix((5, 6, 7, 8)).extend((9, 10))


async def write_much(engine: WorkerEngine) -> list[Generation]:
    """Submit more than the tiny model writes in a moment, and wait for the first token."""
    # A small cache has place for two of them at a time.
    generations = [engine.submit(EngineRequest(PROMPT, 240)) for _ in range(8)]
    async for _ in generations[0]:
        break
    return generations


class WorkerEngineContract:
    """Tests for the test class of an engine to inherit.

    Its module has the fixtures ``engine``, ``own_engine`` (one that a test may kill) and ``served``, the
    same model in Transformers.
    """

    async def test_a_stop_token_ends_a_text_and_is_no_part_of_it(
        self, engine: WorkerEngine, served: Served
    ) -> None:
        expected = served.generate(PROMPT.to_tuple(), 30)
        stop = expected[11]
        cut = expected.index(stop)
        plain = EngineRequest(PROMPT, 30, stop_ids=frozenset({stop}))
        for request in (plain, replace(plain, hint=expected, num_draft_tokens=8)):
            result = await engine.submit(request).result()
            assert (result.tokens, result.finish) == (expected[: cut + 1], "stop")
            assert result.text == engine.tokenizer.decode(expected[:cut])
            assert len(result.logprobs) == len(result.tokens)

    async def test_a_limited_thinking_ends_at_its_token_and_the_text_goes_on(
        self, engine: WorkerEngine, served: Served
    ) -> None:
        closing = ": so"
        inserted = engine.tokenizer.encode(closing)
        written = served.generate(PROMPT.to_tuple(), 20)
        for budget in (0, 1, 7, 20):
            limit = ThinkingLimit(max_tokens=budget, closer="", closing=closing, answer_tokens=8)
            steps, recorder = await write_alone(engine, PROMPT, limit, 30)
            assert recorder.thinking is not None
            tokens = tuple(token for step in steps for token in step.tokens)
            num_thinking = recorder.thinking.num_tokens
            start = num_thinking + len(inserted)
            assert max(0, min(budget, 30 - len(inserted) - 8) - 3) <= num_thinking <= budget
            assert tokens[:start] == (*written[:num_thinking], *inserted)
            prefix = (*PROMPT.to_tuple(), *tokens[:start])
            assert tokens[start:] == served.generate(prefix, 30 - start)

    async def test_streams_what_the_model_writes(self, engine: WorkerEngine, served: Served) -> None:
        expected = served.generate(PROMPT.to_tuple(), 30)
        generation = engine.submit(EngineRequest(PROMPT, 30))
        tokens = [token async for delta in generation for token in delta.tokens]
        result = await generation.result()
        assert tuple(tokens) == result.tokens == expected
        assert result.finish == "length"
        assert result.text == engine.tokenizer.decode(expected)
        single = min(engine.pass_times, key=lambda time: time.num_tokens)
        assert single.num_tokens == 1
        assert single.count > 10
        assert single.seconds > 0

    async def test_what_may_come_next_is_read_from_one_prediction(
        self, engine: WorkerEngine, served: Served
    ) -> None:
        for prefix in (PROMPT, PROMPT.extend((7, 8)), PROMPT):
            logprobs = served.logits(prefix.to_tuple()).log_softmax(-1)[-1]
            likely = tuple(logprobs.topk(10).indices.tolist()[::-1])
            for choices in (likely, tuple(range(40, 50))):
                score = await engine.score_next(prefix, choices)
                assert score.logprobs == pytest.approx([float(logprobs[one]) for one in choices], abs=2e-4)
                assert score.best == (likely[-1],)
                if choices == likely:
                    assert score.usage.num_scored_tokens == 1
                    assert score.usage.num_passes <= 1

    async def test_cancelled_work_leaves_the_engine(self, engine: WorkerEngine) -> None:
        generations = await write_much(engine)
        for generation in generations * 2:
            generation.cancel()
        usages = [await generation.closed() for generation in generations]
        assert (await generations[-1].result()).finish == "cancelled"
        assert any(1 <= usage.num_generated_tokens < 240 for usage in usages)
        stats = await engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        await engine.reset_prefix_cache()
        assert (await engine.stats()).num_cached_tokens == 0

    async def test_passes_with_drafts_are_counted_by_how_many_of_these_stood(
        self, engine: WorkerEngine, served: Served
    ) -> None:
        """As vLLM counts: passes without a draft are left out, so the acceptance length is the same."""
        expected = served.generate(PROMPT.to_tuple(), 30)
        plain = await engine.submit(EngineRequest(PROMPT, 30)).result()
        assert plain.usage.acceptance_histogram == ()
        hint = (*expected[:9], (expected[9] + 1) % 260, 1, 2)
        # Asked twice: at the second time the first token is known without a pass.
        for _ in range(2):
            result = await engine.submit(EngineRequest(PROMPT, 30, hint=hint, num_draft_tokens=4)).result()
            usage, histogram = result.usage, result.usage.acceptance_histogram
            assert result.tokens == expected
            assert 0 < sum(histogram) < usage.num_passes - 15
            num_stood = sum(stood * count for stood, count in enumerate(histogram))
            assert num_stood == usage.num_accepted_draft_tokens > 0

    async def test_a_prefix_without_room_fails_its_generation_alone(self, engine: WorkerEngine) -> None:
        generation = engine.submit(EngineRequest(Prefix((1,) * 300), 5, boundary=Boundary()))
        with pytest.raises(EngineError, match=r"target.*no room"):
            await generation.result()
        assert (await generation.closed()).num_generated_tokens == 0
        with pytest.raises(EngineError, match=r"another model"):
            await engine.submit(EngineRequest(Prefix((100_000,)), 5)).result()
        assert (await engine.submit(EngineRequest(PROMPT, 2)).result()).finish == "length"

    async def test_earlier_texts_save_passes_change_no_token_and_stay_with_their_tenant(
        self, engine: WorkerEngine, served: Served
    ) -> None:
        expected = served.generate(PROMPT.to_tuple(), 60)

        async def write(text: int, tenant: str, scope: str = "") -> Usage:
            opening = Opening(tenant, scope, (("prompt", PROMPT.to_tuple()),))
            await engine.reset_prefix_cache()
            engine.update_text(BeginText(text, opening))
            result = await engine.submit(EngineRequest(PROMPT, 60, text=text, num_draft_tokens=8)).result()
            engine.update_text(ExtendText(text, result.tokens))
            engine.update_text(CloseText(text))
            assert result.tokens == expected
            return result.usage

        first, again = await write(1, "ana"), await write(2, "ana")
        assert again.num_passes < first.num_passes
        assert again.num_accepted_draft_tokens > first.num_accepted_draft_tokens
        assert await write(3, "ben") == first
        assert await write(4, "ana", "another scope") == first
        engine.update_text(ForgetTexts(""))
        assert await write(5, "ana") == first

    async def test_drafts_for_a_step_that_is_not_final_are_not_learnt(
        self, engine: WorkerEngine, served: Served
    ) -> None:
        expected = served.generate(PROMPT.to_tuple(), 30)
        opening = Opening("cleo", "", (("prompt", PROMPT.to_tuple()),))
        boundary = Boundary("never written")
        passes = []
        for text in (6, 7, 8):
            await engine.reset_prefix_cache()
            engine.update_text(BeginText(text, opening))
            result = await engine.submit(EngineRequest(PROMPT, 30, boundary=boundary, text=text)).result()
            assert result.tokens == expected
            passes.append(result.usage.num_passes)
            if text == 7:
                engine.update_text(ExtendText(text, result.tokens))
            engine.update_text(CloseText(text))
        assert passes[0] == passes[1] > passes[2]

    async def test_a_constrained_text_fits_and_leaves_what_is_beside_it_alone(
        self, engine: WorkerEngine, served: Served
    ) -> None:
        """Also where hints are right at first, break the constraint, or go on behind its end."""
        expected = served.generate(PROMPT.to_tuple(), 20)
        eos = sorted(engine.tokenizer.eos_ids)[:1]
        constraint = Constraint(regex="the 123é{1,3} [a-f]{6}")
        await engine.check_constraint(constraint)
        asked = EngineRequest(PROMPT, 40, constraint=constraint)
        plain = await engine.submit(replace(asked, num_draft_tokens=0)).result()
        hints = [plain.tokens, (*plain.tokens, *plain.tokens), plain.tokens[:3] + expected, (*eos, 5)]
        writing = [engine.submit(replace(asked, hint=hint)) for hint in hints]
        beside = [engine.submit(EngineRequest(PROMPT, 20, hint=hint)) for hint in ((), expected)]
        sampling = Sampling(1.0, top_p=0.9, noise=NoiseKey(4))
        sampled = engine.submit(replace(asked, sampling=sampling, hint=plain.tokens))
        for generation in writing:
            assert (await generation.result()).tokens == plain.tokens
        for generation in beside:
            assert (await generation.result()).tokens == expected
        for result in (plain, await sampled.result()):
            assert result.finish == "eos"
            assert re.fullmatch("the 123é{1,3} [a-f]{6}", result.text)

    async def test_a_bad_constraint_is_refused_before_anything_runs(self, engine: WorkerEngine) -> None:
        constraint = Constraint(json_schema='{"type": "object", "not": {}}')
        with pytest.raises(ConstraintError, match=r'Unimplemented keys: ."not".'):
            await engine.check_constraint(constraint)
        with pytest.raises(EngineError, match=r'target.*Unimplemented keys: ."not".'):
            await engine.submit(EngineRequest(PROMPT, 5, constraint=constraint)).result()
        assert (await engine.submit(EngineRequest(PROMPT, 2)).result()).finish == "length"

    async def test_a_killed_worker_fails_what_is_live_and_what_comes_after(
        self, own_engine: WorkerEngine
    ) -> None:
        generations = await write_much(own_engine)
        assert own_engine.worker_pid is not None
        psutil.Process(own_engine.worker_pid).kill()
        results = (generation.result() for generation in generations)
        ends = await asyncio.wait_for(asyncio.gather(*results, return_exceptions=True), 30)
        failed = [end for end in ends if isinstance(end, EngineError)]
        assert ends[-1] in failed
        assert all(re.search(r"'target'.*SIGKILL.*start the engine again", str(error)) for error in failed)
        with pytest.raises(EngineError, match="SIGKILL"):
            await own_engine.submit(EngineRequest(PROMPT, 2)).result()
        with pytest.raises(EngineError, match="SIGKILL"):
            await own_engine.score(PROMPT, (1,))
        with pytest.raises(EngineError, match="SIGKILL"):
            await own_engine.stats()

    async def test_a_stopped_worker_is_killed_and_nobody_waits_for_it(self, own_engine: WorkerEngine) -> None:
        generations = await write_much(own_engine)
        assert own_engine.worker_pid is not None
        worker = psutil.Process(own_engine.worker_pid)
        worker.suspend()
        for generation in generations:
            generation.cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(*(generation.closed() for generation in generations))
            with pytest.raises(EngineError, match=r"'target'.*no sign of life"):
                await own_engine.score(PROMPT, (1,))
        assert not worker.is_running()
