from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.scripted import END_OF_TEXT, ScriptedEngine
from reason_spec.errors import ConstraintError, EngineError
from reason_spec.segment import Boundary
from reason_spec.types import Constraint, Prefix, Sampling

TEXT = "One bird sang.\n\nTwo birds flew off.\n\nNone is left."


def script(text: str, sampling: Sampling) -> str:
    return TEXT[len(text) - 1 :]


@asynccontextmanager
async def running(**options: float | None) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine("target", script, **options)  # type: ignore[arg-type]
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def prefix(engine: ScriptedEngine, begun: str = "") -> Prefix:
    return Prefix(engine.tokenizer.encode(">" + begun))


async def test_a_generation_ends_with_the_step_the_text_or_the_budget() -> None:
    async with running() as engine:
        step = await engine.submit(EngineRequest(prefix(engine), 99, boundary=Boundary())).result()
        whole = await engine.submit(EngineRequest(prefix(engine), 99)).result()
        short = await engine.submit(EngineRequest(prefix(engine), 2)).result()
    assert (step.text, step.finish) == ("One bird sang.\n\n", "boundary")
    assert (whole.text, whole.finish) == (TEXT, "eos")
    assert whole.tokens[-1] == END_OF_TEXT
    assert (short.text, short.finish) == ("One bird", "length")


async def test_deltas_joined_are_the_result() -> None:
    async with running() as engine:
        generation = engine.submit(EngineRequest(prefix(engine), 99))
        tokens = [token async for delta in generation for token in delta.tokens]
        assert tuple(tokens) == (await generation.result()).tokens


@pytest.mark.parametrize(
    ("stop", "text"), [("birds", "One bird sang.\n\nTwo "), ("sang.\n\nTwo", "One bird ")]
)
async def test_a_stop_cuts_the_text(stop: str, text: str) -> None:
    async with running() as engine:
        result = await engine.submit(EngineRequest(prefix(engine), 99, stops=(stop,))).result()
    assert (result.text, result.finish, result.num_stop_overlap) == (text, "stop", 0)


async def test_a_stop_that_began_in_earlier_text_says_how_much_of_it_lies_there() -> None:
    async with running() as engine:
        request = EngineRequest(
            prefix(engine, "One bird sang.\n\n"), 99, stops=("sang.\n\nTwo",), stop_context="sang.\n\n"
        )
        result = await engine.submit(request).result()
    assert (result.text, result.finish, result.num_stop_overlap) == ("", "stop", len("sang.\n\n"))


async def test_a_right_hint_saves_passes_and_a_wrong_one_changes_nothing() -> None:
    async with running() as engine:
        plain = await engine.submit(EngineRequest(prefix(engine), 99)).result()
        hinted = await engine.submit(EngineRequest(prefix(engine), 99, hint=plain.tokens)).result()
        misled = await engine.submit(EngineRequest(prefix(engine), 99, hint=plain.tokens[::-1])).result()
    assert hinted.tokens == misled.tokens == plain.tokens
    assert hinted.usage.num_passes < plain.usage.num_passes
    assert hinted.usage.alpha_token == 1.0


async def test_cancelling_frees_the_slot_and_keeps_what_was_written() -> None:
    async with running(seconds_per_pass=0.001) as engine:
        generation = engine.submit(EngineRequest(prefix(engine), 99))
        await anext(aiter(generation))
        generation.cancel()
        generation.cancel()
        usage = await generation.closed()
        result = await generation.result()
        assert result.finish == "cancelled"
        assert usage.num_generated_tokens == len(result.tokens) > 0
        assert (await engine.stats()).num_running == 0


async def test_requests_share_passes() -> None:
    async with running() as engine:
        generations = [engine.submit(EngineRequest(prefix(engine), 5)) for _ in range(8)]
        for generation in generations:
            await generation.result()
        assert (await engine.stats()).num_passes == 5


async def test_a_failure_reaches_whoever_waits() -> None:
    async with running(fail_after=2) as engine:
        generation = engine.submit(EngineRequest(prefix(engine), 99))
        with pytest.raises(EngineError, match="scripted failure"):
            await generation.result()
        assert (await generation.closed()).num_generated_tokens == 2


async def test_closing_ends_live_generations() -> None:
    async with running() as engine:
        generation = engine.submit(EngineRequest(prefix(engine), 99))
    assert (await generation.result()).finish == "cancelled"


async def test_score_tells_what_the_script_would_write() -> None:
    async with running() as engine:
        right = engine.tokenizer.encode("One bird")
        score = await engine.score(prefix(engine), (*right, END_OF_TEXT))
    assert score.best[: len(right)] == right
    assert score.best[len(right)] != END_OF_TEXT
    assert score.logprobs == (0.0,) * len(right) + (float("-inf"),)


async def test_a_script_is_held_to_a_constraint_and_not_changed_by_it() -> None:
    async with running() as engine:
        fitting = Constraint(regex=r"(One|Two|None)[^.]*\.(\s+(One|Two|None)[^.]*\.)*")
        await engine.check_constraint(fitting)
        result = await engine.submit(EngineRequest(prefix(engine), 99, constraint=fitting)).result()
        cut = await engine.submit(EngineRequest(prefix(engine), 2, constraint=fitting)).result()
        other = EngineRequest(
            prefix(engine), 99, constraint=Constraint(regex=r"One bird sang\.\s+Two cats.*")
        )
        with pytest.raises(EngineError, match=r"it breaks it behind 'One bird sang\.\\n\\nTwo '"):
            await engine.submit(other).result()
        longer = EngineRequest(prefix(engine), 99, constraint=Constraint(regex=r"(.|\n)*And one came back\."))
        with pytest.raises(EngineError, match="it breaks off too early"):
            await engine.submit(longer).result()
        with pytest.raises(ConstraintError, match="Invalid type"):
            await engine.check_constraint(Constraint(json_schema='{"type": "objekt"}'))
    assert (result.text, result.finish) == (TEXT, "eos")
    assert (cut.text, cut.finish) == ("One bird", "length")
