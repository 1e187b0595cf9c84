"""Measures a draft for a target: what is accepted, what it costs, what that promises, and what it brings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.engine_drafter import only_drafts_tokens
from reason_spec.control.costs import Costs
from reason_spec.control.measuring import measure_costs, measure_pass_cost
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.errors import DataError, ReasonSpecError, SettingsError
from reason_spec.evaluation.grouping import BASELINE, by_strategy
from reason_spec.evaluation.job import LocalBackend, RunOptions, run_job, start_engines
from reason_spec.evaluation.loops import until_loop
from reason_spec.evaluation.outcome import Outcome, StepRecord
from reason_spec.evaluation.prompts import messages_for
from reason_spec.evaluation.records import writing
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.store import RESULTS, read_outcomes
from reason_spec.evaluation.timeline import read_timelines
from reason_spec.evaluation.view import RunView
from reason_spec.lab.drafts.head_acceptance import HeadPair
from reason_spec.lab.drafts.speedups import (
    OF_HEADS,
    SPECULATING,
    Speedup,
    StepLevel,
    expected_and_measured,
    step_level_of,
    workload_of,
)
from reason_spec.lab.drafts.step_acceptance import (
    StepAcceptance,
    StepPair,
    draft_steps,
    judge_steps,
    step_acceptance,
)
from reason_spec.lab.drafts.texts import TrainingText, target_tokenizer, texts_of
from reason_spec.lab.drafts.token_acceptance import ModelPair, TokenAcceptance
from reason_spec.settings import Settings
from reason_spec.types import Problem, Verdict
from reason_spec.verifiers.base import Verifier, measure_verdict, verifier_names

SAMPLED_TEMPERATURE: Final = 0.6
NUM_DRAFTS: Final = 8
"""Drafted tokens in a row whose acceptance is measured."""
VERDICT_SECONDS: Final = 60.0
"""Deadline of a verdict here: all steps of a problem are judged at once."""
_SAMPLED_FOLDER = "sampled"
STEPS: Final = "steps.jsonl"
"""Drafted steps with the verdicts on them, in the folder of the answers."""


class EvaluationView(RunView, Protocol):
    """A view with a bar for parts that answer no problems."""

    def counting(
        self, text: str, total: int | None, unit: str = ""
    ) -> AbstractContextManager[Callable[[], None]]: ...


@dataclass(frozen=True, slots=True)
class DraftReport:
    """The measurements of a draft.

    Attributes:
        looping: share of the target's tokens after the beginning of a loop, at each temperature. They are
            left out of all that follows.
        alpha_token: at temperature 0, and at 0.6.
        alpha_step: by verifier, at temperature 0; empty for a head.
        left_out: verifiers that cannot be used here, with the reason.
        c: time of a draft token over that of a target token, each model alone.
        step_level: None for a head.
    """

    target: str
    draft: str
    num_problems: int
    looping: Mapping[str, float]
    alpha_token: tuple[TokenAcceptance, ...]
    alpha_step: tuple[StepAcceptance, ...]
    left_out: Mapping[str, str]
    c: float
    draft_token_ms: float
    target_token_ms: float
    speedups: tuple[Speedup, ...]
    step_level: StepLevel | None
    folder: str


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of a run by strategy, as they were written, and without their loops."""

    temperature: float
    folder: Path
    written: Mapping[str, Sequence[Outcome]]
    kept: Mapping[str, Sequence[Outcome]]

    @classmethod
    def of(cls, folder: Path, temperature: float) -> _Answers:
        """Read the answers of a run folder.

        Raises:
            DataError: the target wrote no token, or a file is damaged.
        """
        written = by_strategy(read_outcomes(folder / RESULTS))
        if not any(outcome.tokens for outcome in written.get(BASELINE, ())):
            raise DataError(f"{folder}: the target wrote no token; give problems that it answers")
        timelines = {timeline.key: timeline for timeline in read_timelines(folder)}
        kept = {
            name: [until_loop(outcome, timelines.get(outcome.key)) for outcome in outcomes]
            for name, outcomes in written.items()
        }
        return cls(temperature, folder, written, kept)

    @property
    def looping(self) -> float:
        """Share of the target's tokens that lie after the beginning of a loop."""
        all_tokens, left = (
            sum(outcome.tokens for outcome in part[BASELINE]) for part in (self.written, self.kept)
        )
        return 1.0 - left / all_tokens

    def texts(self, settings: Settings, problems: Sequence[Problem]) -> list[TrainingText]:
        """Return the target's own words with their prompts, in its tokens."""
        return texts_of(settings, problems, self.kept[BASELINE])

    def whole_steps(self) -> dict[str, list[StepRecord]]:
        """Return the target's steps before a loop, by problem."""
        pairs = zip(self.written[BASELINE], self.kept[BASELINE], strict=True)
        return {
            whole.id: [
                own for own, cut in zip(whole.steps, kept.steps, strict=False) if cut.tokens == own.tokens > 0
            ]
            for whole, kept in pairs
        }


class _Measured(NamedTuple):
    """What was measured while the engines were running."""

    accepted: tuple[StepAcceptance, ...]
    left_out: dict[str, str]
    costs: Costs


async def evaluate_draft(
    settings: Settings, sources: Sources, output: Path | None, view: EvaluationView, *, fresh: bool = False
) -> DraftReport:
    """Measure a draft on problems; a stopped evaluation continues with the answers in its folder.

    Args:
        settings: models, limits, and the verifier of ``lookahead``. Sampling is not truncated.
        output: folder of the answers; None names one after the problems.
        fresh: replace earlier answers.

    Raises:
        DataError: there is no answer to measure on, or the folder cannot be written.
        EngineError: a model fails.
        ResumeError: the folder belongs to another run.
        SettingsError: the models have different tokenizers.
    """
    is_head = only_drafts_tokens(settings)
    strategies = OF_HEADS if is_head else SPECULATING
    if not is_head:
        check_tokenizers(settings)
    greedy, sampled = (_at(settings, temperature) for temperature in (0.0, SAMPLED_TEMPERATURE))
    accelerator = Accelerator.from_settings(greedy, strategies=(BASELINE, *strategies))
    try:
        options = RunOptions(
            (BASELINE, *strategies), output=output, fresh=fresh, num_retries=2, timelines=True
        )
        answers, samples = await _answer(accelerator, greedy, sampled, sources, options, view)
        if not accelerator.bundle.is_started:
            await start_engines(accelerator, greedy, view)
        if is_head:
            measured = await _measure_head(accelerator, sources.problems[0])
        else:
            steps, file = answers.whole_steps(), answers.folder / STEPS
            measured = await _measure(accelerator, sources.problems, steps, file, view)
    finally:
        await accelerator.close()
    # The engines have freed their memory.
    alpha_token = _compare_tokens(settings, sources.problems, (answers, samples), view)
    verifier = next(iter(measured.accepted), None)
    workload = workload_of(answers.kept, alpha_token[0], verifier, measured.costs)
    return DraftReport(
        target=settings.target.model,
        draft=settings.draft.model,
        num_problems=len(answers.kept[BASELINE]),
        looping={f"{each.temperature:g}": each.looping for each in (answers, samples)},
        alpha_token=alpha_token,
        alpha_step=measured.accepted,
        left_out=measured.left_out,
        c=measured.costs.c,
        draft_token_ms=1000 * measured.costs.draft_token,
        target_token_ms=1000 * measured.costs.target.seconds(1),
        speedups=expected_and_measured(settings, answers.kept, workload),
        step_level=None if verifier is None else step_level_of(settings, answers.kept, verifier, workload),
        folder=str(answers.folder),
    )


def _at(settings: Settings, temperature: float) -> Settings:
    """Return the settings at a temperature, without truncation: rates are those of whole distributions."""
    changes = {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    return settings.model_copy(update={"sampling": settings.sampling.model_copy(update=changes)})


async def _answer(
    accelerator: Accelerator,
    greedy: Settings,
    sampled: Settings,
    sources: Sources,
    options: RunOptions,
    view: EvaluationView,
) -> tuple[_Answers, _Answers]:
    """Write the answers that the folder lacks: of all strategies in turn, and samples of the target."""
    backend = LocalBackend(accelerator)
    folder = (await run_job(greedy, sources, options, view, backend)).path
    options = replace(options, strategies=(BASELINE,), output=folder / _SAMPLED_FOLDER)
    # What was left out of the sources has been said.
    await run_job(sampled, replace(sources, bad_lines=(), notices=()), options, view, backend)
    return _Answers.of(folder, 0.0), _Answers.of(folder / _SAMPLED_FOLDER, SAMPLED_TEMPERATURE)


async def _measure(
    accelerator: Accelerator,
    problems: Sequence[Problem],
    steps: Mapping[str, Sequence[StepRecord]],
    file: Path,
    view: EvaluationView,
) -> _Measured:
    """Measure the costs of both models, and what each verifier accepts; lookahead's comes first.

    Args:
        file: gets the steps with all verdicts.
    """
    assert accelerator.draft is not None, "a draft is evaluated"
    generator = accelerator.generator
    await generator.prepare("lookahead")
    pairs: list[Sequence[StepPair]] = []
    with view.counting("Drafting steps", len(problems), "problems") as advance:
        for problem in problems:
            pairs.append(await draft_steps(generator, problem, steps.get(problem.id, ())))
            advance()
    if not any(pairs):
        raise DataError("the target wrote no whole step before a loop; give other problems")
    own = accelerator.verifier_for("lookahead")
    assert own is not None, "lookahead has a verifier"
    accepted: list[StepAcceptance] = []
    verdicts: dict[str, list[list[Verdict]]] = {}
    left_out: dict[str, str] = {}
    names = tuple(dict.fromkeys((own.name, *verifier_names())))
    with view.counting("Judging steps", len(names) * len(problems), "verdicts") as advance:
        for name in names:
            try:
                verifier = _patient_verifier(accelerator, name)
                await verifier.start()
            except ReasonSpecError as error:
                left_out[name] = str(error)
                continue
            verdicts[name] = await judge_steps(verifier, pairs, advance)
            accepted.append(step_acceptance(verifier, verdicts[name]))
    _write_steps(file, problems, pairs, verdicts)
    await generator.prepare("lookahead")
    verdict = await measure_verdict(own)
    costs = await measure_costs(accelerator.target, accelerator.draft, verdict=verdict)
    return _Measured(tuple(accepted), left_out, costs)


def _write_steps(
    file: Path,
    problems: Sequence[Problem],
    pairs: Sequence[Sequence[StepPair]],
    verdicts: Mapping[str, Sequence[Sequence[Verdict]]],
) -> None:
    """Write the drafted steps beside the target's own, with the verdicts on them, to be read.

    Raises:
        DataError: the file cannot be written.
    """
    lines = (
        json.dumps({
            "id": problem.id,
            "drafted": pair.drafted.text,
            "own": pair.own.text,
            "verdicts": {
                name: {key: getattr(found[row][place], key) for key in ("decision", "score", "reason")}
                for name, found in verdicts.items()
            },
        })
        for row, (problem, of_problem) in enumerate(zip(problems, pairs, strict=True))
        for place, pair in enumerate(of_problem)
    )  # fmt: skip
    with writing(file):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


async def _measure_head(accelerator: Accelerator, problem: Problem) -> _Measured:
    """Measure the costs of the target and of its head, of which the engine knows what it drafted so far.

    Raises:
        DataError: the head drafted too little to be timed.
    """
    generator = accelerator.generator
    (strategy,) = OF_HEADS
    await generator.prepare(strategy)
    await generator.answer(generator.request(messages_for(problem, generator.settings), strategy=strategy))
    seconds = (await accelerator.target.stats()).draft_token_seconds
    if not seconds:
        raise DataError("the head never drafted two tokens in a row, so it cannot be timed; train it longer")
    return _Measured((), {}, Costs(await measure_pass_cost(accelerator.target), seconds, None))


def _patient_verifier(accelerator: Accelerator, name: str) -> Verifier:
    """Return a verifier with a long deadline: all steps of a problem are judged at once.

    Raises:
        SettingsError, MissingDependencyError: it cannot be used with this target.
    """
    settings = accelerator.settings.verifier
    patient = settings.model_copy(update={"deadline": max(VERDICT_SECONDS, settings.deadline)})
    return accelerator.bundle.verifier(name, patient)


def _compare_tokens(
    settings: Settings, problems: Sequence[Problem], runs: Sequence[_Answers], view: EvaluationView
) -> tuple[TokenAcceptance, ...]:
    texts = [run.texts(settings, problems) for run in runs]
    with view.status("Loading both models"):
        pair = HeadPair(settings) if only_drafts_tokens(settings) else ModelPair(settings)
    with view.counting("Comparing tokens", sum(map(len, texts)), "answers") as advance:
        return tuple(
            pair.acceptance(of_run, run.temperature, NUM_DRAFTS, advance)
            for run, of_run in zip(runs, texts, strict=True)
        )


def check_tokenizers(settings: Settings) -> None:
    """Refuse models of different tokenizers: their tokens cannot be compared.

    Raises:
        SettingsError: they differ.
        EngineError: a tokenizer cannot be read.
    """
    draft = load_tokenizer(resolve_model("draft", settings.draft.model), settings.draft.revision)
    if draft.tokenizer_id != target_tokenizer(settings).tokenizer_id:
        raise SettingsError(
            f"draft {settings.draft.model!r} has another tokenizer than target {settings.target.model!r}: "
            "their tokens cannot be compared. 'reason-spec eval --compare autoregressive,lookahead' measures "
            "such a pair"
        )
