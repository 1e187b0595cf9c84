"""How often each verifier accepts a drafted step in the place of the target's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reason_spec.accelerator import Generator
from reason_spec.engines.generation import EngineRequest
from reason_spec.evaluation.estimates import Estimate, estimate_pooled_share
from reason_spec.evaluation.outcome import StepRecord
from reason_spec.evaluation.prompts import ask_for
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.step_tokens import step_from_result
from reason_spec.types import Problem, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier


class StepPair(NamedTuple):
    """The steps that draft and target wrote at one place of the target's answer."""

    context: VerificationContext
    drafted: Step
    own: Step


@dataclass(frozen=True, slots=True)
class StepAcceptance:
    """Share of drafted steps that a verifier accepts; the interval is clustered by problem.

    ``alone``: it judges the drafted step without the target's.
    """

    verifier: str
    alone: bool
    num_steps: int
    alpha: Estimate


async def draft_steps(generator: Generator, problem: Problem, answer: Sequence[StepRecord]) -> list[StepPair]:
    """Let the draft write each step of the target's answer again, after the target's own steps before it.

    Args:
        answer: its steps, from the first on, each with a token at least.

    Raises:
        EngineError: the draft fails.
    """
    target, draft = generator.target, generator.draft
    assert draft is not None, "steps are drafted by a draft"
    place = generator.resolve(ask_for(problem, generator.settings))
    places: list[tuple[SolveRequest, Step]] = []
    for record in answer:
        own = Step(record.text, record.token_ids, "target", record.finish, target.tokenizer.tokenizer_id)
        places.append((place, own))
        place = place.after((own,), target, draft)
    longest = generator.settings.strategy.step_max_tokens
    work = [draft.submit(_request(place, longest)) for place, _ in places]
    results = await asyncio.gather(*(one.result() for one in work))
    return [
        StepPair(place.context, step_from_result(result, "draft", draft), own)
        for (place, own), result in zip(places, results, strict=True)
    ]


def _request(place: SolveRequest, longest: int) -> EngineRequest:
    assert place.draft_prompt is not None
    return EngineRequest(
        place.draft_prompt,
        min(longest, place.max_tokens),
        place.sampling,
        boundary=place.boundary,
        stops=place.stops,
        stop_context=place.stop_context(place.text_before),
        begins_in=place.begins_in,
        stream=False,
    )


async def judge_steps(
    verifier: Verifier, pairs: Sequence[Sequence[StepPair]], done: Callable[[], None] = lambda: None
) -> list[list[Verdict]]:
    """Return the verdicts on the drafted steps of each problem.

    Args:
        verifier: started.
        done: called after each problem.
    """
    found: list[list[Verdict]] = []
    for steps in pairs:
        verdicts = await asyncio.gather(
            *(
                verifier.verify(pair.context, pair.drafted, pair.own if verifier.compares else None)
                for pair in steps
            )
        )
        found.append(list(verdicts))
        done()
    return found


def step_acceptance(verifier: Verifier, verdicts: Sequence[Sequence[Verdict]]) -> StepAcceptance:
    """Return the acceptance rate of verdicts by problem, one at least in all; unknown is not accepted."""
    accepted = [float(sum(verdict.accepted for verdict in of_problem)) for of_problem in verdicts]
    sizes = [float(len(of_problem)) for of_problem in verdicts]
    alpha = estimate_pooled_share(accepted, sizes)
    return StepAcceptance(verifier.name, not verifier.compares, sum(map(len, verdicts)), alpha)
