"""Flips: exact answers that differ from the baseline by rounding."""

from __future__ import annotations

from dataclasses import replace

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


Found = tuple[Rounding | None, list[Outcome]]


async def solved(dtype: str, temperature: float = 0.0, flip: bool = False) -> Found:
    settings = load_settings(
        flags={"target.dtype": dtype, "sampling.temperature": temperature, "sampling.max_tokens": 24}
    )
    async with Accelerator.from_settings(settings, strategies=STRATEGIES) as accelerator:
        outcomes = [item async for item in run(accelerator, PROBLEMS, STRATEGIES)]
        kept = [item for item in outcomes if isinstance(item, Outcome)]
        if flip:
            kept = [flipped(item) if item.strategy == "prompt_lookup" else item for item in kept]
        return await find_rounding(accelerator, PROBLEMS, kept), kept


def flipped(outcome: Outcome) -> Outcome:
    """The outcome with its third token replaced by another one."""
    first, *rest = outcome.steps
    tokens = list(first.token_ids)
    tokens[2] += 1
    return replace(outcome, steps=(replace(first, token_ids=tuple(tokens)), *rest))


async def test_in_float32_and_for_samples_nothing_is_looked_for() -> None:
    assert (await solved("float32"))[0] is None
    assert (await solved("bfloat16", temperature=0.7))[0] is None


async def test_off_float32_each_place_where_an_answer_differs_is_scored() -> None:
    rounding, _ = await solved("bfloat16", flip=True)
    assert rounding is not None
    assert rounding.num_pairs == {"prompt_lookup": 2}
    assert [(flip.place, flip.strategy) for flip in rounding.flips] == [(2, "prompt_lookup")] * 2
    assert all(flip.gap is not None and flip.gap > 1 for flip in rounding.flips), "no ties: put there"
    assert Rounding.from_dict(rounding.to_dict()) == rounding


async def test_the_table_and_a_sentence_show_it() -> None:
    _, outcomes = await solved("bfloat16")
    flips = (Flip("p0", 0, "prompt_lookup", 7, 0.125), Flip("p1", 0, "prompt_lookup", 3, None))
    rounding = Rounding("bfloat16", {"prompt_lookup": 2}, flips)
    table = metrics_table(measure(outcomes, STRATEGIES).strategies, {}, rounding)
    place = list(table.columns[0].cells).index("flips by bfloat16")
    assert [list(column.cells)[place] for column in table.columns[1:]] == ["-", "2 of 2"]
    (line,) = rounding_lines(rounding)
    assert line.startswith(
        "prompt_lookup in bfloat16: 2 of 2 answers differ from autoregressive, at tokens 0.125"
    )
