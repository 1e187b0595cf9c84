"""Rounding differences: tokens at which an exact answer differs from plain decoding by rounding alone.

Below float32 a pass over several tokens rounds differently from a pass over one, so greedy decoding may
choose another token where two are nearly tied. The target scores both tokens at each such place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reason_spec.accelerator import Accelerator
from reason_spec.evaluation.grouping import BASELINE, by_strategy, pair_up
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.prompts import ask_for
from reason_spec.types import Prefix, Problem

EXACT_DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Flip:
    """The first token at which an answer differs from the baseline's.

    ``place`` counts the tokens of the answer before it. ``gap`` is the difference of the log-probabilities of
    the two tokens there, in nats, as the target scores them; None where one of the answers had ended.
    """

    id: str
    sample: int
    strategy: str
    place: int
    gap: float | None


@dataclass(frozen=True, slots=True)
class Rounding:
    """Answers of loss class ``exact`` that rounding changed, at temperature 0.

    ``num_pairs`` counts, for each strategy, the answers that have one of the baseline beside them.
    """

    dtype: str
    num_pairs: Mapping[str, int]
    flips: tuple[Flip, ...]

    def of(self, strategy: str) -> list[Flip]:
        return [flip for flip in self.flips if flip.strategy == strategy]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "flips": [asdict(flip) for flip in self.flips]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Rounding:
        flips = tuple(Flip(**flip) for flip in content["flips"])
        return cls(content["dtype"], dict(content["num_pairs"]), flips)


async def find_rounding(
    accelerator: Accelerator, problems: Sequence[Problem], outcomes: Iterable[Outcome]
) -> Rounding | None:
    """Find and score the tokens at which exact answers differ from the baseline's.

    Return None in float32, where there are none, and where answers were sampled.

    Raises:
        EngineError: the target failed.
    """
    dtype = accelerator.target.dtype
    if dtype in (None, EXACT_DTYPE) or accelerator.settings.sampling.temperature:
        return None
    groups = by_strategy(outcomes)
    baseline = groups.pop(BASELINE, [])
    known = {problem.id: problem for problem in problems}
    num_pairs, flips = {}, []
    for strategy, answers in groups.items():
        if answers[0].loss_class != "exact":
            continue
        pairs = [pair for pair in pair_up(baseline, answers) if pair[1].id in known]
        num_pairs[strategy] = len(pairs)
        flips += [
            await _score(accelerator, known[own.id], base, own)
            for base, own in pairs
            if base.token_ids != own.token_ids
        ]
    return Rounding(str(dtype), num_pairs, tuple(flips)) if num_pairs else None


async def _score(accelerator: Accelerator, problem: Problem, base: Outcome, own: Outcome) -> Flip:
    theirs, ours = base.token_ids, own.token_ids
    shortest = min(len(theirs), len(ours))
    place = next((place for place in range(shortest) if theirs[place] != ours[place]), shortest)
    gap = None
    if place < shortest:
        asked = ask_for(problem, accelerator.settings, sample=own.sample, strategy=own.strategy)
        prefix = Prefix((*accelerator.encode(asked).target.to_tuple(), *ours[:place]))
        score = await accelerator.target.score_next(prefix, (theirs[place], ours[place]))
        gap = abs(score.logprobs[0] - score.logprobs[1])
    return Flip(own.id, own.sample, own.strategy, place, gap)
