"""A run as logs of Inspect: one for each strategy, with what `inspect view` and its analysis tools read."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import ValidationError

from reason_spec.errors import DataError, MissingDependencyError, SettingsError, first_mistake, unknown_name
from reason_spec.evaluation.outcome import Outcome, StepRecord
from reason_spec.evaluation.prompts import messages_for
from reason_spec.evaluation.records import writing
from reason_spec.evaluation.store import RESULTS, SETTINGS, read_outcomes
from reason_spec.settings import EngineSettings, Settings
from reason_spec.types import Problem, Usage

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample, EvalSpec
    from inspect_ai.model import ModelUsage, StopReason

FORMATS = (".eval", ".json")
SCORER = "reason-spec/grade"
_END_OF_THINKING = "</think>"
_STOP: Final[Mapping[str, StopReason]] = {"length": "max_tokens"}


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run's folder as it lies on the disk, read without locking it."""

    path: Path
    settings: Settings
    content: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]

    @classmethod
    def read(cls, path: Path) -> StoredRun:
        """Read a folder that a run has written; the run may go on.

        Raises:
            DataError: it is none, or a file in it is damaged.
            ResumeError: a line of its results is damaged.
        """
        try:
            content = yaml.safe_load((path / SETTINGS).read_text(encoding="utf-8"))
            settings = Settings.model_validate(content["settings"])
        except FileNotFoundError:
            raise DataError(f"{path} holds no run: there is no {SETTINGS} in it") from None
        except ValidationError as error:
            raise DataError(f"{path / SETTINGS}: {first_mistake(error)}") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
            raise DataError(f"{path / SETTINGS} was not written by a run ({error})") from None
        outcomes = tuple(read_outcomes(path / RESULTS))
        if not outcomes:
            raise DataError(f"{path} holds no answer yet")
        return cls(path, settings, content, outcomes)

    @property
    def strategies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(outcome.strategy for outcome in self.outcomes))


def export_run(
    run: StoredRun, place: Path, strategy: str | None = None, *, force: bool = False
) -> list[Path]:
    """Write a run as logs of Inspect; return the files.

    Args:
        place: a file that ends in ``.eval`` or ``.json``, for one strategy; else a folder for a file of each.
        strategy: leave out all others.
        force: replace files that are there.

    Raises:
        MissingDependencyError: Inspect is not installed.
        SettingsError: the run has no such strategy, or several and one file to put them in.
        DataError: a file is there already, or cannot be written.
    """
    try:
        from inspect_ai.log import write_eval_log
    except ModuleNotFoundError as error:
        raise MissingDependencyError("inspect-ai", "an export for Inspect", "inspect") from error
    if strategy is not None and strategy not in run.strategies:
        raise unknown_name("strategy in this run", strategy, run.strategies)
    names = run.strategies if strategy is None else (strategy,)
    is_file = place.suffix in FORMATS
    if is_file and len(names) > 1:
        raise SettingsError(
            f"{run.path} has {len(names)} strategies ({', '.join(names)}), and {place} is one file: name one "
            "with --strategy, or give a folder"
        )
    files = {name: place if is_file else place / f"{run.path.resolve().name}_{name}.eval" for name in names}
    for file in files.values():
        if file.exists() and not force:
            raise DataError(f"{file} is there already; --force replaces it")
    for name, file in files.items():
        with writing(file, remedy="Name another place with --inspect."):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_eval_log(log_of(run, name), str(file))
    return list(files.values())


def log_of(run: StoredRun, strategy: str) -> EvalLog:
    """Return one strategy's answers as a log: problems are samples, samples of a problem are epochs.

    The settings, digests of the weights and sessions are the log's metadata; where steps came from,
    acceptance rates and times are each sample's. Grades are one scorer's, with Inspect's own accuracy and its
    standard error. A run that lacks answers is ``cancelled``.
    """
    from inspect_ai.log import EvalLog, EvalPlan, EvalPlanStep, EvalStats, recompute_metrics
    from inspect_ai.model import ModelUsage

    outcomes = [outcome for outcome in run.outcomes if outcome.strategy == strategy]
    spec = _spec_of(run, strategy, outcomes)
    samples = [_sample(outcome, run.settings) for outcome in sorted(outcomes, key=_place)]
    usage: defaultdict[str, ModelUsage] = defaultdict(ModelUsage)
    for sample in samples:
        for model, used in sample.model_usage.items():
            usage[model] += used
    num_expected = spec.dataset.samples * spec.config.epochs
    log = EvalLog(
        status="success" if len(outcomes) == num_expected else "cancelled",
        eval=spec,
        plan=EvalPlan(name=strategy, steps=[EvalPlanStep(solver=f"reason-spec/{strategy}")]),
        stats=EvalStats(
            started_at=spec.created,
            completed_at=_time((run.path / RESULTS).stat().st_mtime),
            model_usage=dict(usage),
        ),
        samples=samples,
    )
    recompute_metrics(log)
    return log


def _spec_of(run: StoredRun, strategy: str, outcomes: Sequence[Outcome]) -> EvalSpec:
    """Return what was evaluated, on what, and how."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalSpec
    from inspect_ai.log._log import EvalMetricDefinition, EvalScorer

    num_samples = 1 + max(outcome.sample for outcome in outcomes)
    tasks = {outcome.task for outcome in outcomes}
    identity = f"{run.content.get('settings_hash')} {run.content['problems']['sha256']} {strategy}"
    sessions = [session for session in run.content["sessions"] if strategy in session["strategies"]]
    metrics: list[Any] = [EvalMetricDefinition(name=f"inspect_ai/{name}") for name in ("accuracy", "stderr")]
    return EvalSpec(
        eval_id=_digest("eval", identity),
        run_id=_digest("run", str(run.content.get("settings_hash"))),
        task_id=_digest("task", identity),
        created=_first_start(sessions),
        task=tasks.pop() if len(tasks) == 1 and tasks != {"auto"} else run.path.resolve().name,
        dataset=EvalDataset(
            name=run.path.resolve().name,
            samples=run.content["problems"]["num_problems"],
            sample_ids=list(dict.fromkeys(outcome.id for outcome in outcomes)),
            shuffled=False,
        ),
        model=_model_name(run.settings.target),
        model_args={"strategy": strategy},
        model_generate_config=_generate_config(run.settings),
        config=EvalConfig(epochs=num_samples, epochs_reducer=["mean"]),
        packages=_packages(sessions),
        tags=["reason-spec", strategy],
        metadata={
            "strategy": strategy,
            "settings": run.content["settings"],
            "settings_hash": outcomes[0].settings_hash,
            "weights": run.content.get("weights"),
            "concurrency": run.content["concurrency"],
            "sessions": sessions,
        },
        scorers=[EvalScorer(name=SCORER, metrics=metrics)],
    )


def _sample(outcome: Outcome, settings: Settings) -> EvalSample:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelOutput
    from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, Score

    model = _model_name(settings.target)
    problem = Problem(outcome.id, outcome.question, outcome.answer, outcome.task, outcome.level)
    asked = list(_asked(problem, settings, outcome))
    message = ChatMessageAssistant(
        id=_digest("answer", *map(str, outcome.key)),
        content=_content(outcome.response),
        source="generate",
        model=model,
    )
    scores = None
    if outcome.answer is not None:
        grade = NOANSWER if outcome.correct is None else CORRECT if outcome.correct else INCORRECT
        scores = {SCORER: Score(value=grade, answer=outcome.prediction)}
    target, draft = _usage(outcome.usage.target), _usage(outcome.usage.draft)
    usage = {model: target}
    if draft.total_tokens:
        usage[f"{_model_name(settings.draft)} (draft)"] = draft
    return EvalSample(
        id=outcome.id,
        epoch=outcome.sample + 1,
        input=outcome.question,
        target=outcome.answer or "",
        messages=[*asked, message],
        output=ModelOutput(
            model=model,
            choices=[ChatCompletionChoice(message=message, stop_reason=_STOP.get(outcome.finish, "stop"))],
            usage=target,
            time=outcome.seconds,
        ),
        scores=scores,
        metadata=_metadata(outcome),
        model_usage=usage,
        total_time=outcome.seconds,
        working_time=outcome.seconds,
        uuid=_digest("sample", outcome.settings_hash, *map(str, outcome.key)),
    )


def _asked(problem: Problem, settings: Settings, outcome: Outcome) -> Iterator[Any]:
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser

    for number, message in enumerate(messages_for(problem, settings)):
        kind = ChatMessageSystem if message["role"] == "system" else ChatMessageUser
        yield kind(id=_digest("asked", str(number), *map(str, outcome.key)), content=str(message["content"]))


def _content(text: str) -> Any:
    from inspect_ai.model import ContentReasoning, ContentText

    thinking, end, answer = text.rpartition(_END_OF_THINKING)
    if not end:
        return text
    reasoning = thinking.strip().removeprefix("<think>").strip()
    return [ContentReasoning(reasoning=reasoning), ContentText(text=answer.strip())]


def _metadata(outcome: Outcome) -> dict[str, Any]:
    """Return what speculation did for an answer, and how long it took."""
    return {
        "strategy": outcome.strategy,
        "loss_class": outcome.loss_class,
        "seconds": outcome.seconds,
        "first_step_seconds": outcome.first_step_seconds,
        "tokens": outcome.tokens,
        "tokens_per_second": outcome.tokens_per_second,
        "alpha_step": outcome.alpha_step,
        "alpha_step_of_all": outcome.alpha_step_of_all,
        "alpha_token": outcome.alpha_token,
        "steps_by_origin": outcome.num_steps_by_origin,
        "verdicts": dict(outcome.usage.verdicts),
        "steps": [_step(step) for step in outcome.steps],
        "plan": None if outcome.plan is None else asdict(outcome.plan),
        "finish": outcome.finish,
        "level": outcome.level,
        "task": outcome.task,
        "seed": outcome.seed,
        "order": outcome.order,
        "concurrency": outcome.concurrency,
        "session": outcome.session,
        "failed_tries": list(outcome.failed_tries),
    }


def _step(step: StepRecord) -> dict[str, Any]:
    verdict = step.verdict
    return {
        "origin": step.origin,
        "tokens": step.tokens,
        "decision": None if verdict is None else verdict.decision,
        "score": None if verdict is None else verdict.score,
        "text": step.text,
    }


def _usage(usage: Usage) -> ModelUsage:
    from inspect_ai.model import ModelUsage

    return ModelUsage(
        input_tokens=usage.num_prompt_tokens - usage.num_cached_prompt_tokens,
        input_tokens_cache_read=usage.num_cached_prompt_tokens,
        output_tokens=usage.num_generated_tokens,
        total_tokens=usage.num_prompt_tokens + usage.num_generated_tokens,
    )


def _generate_config(settings: Settings) -> Any:
    from inspect_ai.model import GenerateConfig

    sampling = settings.sampling
    return GenerateConfig(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or None,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        stop_seqs=list(sampling.stop) or None,
    )


def _model_name(engine: EngineSettings) -> str:
    return f"reason-spec/{engine.model}"


def _packages(sessions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return dict(sessions[-1]["versions"]) if sessions else {}


def _first_start(sessions: Sequence[Mapping[str, Any]]) -> str:
    return str(sessions[0]["started"]) if sessions else _time(0.0)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _place(outcome: Outcome) -> tuple[int, int]:
    return outcome.index, outcome.sample


def _digest(*parts: str) -> str:
    """Return an id that is the same for each export of the same thing."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:22]
