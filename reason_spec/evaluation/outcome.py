"""The measured answer of a strategy to a problem, as it is stored and compared."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from reason_spec.accelerator import Solution
from reason_spec.errors import first_mistake
from reason_spec.events import EarlyExit, Recorder, ThinkingOutcome
from reason_spec.settings import Settings
from reason_spec.tasks.grading import Grade
from reason_spec.types import Decision, FinishReason, LossClass, Origin, Plan, Problem, Step, Usage, Verdict

GROUP_TOKENS: Final = 64
"""Tokens of a group of `Confidence`. DeepConf takes 2048, of texts with tens of thousands."""
DECISIONS: tuple[Decision, ...] = ("accept", "reject", "unknown")


class UnitKey(NamedTuple):
    """The key of an outcome within a run."""

    problem_id: str
    sample: int
    strategy: str


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A final step. ``tokens`` counts ``token_ids``, which are ids of the target's tokenizer."""

    text: str
    origin: Origin
    tokens: int
    finish: FinishReason
    verdict: Verdict | None
    token_ids: tuple[int, ...]

    @classmethod
    def from_step(cls, step: Step) -> StepRecord:
        return cls(step.text, step.origin, len(step.tokens), step.finish, step.verdict, step.tokens)


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """The work on an answer, rejected branches included.

    ``highest_refused`` is the highest score of a verdict that did not accept, None without one. The answer
    is the same at every lower threshold above it. ``cache_verdicts`` counts the verdicts on steps of the
    suffix cache, which was asked for a step ``num_cache_asked`` times. ``num_late_drafts`` counts drafts that
    were not complete when the target had written the step. ``num_probes`` trial answers of early exit took
    ``num_probe_tokens`` tokens, which are among those of the models.
    """

    target: Usage
    draft: Usage
    verdicts: dict[Decision, int]
    verifier_seconds: float
    highest_refused: float | None = None
    cache_verdicts: dict[Decision, int] = field(default_factory=lambda: dict.fromkeys(DECISIONS, 0))
    num_cache_asked: int = 0
    num_late_drafts: int = 0
    num_probes: int = 0
    num_probe_tokens: int = 0

    @property
    def num_verdicts(self) -> int:
        return sum(self.verdicts.values())

    @property
    def num_proposed(self) -> int:
        """Drafted steps, judged or too late for a verdict."""
        return self.num_verdicts + self.num_late_drafts


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure the writers were of their tokens: geometric means of the probabilities, at temperature 1.

    ``mean`` is over all tokens, ``lowest_group`` the least of any `GROUP_TOKENS` tokens in a row. As
    DeepConf's (arXiv 2508.15260), but of the chosen tokens: engines report no others.
    """

    mean: float
    lowest_group: float

    @classmethod
    def of_steps(cls, steps: Sequence[Step]) -> Confidence | None:
        """Return None where a step has no log-probabilities, as one of the suffix cache."""
        logprobs = [logprob for step in steps for logprob in step.logprobs or () if not math.isnan(logprob)]
        if not logprobs or any(step.tokens and step.logprobs is None for step in steps):
            return None
        sums = np.cumsum([0.0, *logprobs])
        length = min(GROUP_TOKENS, len(logprobs))
        lowest = float((sums[length:] - sums[:-length]).min()) / length
        return cls(math.exp(min(0.0, sums[-1] / len(logprobs))), math.exp(min(0.0, lowest)))


@dataclass(frozen=True, slots=True)
class VoteEnd:
    """The end of a problem's vote before all samples were drawn; see `reason_spec.evaluation.voting`.

    ``num_drawn`` samples were finished, and ``num_cancelled`` under way, with the work ``target`` and
    ``draft``. A continued run may have drawn more.
    """

    num_drawn: int
    num_cancelled: int = 0
    target: Usage = field(default_factory=Usage)
    draft: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished answer, graded if the problem has a reference answer.

    ``seconds`` is the wall time of the answer, or for ``concurrency`` answers at once that of their batch
    (of one strategy alone: of a group of answers that ended one after another) divided by its size, without
    engine start, grading and clean-up. ``first_step_seconds`` is the time at
    which the first step became final. ``index`` is the index of the problem in the run, from 0. ``order`` is
    the position of this strategy in the shuffled order for this problem. ``session`` names the start of the
    command. ``correct`` is None without a reference answer, or if grading could not decide.
    ``failed_tries`` holds the errors of earlier tries, in order. ``vote_end`` is set on the sample that
    decided the vote of its problem. ``thinking`` is the size of a limited thinking and what ended it; None
    without a limit. ``early_exit`` says where a rule ended it, None where none did.
    """

    id: str
    index: int
    question: str
    answer: str | None
    response: str
    prediction: str | None
    correct: bool | None
    strategy: str
    sample: int
    seed: int
    seconds: float
    first_step_seconds: float
    tokens: int
    steps: tuple[StepRecord, ...]
    usage: AnswerUsage
    plan: Plan | None
    finish: FinishReason
    loss_class: LossClass
    concurrency: int
    order: int
    session: str
    settings_hash: str
    task: str = "auto"
    level: str | None = None
    failed_tries: tuple[str, ...] = ()
    confidence: Confidence | None = None
    vote_end: VoteEnd | None = None
    early_exit: EarlyExit | None = None
    thinking: ThinkingOutcome | None = None

    @property
    def key(self) -> UnitKey:
        return UnitKey(self.id, self.sample, self.strategy)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for step in self.steps for token in step.token_ids)

    @property
    def alpha_step(self) -> float | None:
        """Share of judged drafts that were accepted; None if none was judged."""
        return share(self.usage.verdicts["accept"], self.usage.num_verdicts)

    @property
    def alpha_step_of_all(self) -> float | None:
        """Share of all drafts that were accepted, late ones included."""
        return share(self.usage.verdicts["accept"], self.usage.num_proposed)

    @property
    def alpha_step_by_origin(self) -> dict[str, float | None]:
        """`alpha_step` for steps of the draft and of the suffix cache."""
        cached, all_verdicts = self.usage.cache_verdicts, self.usage.verdicts
        drafted = {decision: all_verdicts[decision] - cached[decision] for decision in DECISIONS}
        counted = {"draft": drafted, "cache": cached}
        return {origin: share(counts["accept"], sum(counts.values())) for origin, counts in counted.items()}

    @property
    def alpha_token(self) -> float | None:
        """Share of draft tokens that the target accepted; None if there were none."""
        return self.usage.target.alpha_token

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def num_steps_by_origin(self) -> dict[Origin, int]:
        return dict(Counter(step.origin for step in self.steps))

    def graded(self, grade: Grade) -> Outcome:
        return replace(self, prediction=grade.prediction, correct=grade.correct)

    def to_json(self) -> str:
        """Return the outcome as one line of JSON, with the acceptance rates beside the counts."""
        record = asdict(self)
        record["alpha_step"] = self.alpha_step
        record["alpha_step_of_all"] = self.alpha_step_of_all
        record["alpha_step_by_origin"] = self.alpha_step_by_origin
        record["alpha_token"] = self.alpha_token
        return json.dumps(record, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Outcome:
        """Read a line that ``to_json`` wrote.

        Fields with a default may be missing.

        Raises:
            ValueError: the line is no JSON object, or lacks a field.
        """
        try:
            return _READER.validate_json(line)
        except ValidationError as error:
            raise ValueError(first_mistake(error)) from None


def share(part: int, whole: int) -> float | None:
    """Return ``part / whole``; None if ``whole`` is 0."""
    return part / whole if whole else None


def outcome_from(
    problem: Problem,
    sample: int,
    solution: Solution,
    settings: Settings,
    *,
    index: int = 0,
    seconds: float | None = None,
    concurrency: int = 1,
    order: int = 0,
    session: str = "",
) -> Outcome:
    """Return the ungraded outcome of a solution; ``seconds`` defaults to the solution's own."""
    recorder = solution.recorder
    seconds = solution.seconds if seconds is None else seconds
    counts = Counter(verdict.decision for verdict in recorder.verdicts)
    cached = Counter(verdict.decision for verdict in recorder.cache_verdicts)
    steps = tuple(StepRecord.from_step(step) for step in solution.steps)
    return Outcome(
        id=problem.id,
        index=index,
        question=problem.question,
        answer=problem.answer,
        response="".join(step.text for step in steps),
        prediction=None,
        correct=None,
        strategy=solution.strategy,
        sample=sample,
        seed=settings.sampling.seed,
        seconds=seconds,
        first_step_seconds=next((event.at for event in recorder.events if event.kind == "final"), seconds),
        tokens=sum(step.tokens for step in steps),
        steps=steps,
        usage=AnswerUsage(
            target=recorder.target_usage,
            draft=recorder.draft_usage,
            verdicts={decision: counts[decision] for decision in DECISIONS},
            verifier_seconds=recorder.verifier_seconds,
            highest_refused=_highest_refused(recorder),
            cache_verdicts={decision: cached[decision] for decision in DECISIONS},
            num_cache_asked=recorder.num_cache_asked,
            num_late_drafts=recorder.num_late_drafts,
            num_probes=recorder.num_probes,
            num_probe_tokens=recorder.num_probe_tokens,
        ),
        plan=recorder.plan,
        finish=steps[-1].finish if steps else "eos",
        loss_class=solution.loss_class,
        concurrency=concurrency,
        order=order,
        session=session,
        settings_hash=settings_for(settings, solution.strategy).hash,
        task=problem.task,
        level=problem.level,
        confidence=Confidence.of_steps(solution.steps),
        early_exit=recorder.early_exit,
        thinking=recorder.thinking,
    )


def _highest_refused(recorder: Recorder) -> float | None:
    # Verdicts that leave a step undecided are only among the events.
    verdicts = (event.verdict for event in recorder.events if event.verdict is not None)
    scores = (verdict.score for verdict in verdicts if not verdict.accepted and verdict.score is not None)
    return max(scores, default=None)


def settings_for(settings: Settings, strategy: str) -> Settings:
    """Return the settings with which one of several compared strategies runs."""
    return settings.model_copy(update={"strategy": settings.strategy.model_copy(update={"name": strategy})})


_READER = TypeAdapter(Outcome)
