"""Finds the laxest threshold of a verifier at which a stated loss of answers is not exceeded.

Thresholds are tried from strict to lax, each by solving the problems with it (`calibration` has the test).
The test covers the whole system, from the question to the graded answer. The steps that a draft writes depend
on the accepted ones before, so scores at one threshold do not determine the loss at another. They do show
which answers cannot change: if no rejected step reaches the new threshold, all verdicts are the same. Only
the other problems are solved again. Only a wrong answer can be lost, so the target alone solves only those.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from reason_spec.accelerator import Accelerator
from reason_spec.errors import SettingsError
from reason_spec.evaluation.batch import Failure
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.evaluation.job import Job, LocalBackend, RunOptions, solve_missing
from reason_spec.evaluation.outcome import Outcome, UnitKey, share
from reason_spec.evaluation.sources import Sources, generate_problems, read_sources
from reason_spec.evaluation.store import Identity, RunFolder
from reason_spec.evaluation.view import RunView
from reason_spec.lab.pictures import require_matplotlib
from reason_spec.lab.tuning import calibration_report as report
from reason_spec.lab.tuning.calibration import LossTest, ThresholdTrials, Trial, laxest_safe
from reason_spec.settings import Settings
from reason_spec.strategies.factory import strategy_class, strategy_names
from reason_spec.strategies.specreason import Atts, SpecReason
from reason_spec.types import Problem
from reason_spec.verifiers.base import AUTO, Verifier
from reason_spec.verifiers.cascade import CascadeVerifier

THRESHOLDS = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5)
VERDICT_SECONDS = 60.0
"""Deadline of a verdict during calibration. A late verdict would leave the step to the target, so that a busy
machine would make the threshold look safer than it is."""
GENERATED_PER_NEEDED = 4
"""Generated problems per problem needed if no answer is lost. A loss of 1 point at 95 % confidence takes
1196, of which 6 may be lost."""
_GENERATED_SEED = 700_000
_TARGET_FOLDER = "target"


@dataclass(frozen=True, slots=True)
class VerifierTuneOptions:
    """Options of a search; ``whole_curve`` continues after the first threshold that does not pass."""

    test: LossTest
    run: RunOptions
    thresholds: tuple[float, ...] = THRESHOLDS
    whole_curve: bool = False
    plot: bool = True

    def __post_init__(self) -> None:
        if not self.thresholds or any(not 0 <= threshold <= 1 for threshold in self.thresholds):
            raise SettingsError(f"thresholds {self.thresholds}: name one or more between 0 and 1")


class VerifierTuning(NamedTuple):
    """The trials of a search, and the folder that holds their answers and files."""

    trials: ThresholdTrials
    folder: Path


async def tune_verifier(
    settings: Settings, sources: Sources, options: VerifierTuneOptions, view: RunView
) -> VerifierTuning:
    """Choose a threshold, and write its settings, the numbers and the curves into the output folder.

    Where no threshold is safe, no settings are written.

    Args:
        settings: the verifier of their strategy judges drafted steps only; its threshold is overridden.

    Raises:
        DataError: there are too few problems with known answers.
        MissingDependencyError: the curves are to be drawn, and matplotlib is missing.
        SettingsError: the strategy or the verifier has no threshold to choose.
    """
    problems = tuple(problem for problem in sources.problems if problem.answer is not None)
    options.test.refuse_too_few(len(problems))
    if options.plot:
        require_matplotlib("the picture of the curves (--no-plot leaves it out)")
    if sources.num_without_answer:
        view.warn(f"left out: {sources.num_without_answer} problems without a reference answer")
    bench = _Bench(settings, problems, options.run, view, sources.name)
    report.drop_earlier(bench.path)
    try:
        found = await _find(bench, options)
    except asyncio.CancelledError:
        view.say(f"The answers so far are kept in {bench.path}; the same command continues the search.")
        raise
    finally:
        await bench.close()
    usable = None
    if found.chosen is not None:
        usable = bench.settings_at(found.chosen.threshold).model_copy(update={"strategy": settings.strategy})
    report.write(found, usable, bench.path, plot=options.plot)
    return VerifierTuning(found, bench.path)


async def _find(bench: _Bench, options: VerifierTuneOptions) -> ThresholdTrials:
    trials: list[Trial] = []
    answers: dict[str, Outcome] = {}
    for threshold in sorted(set(options.thresholds), reverse=True):
        same = bench.unchanged(answers, threshold)
        answers = same | await bench.solve_at(threshold, bench.ids - same.keys())
        wrong = {name for name in bench.ids if name not in answers or answers[name].correct is not True}
        alone = await bench.solve_alone(wrong)
        lost = [name for name in wrong if name not in alone or alone[name].correct is not False]
        trials.append(_trial(threshold, bench, answers, num_lost=len(lost), num_same=len(same)))
        if not options.test.passes(trials[-1]) and not options.whole_curve:
            break
    chosen = laxest_safe(trials, options.test)
    return ThresholdTrials(bench.judging.name, bench.strategy, options.test, tuple(trials), chosen)


def _trial(
    threshold: float, bench: _Bench, answers: Mapping[str, Outcome], *, num_lost: int, num_same: int
) -> Trial:
    origins = sum((Counter(answer.num_steps_by_origin) for answer in answers.values()), Counter[str]())
    verdicts = sum((Counter(answer.usage.verdicts) for answer in answers.values()), Counter[str]())
    return Trial(
        threshold,
        num_problems=len(bench.ids),
        num_lost=num_lost,
        num_right=sum(answer.correct is True for answer in answers.values()),
        num_solved=len(bench.ids) - num_same,
        drafted_steps=share(origins["draft"], origins.total()),
        accepted=share(verdicts["accept"], verdicts.total()),
    )


class _Bench:
    """Solves the problems at one threshold after another; answers that are on the disk are not solved again.

    Each threshold has a run folder of its own in the output folder, the target alone another. Engines start
    when the first answer is missing, and verifiers load their models once for all thresholds.
    """

    def __init__(
        self, settings: Settings, problems: Sequence[Problem], options: RunOptions, view: RunView, name: str
    ) -> None:
        # An answer that a planner leaves to the target shows nothing of a threshold.
        unplanned = settings.strategy.model_copy(update={"planner": False})
        settings = settings.model_copy(update={"strategy": unplanned})
        self.strategy = settings.strategy.name
        self.ids = {problem.id for problem in problems}
        self._problems = problems
        self._options = options
        self._view = view
        self._accelerator = Accelerator.from_settings(settings, strategies=(self.strategy, BASELINE))
        verifier = self._accelerator.verifier_for(self.strategy)
        assert verifier is not None, f"strategy {self.strategy} judges steps and has no verifier"
        self.judging = judging_part(verifier)
        for part in (verifier, *_parts(verifier)):
            part.deadline_seconds = max(VERDICT_SECONDS, part.deadline_seconds)
        self._settings = _with_verifier(settings, name=verifier.name, threshold=None)
        self._verifier = verifier
        self._identity = Identity.of(self.settings_at(None), problems, options.concurrency)
        self.path = options.output or Path("runs") / f"{name}-calibration-{self._identity.hash}"
        self._replaced: set[Path] = set()
        # A server's samples are its own: drawn again, an answer may differ without any verdict that does.
        remote = "remote" in (settings.target.kind, settings.draft.kind)
        self._repeats = settings.sampling.temperature == 0 or not remote

    async def close(self) -> None:
        await self._accelerator.close()

    def unchanged(self, answers: Mapping[str, Outcome], threshold: float) -> dict[str, Outcome]:
        """Return the answers of a stricter threshold whose verdicts are all the same at this one."""
        if not self._repeats:
            return {}
        refused = {name: answer.usage.highest_refused for name, answer in answers.items()}
        return {name: answers[name] for name, score in refused.items() if score is None or score < threshold}

    async def solve_at(self, threshold: float, names: Collection[str]) -> dict[str, Outcome]:
        """Return the answers at a threshold; those that could not be written are missing."""
        self._view.say(f"Threshold {threshold:g}: {len(names)} of {len(self.ids)} problems to solve")
        folder = self.path / f"threshold-{threshold:g}"
        return await self._solve(self.strategy, threshold, folder, names)

    async def solve_alone(self, names: Collection[str]) -> dict[str, Outcome]:
        """Return the target's own answers."""
        return await self._solve(BASELINE, None, self.path / _TARGET_FOLDER, names)

    def settings_at(self, threshold: float | None) -> Settings:
        """Return the settings with a threshold; None: without one."""
        thresholds = {**self._settings.verifier.thresholds, self.judging.name: threshold}
        given = {name: value for name, value in thresholds.items() if value is not None}
        return _with_verifier(self._settings, thresholds=given)

    async def _solve(
        self, strategy: str, threshold: float | None, path: Path, names: Collection[str]
    ) -> dict[str, Outcome]:
        if not names:
            return {}
        identity = replace(self._identity, settings=self.settings_at(threshold))
        fresh = self._options.fresh and path not in self._replaced
        wanted = {UnitKey(name, 0, strategy) for name in names}
        with RunFolder(path, identity, self._problems, fresh=fresh) as folder:
            if wanted - folder.outcomes.keys():
                options = replace(self._options, strategies=(strategy,))
                settings = self.settings_at(threshold)
                job = Job(settings, self._problems, options, folder, self._view, frozenset(wanted))
                thresholds = {} if threshold is None else {self.judging.name: threshold}
                backend = LocalBackend(self._accelerator, self._verifier.with_thresholds(thresholds))
                failures: list[Failure] = []
                self._replaced.add(path)
                await solve_missing(job, backend, failures)
                for failure in failures:
                    self._view.warn(f"problem {failure.key.problem_id!r}: not answered: {failure.error}")
            return {key.problem_id: folder.outcomes[key] for key in wanted & folder.outcomes.keys()}


def judging_part(verifier: Verifier) -> Verifier:
    """Return the part of a verifier that judges drafted steps alone.

    Raises:
        SettingsError: there are several, or it has no threshold.
    """
    judging = [part for part in _parts(verifier) if part.judges_draft_only]
    if len(judging) != 1:
        names = ", ".join(part.name for part in judging)
        raise SettingsError(
            f"verifier {verifier.name}: {names} judge a step alone, and one threshold is chosen at a time; "
            "name one of them, with one that compares behind it where the strategy wants that"
        )
    part = judging[0]
    if part.threshold is None:
        raise SettingsError(f"verifier {part.name} has no threshold to choose")
    if part.learns:
        raise SettingsError(
            f"verifier {part.name} ranks a step among earlier ones, so its verdicts cannot be replayed at "
            "other thresholds: compare runs with `eval --set verifier.threshold=...`"
        )
    return part


def _parts(verifier: Verifier) -> Sequence[Verifier]:
    return verifier.stages if isinstance(verifier, CascadeVerifier) else (verifier,)


def with_judging_strategy(settings: Settings, named: str | None) -> Settings:
    """Return the settings with a strategy that has drafted steps judged alone.

    Args:
        named: the strategy that was asked for; None: that of the settings if it is one, else ``hybrid``, or
            ``specreason`` where the verifier cannot compare.

    Raises:
        SettingsError: the strategy that was asked for is none.
    """
    name = settings.strategy.name
    if issubclass(strategy_class(name), SpecReason):
        return settings
    if named is not None:
        judging = {other: strategy_class(other) for other in strategy_names()}
        # The verifier of `atts` learns, so its verdicts cannot be replayed.
        known = [other for other, one in judging.items() if issubclass(one, SpecReason) and one is not Atts]
        raise SettingsError(
            f"strategy {name} has no verifier that judges drafted steps alone; these do: {', '.join(known)}"
        )
    verifier = settings.verifier.name
    fitting = "hybrid" if verifier == AUTO or "+" in verifier else "specreason"
    return settings.model_copy(update={"strategy": settings.strategy.model_copy(update={"name": fitting})})


def read_problems(
    settings: Settings,
    test: LossTest,
    arguments: Sequence[str],
    task: str,
    *,
    sample: Path | None,
    limit: int | None,
    skip_bad: bool,
) -> Sources:
    """Read files of problems; where there are none, the embedded target is given generated ones.

    Raises:
        DataError: as `read_sources` does.
    """
    if arguments or sample or settings.target.model != "embedded":
        # A bound on the loss counts problems as independent.
        return read_sources(arguments, task, sample=sample, limit=limit, skip_bad=skip_bad, once=True)
    return generated_problems(test, limit, settings.sampling.seed)


def generated_problems(test: LossTest, limit: int | None, seed: int) -> Sources:
    """Return fresh problems for the demonstration pair, of a split apart from its training's and its test's.

    Args:
        limit: how many; None: `GENERATED_PER_NEEDED` for each that it takes at the least.
        seed: other seeds draw other problems.
    """
    count = GENERATED_PER_NEEDED * test.least_problems if limit is None else limit
    return generate_problems("validation", count, _GENERATED_SEED + seed)


def _with_verifier(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"verifier": settings.verifier.model_copy(update=changes)})
