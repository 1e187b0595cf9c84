"""Export a run as logs of Inspect, one for each strategy, for `inspect view` and its analysis tools."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from reason_spec.errors import DataError, MissingDependencyError, SettingsError, first_mistake, unknown_name
from reason_spec.evaluation.outcome import Outcome, StepRecord
from reason_spec.evaluation.prompts import messages_for
from reason_spec.evaluation.records import writing
from reason_spec.evaluation.store import RESULTS, SETTINGS
from reason_spec.lab.run_folder import read_results, read_settings
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
    """The content of a run's folder."""

    path: Path
    settings: Settings
    content: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]

    @classmethod
    def read(cls, path: Path) -> StoredRun:
        """Read the folder of a run, which may still go on.

        Raises:
            DataError: it is no run, or a file in it is damaged.
        """
        content = read_settings(path)
        if not content:
            raise DataError(f"{path} holds no run: there is no {SETTINGS} in it")
        try:
            settings = Settings.model_validate(content["settings"])
        except ValidationError as error:
            raise DataError(f"{path / SETTINGS}: {first_mistake(error)}") from None
        except (KeyError, TypeError) as error:
            raise DataError(f"{path / SETTINGS} was not written by a run ({error})") from None
        return cls(path, settings, content, read_results(path)[0])

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

    The log's metadata has the settings, digests of the weights and sessions; each sample's has the origins of
    its steps, acceptance rates and times. One scorer holds the grades, with Inspect's accuracy and standard
    error. A run that lacks answers is ``cancelled``.
    """
    from inspect_ai.log import EvalLog, EvalPlan, EvalPlanStep, EvalStats, recompute_metrics
    from inspect_ai.model import ModelUsage

    outcomes = [outcome for outcome in run.outcomes if outcome.strategy == strategy]
    spec = _spec_of(run, strategy, outcomes)
    samples = [
        _sample(outcome, run.settings) for outcome in sorted(outcomes, key=lambda o: (o.index, o.sample))
    ]
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
    """Return the head of a log: data set, model and settings."""
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
        created=str(sessions[0]["started"]) if sessions else _time(0.0),
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
        packages=dict(sessions[-1]["versions"]) if sessions else {},
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
    asked = list(_asked(outcome, settings))
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


def _asked(outcome: Outcome, settings: Settings) -> Iterator[Any]:
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser

    problem = Problem(outcome.id, outcome.question, outcome.answer, outcome.task, outcome.level)
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


_COPIED = (
    "strategy loss_class seconds first_step_seconds tokens tokens_per_second alpha_step alpha_step_of_all "
    "alpha_token finish level task seed order concurrency session"
).split()


def _metadata(outcome: Outcome) -> dict[str, Any]:
    """Return the measurements of an answer."""
    return {name: getattr(outcome, name) for name in _COPIED} | {
        "steps_by_origin": outcome.num_steps_by_origin,
        "verdicts": dict(outcome.usage.verdicts),
        "steps": [_step(step) for step in outcome.steps],
        "plan": None if outcome.plan is None else asdict(outcome.plan),
        "failed_tries": list(outcome.failed_tries),
    }


def _step(step: StepRecord) -> dict[str, Any]:
    decision, score = (None, None) if step.verdict is None else (step.verdict.decision, step.verdict.score)
    record = {"origin": step.origin, "tokens": step.tokens, "text": step.text}
    return record | {"decision": decision, "score": score}


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


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _digest(*parts: str) -> str:
    """Return an id that is the same for each export of the same thing."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:22]
