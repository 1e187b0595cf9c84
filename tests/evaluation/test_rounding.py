"""Flips: exact answers that differ from the baseline by rounding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from reason_spec.accelerator import Accelerator
from reason_spec.cli.results_table import metrics_table, rounding_lines
from reason_spec.evaluation.metrics import measure
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.rounding import Flip, Rounding, find_rounding
from reason_spec.evaluation.run import run
from reason_spec.settings import load_settings
from reason_spec.types import Problem

PROBLEMS = [Problem(f"p{number}", f"What is {number} + 4?", str(number + 4)) for number in range(2)]
STRATEGIES = ("autoregressive", "prompt_lookup")

pytestmark = pytest.mark.asyncio(loop_scope="module")


def in_dtype(dtype: str, temperature: float = 0.0) -> Accelerator:
    flags = {"target.dtype": dtype, "sampling.temperature": temperature, "sampling.max_tokens": 24}
    return Accelerator.from_settings(load_settings(flags=flags), strategies=STRATEGIES)


async def solved(accelerator: Accelerator) -> list[Outcome]:
    outcomes = [item async for item in run(accelerator, PROBLEMS, STRATEGIES)]
    return [item for item in outcomes if isinstance(item, Outcome)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coarse() -> AsyncIterator[Accelerator]:
    """Samples in bfloat16, unless its generator gets other settings."""
    async with in_dtype("bfloat16", temperature=0.7) as accelerator:
        yield accelerator


def flipped(outcome: Outcome) -> Outcome:
    """The outcome with its third token replaced by another one."""
    first, *rest = outcome.steps
    tokens = list(first.token_ids)
    tokens[2] += 1
    return replace(outcome, steps=(replace(first, token_ids=tuple(tokens)), *rest))


async def test_in_float32_nothing_is_looked_for() -> None:
    async with in_dtype("float32") as accelerator:
        assert await find_rounding(accelerator, PROBLEMS, await solved(accelerator)) is None


async def test_for_samples_nothing_is_looked_for(coarse: Accelerator) -> None:
    assert await find_rounding(coarse, PROBLEMS, await solved(coarse)) is None


async def test_off_float32_each_place_where_an_answer_differs_is_scored_and_shown(
    coarse: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = coarse.settings.sampling.model_copy(update={"temperature": 0.0})
    greedy = coarse.settings.model_copy(update={"sampling": sampling})
    monkeypatch.setattr(coarse, "generator", replace(coarse.generator, settings=greedy))
    outcomes = await solved(coarse)
    kept = [flipped(item) if item.strategy == "prompt_lookup" else item for item in outcomes]
    rounding = await find_rounding(coarse, PROBLEMS, kept)
    assert rounding is not None
    assert rounding.num_pairs == {"prompt_lookup": 2}
    assert [(flip.place, flip.strategy) for flip in rounding.flips] == [(2, "prompt_lookup")] * 2
    assert all(flip.gap is not None and flip.gap > 1 for flip in rounding.flips), "no ties: put there"
    assert Rounding.from_dict(rounding.to_dict()) == rounding

    flips = (Flip("p0", 0, "prompt_lookup", 7, 0.125), Flip("p1", 0, "prompt_lookup", 3, None))
    rounding = Rounding("bfloat16", {"prompt_lookup": 2}, flips)
    table = metrics_table(measure(outcomes, STRATEGIES).strategies, {}, rounding)
    place = list(table.columns[0].cells).index("flips by bfloat16")
    assert [list(column.cells)[place] for column in table.columns[1:]] == ["-", "2 of 2"]
    (line,) = rounding_lines(rounding)
    assert line.startswith(
        "prompt_lookup in bfloat16: 2 of 2 answers differ from autoregressive, at tokens 0.125"
    )
