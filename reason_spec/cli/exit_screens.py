"""`reason-spec exit` and `tune exit` on the screen: replay, training, thresholds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from reason_spec.cli.screen import Screen, plain_table
from reason_spec.cli.tune_screens import EXIT_NONE_SAFE
from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.amounts import percent, points_text
from reason_spec.evaluation.records import write_text, writing
from reason_spec.exit.policy import ExitPolicy, load_policy, question_key, shipped_policy
from reason_spec.exit.reading_model import ReadingModel, load_reading_model
from reason_spec.lab.exit import training
from reason_spec.lab.exit.replay import Replay, Replayed, ReplayReport, by_group, report_dict
from reason_spec.lab.exit.rules import PUBLISHED, Rule, oracle
from reason_spec.lab.exit.states import StatementTable
from reason_spec.lab.exit.traces import ReadTrace, Trace, read_steps, read_traces
from reason_spec.lab.exit.tuning import THRESHOLDS, ExitTuning, PolicyCurve, tune_exit
from reason_spec.lab.pictures import require_matplotlib
from reason_spec.lab.tuning.calibration import LossTest
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem

REMEDY = "Name another file."


class Bench(NamedTuple):
    """Answers that are read and graded, and how to replay them."""

    reads: list[ReadTrace]
    replay: Replay

    @property
    def num_problems(self) -> int:
        return len({read.trace.problem for read in self.reads})


@contextmanager
def bench(
    traces: Sequence[Trace],
    task: str,
    screen: Screen,
    reduce: Callable[[ReadTrace], ReadTrace] | None = None,
    model: ReadingModel | None = None,
) -> Iterator[Bench]:
    """Read, grade and count answers; ``reduce`` and ``model`` are those of `read_steps`."""
    with screen.counting("Reading", len(traces), "answers") as advance:
        reads = read_steps(traces, advance, reduce=reduce, model=model)
    with Grader() as grader:
        replay = Replay(reads, grader, task)
        with screen.counting("Grading", len(traces), "answers") as advance:
            replay.prepare(advance)
        yield Bench(reads, replay)


def policy_at(
    file: Path | None, threshold: float | None, screen: Screen, *, text_only: bool = False
) -> ExitPolicy:
    """Return a policy, one that ships by default, at its own or another threshold.

    Raises:
        DataError: the file is missing or damaged.
        SettingsError: ``text_only`` is asked of a file.
    """
    if file is not None and text_only:
        raise SettingsError(
            f"--text-only chooses among the policies that ship: leave out it, or --policy {file}"
        )
    if file is None:
        with screen.status("Looking for a small model that reads along"):
            policy = shipped_policy(text_only=text_only)
        if policy.reading is None and not text_only:
            screen.say(
                "The policy that saves more has models:smollm2-gsm8k read along, which is not installed "
                "(see reason-spec-models/README.md): this one reads the text alone"
            )
    else:
        policy = load_policy(file)
    return policy if threshold is None else policy.model_copy(update={"threshold": threshold})


def loaded_reader(policy: ExitPolicy, screen: Screen) -> ReadingModel | None:
    """Return the small model that reads along under a policy, if one does.

    Raises:
        DataError: the policy was trained with another one.
        EngineError: it is not installed, or cannot be loaded.
    """
    if policy.reading is None:
        return None
    with screen.status(f"Loading {policy.reading.model}"):
        return policy.reading.load()


def seen_questions(policy: ExitPolicy, traces: Sequence[Trace]) -> str | None:
    """Return how many questions of a file a policy was trained on, as a sentence; None where none is."""
    questions = {trace.question for trace in traces}
    if not (num_seen := sum(map(policy.has_seen, questions))):
        return None
    return f"the policy was trained on answers to {num_seen} of the {len(questions)} questions"


def warn_of_seen(file: Path, policy: ExitPolicy, traces: Sequence[Trace], screen: Screen) -> None:
    if seen := seen_questions(policy, traces):
        screen.warn(f"{file}: {seen}; of answers to others it may lose more")


# Replay ----------------------------------------------------------------------------------------


def evaluate(
    file: Path,
    task: str,
    policy: ExitPolicy,
    groups: Sequence[str],
    limit: int | None,
    json_file: Path | None,
    png: Path | None,
    screen: Screen,
) -> None:
    """Replay a file under a policy, print a table, and write numbers and a picture where they are wanted.

    Raises:
        DataError: the file has no usable answers, or an output cannot be written.
        MissingDependencyError: a picture is wanted, and matplotlib is missing.
    """
    if png is not None:
        require_matplotlib("the picture of loss against saving (--png)")
    traces, curve = read_traces(file, task, groups=groups)[:limit], PolicyCurve(policy)
    warn_of_seen(file, policy, traces, screen)
    # The other rules of the picture read the candidates.
    model, reduce = loaded_reader(policy, screen), curve.reduce if png is None else None
    with bench(traces, task, screen, reduce, model) as found:
        answers = found.replay.run(curve.rule(policy.threshold))
        if png is not None:
            from reason_spec.lab.exit.pictures import draw_curve

            with screen.status("Drawing"), writing(png, REMEDY):
                draw_curve(curve_of(curve, found.replay), published_points(found.replay), png)
    screen.print_table(answers_table(answers))
    reader = "It reads the text alone" if model is None else f"{model.name} read along"
    screen.say(f"{reader}. Threshold {policy.threshold:.3g}. Tokens are those of thinking; none is written.")
    if json_file is not None:
        about = {"rule": "policy", "threshold": policy.threshold, "reading_model": model and model.name}
        content = report_dict(answers, file=str(file), **about)
        write_text(json_file, json.dumps(content, indent=2) + "\n", REMEDY)


def curve_of(curve: PolicyCurve, replay: Replay) -> list[ReplayReport]:
    """Return the reports of a policy from strict to lax."""
    return [ReplayReport.of(replay.run(curve.rule(threshold))) for threshold in THRESHOLDS]


def published_points(replay: Replay) -> dict[str, ReplayReport]:
    """Return the reports of the oracle and of the published rules in their text-only forms."""
    rules: dict[str, Rule] = {"oracle": oracle(lambda read, answer: replay.is_right(read, answer) is True)}
    return {name: ReplayReport.of(replay.run(rule)) for name, rule in {**rules, **PUBLISHED}.items()}


def answers_table(answers: Sequence[Replayed]) -> Table:
    headings = ("answers", "tokens kept", "right before", "right after", "lost", "won", "loss at most")
    table = plain_table("answers of", *headings)
    groups = by_group(answers)
    rows = (
        {**groups, "all": answers}
        if len(groups) != 1 or len(answers) != len(next(iter(groups.values())))
        else groups
    )
    for name, part in rows.items():
        report = ReplayReport.of(part)
        table.add_row(
            name,
            f"{report.n}",
            percent(report.tokens_kept),
            percent(report.accuracy_before),
            percent(report.accuracy_after),
            f"{report.lost}",
            f"{report.won}",
            points_text(report.loss_upper95),
        )
    return table


# Training --------------------------------------------------------------------------------------


def train_policy(
    file: Path,
    task: str,
    output: Path,
    *,
    solved: Path | None,
    loss: float,
    groups: Sequence[str],
    reading_model: str | None,
    seed: int,
    screen: Screen,
) -> None:
    """Train a policy, choose its threshold on held-out problems, and write its file.

    Raises:
        DataError: there are too few answers, or the file cannot be written.
        EngineError: the small model that is to read along cannot be loaded.
    """
    with writing(output, REMEDY):
        output.parent.mkdir(parents=True, exist_ok=True)
    problems = [] if solved is None else solved_problems(solved)
    traces = read_traces(file, task, groups=groups)
    learned = {question_key(problem.question) for problem in problems}
    if solved is None:
        packaged = load_policy()
        # Questions that its part was trained on are no test of the new policy either.
        asked, learned = packaged.asked, set(packaged.questions)
        if seen := seen_questions(packaged, traces):
            screen.warn(f"{file}: {seen} (its part that reads questions, which is used again); give --solved")
    else:
        with screen.counting("Learning questions", len(problems), "problems") as advance:
            asked = training.train_asked(problems, advance, seed)
    model = None
    if reading_model is not None:
        with screen.status(f"Loading {reading_model}"):
            model = load_reading_model(reading_model)
    with bench(traces, task, screen, model=model) as found:
        table = training.LabelledCandidates.of(found.reads, task)
        statements = None
        if model is not None:
            finals = training.final_values(found.reads, task)
            statements = StatementTable.of(found.reads, model.name, finals)
        with screen.counting("Training", training.FOLDS + 1, "models") as advance:
            policies = training.held_out_policies(
                table, asked, by_group=False, statements=statements, advance=advance, seed=seed
            )
            report, threshold = held_out_threshold(found, policies, loss)
            names = sorted({read.trace.group for read in found.reads if read.trace.group})
            about = {
                "data": file.name,
                "groups": names,
                "loss": loss,
                "held_out": None if report is None else report.to_dict(),
            }
            policy = training.train(
                table,
                asked,
                threshold=threshold,
                about=about,
                learned=learned,
                statements=statements,
                seed=seed,
            )
            advance()
    write_text(output, policy.to_json(), REMEDY)
    if screen.as_json:
        screen.write_json({"output": str(output), "threshold": threshold, **policy.trained}, indent=None)
        return
    screen.print(_trained_line(policy, report, output))


def solved_problems(file: Path) -> list[Problem]:
    from reason_spec.jsonl import FieldError, JsonItem, parse_items, read_records
    from reason_spec.tasks.base import get_task

    task = get_task("auto")

    def parse(item: JsonItem) -> Problem:
        # The record's own answer is the part after ####.
        solution = item.value.get("answer")
        if not isinstance(solution, str):
            raise FieldError("answer", "is missing, or is not a text with a worked solution", solution)
        return Problem(str(item.line), task.read_record(item.value).question, solution)

    return list(
        parse_items(
            read_records(file, "one object a line with question, answer"), file, parse, [], skip_bad=None
        )
    )


def held_out_threshold(
    found: Bench, policies: Sequence[ExitPolicy | None], loss: float
) -> tuple[ReplayReport | None, float]:
    """Return the lowest threshold that loses at most a share of held-out answers, and its report.

    Without one the threshold is 1, and there is no report.
    """
    curves = {id(policy): PolicyCurve(policy) for policy in policies if policy is not None}
    best: tuple[ReplayReport | None, float] = None, 1.0
    for threshold in THRESHOLDS:
        rules = [curves[id(policy)].rule(threshold) for policy in policies]
        report = ReplayReport.of([found.replay.replay(place, rule) for place, rule in enumerate(rules)])
        if report.loss > loss:
            break
        best = report, threshold
    return best


def _trained_line(policy: ExitPolicy, report: ReplayReport | None, output: Path) -> str:
    trained = policy.trained
    start = f"{trained['answers']} answers to {trained['problems']} problems, {trained['rows']} rows. "
    if report is None:
        return f"{start}No threshold keeps the loss on held-out problems: it never stops. Written to {output}"
    return (
        f"{start}On held-out problems threshold {policy.threshold:g} keeps {percent(report.tokens_kept)} of "
        f"the thinking and loses {report.lost} of {report.n} answers. Written to {output}"
    )


# Thresholds ------------------------------------------------------------------------------------


def tune(
    file: Path,
    task: str,
    policy: ExitPolicy,
    test: LossTest,
    thresholds: Sequence[float],
    *,
    groups: Sequence[str],
    output: Path | None,
    screen: Screen,
) -> int:
    """Choose a threshold, print the trials and write the policy; return the exit status.

    Raises:
        DataError: the policy was trained on answers to questions of the file, or there are too few others.
    """
    traces, curve = read_traces(file, task, groups=groups), PolicyCurve(policy)
    if seen := seen_questions(policy, traces):
        raise DataError(
            f"{file}: {seen}, so the loss on other questions may be higher than what is tested. Give answers "
            "to other questions, or a policy that has not seen these (--policy)."
        )
    model = loaded_reader(policy, screen)
    with (
        bench(traces, task, screen, curve.reduce, model) as found,
        screen.counting("Replaying", len(thresholds), "thresholds") as advance,
    ):
        tuning = tune_exit(
            curve,
            found.replay,
            test,
            thresholds=thresholds,
            num_problems=found.num_problems,
            advance=advance,
        )
    if tuning.policy is not None and output is not None:
        write_text(output, tuning.policy.to_json(), REMEDY)
    if screen.as_json:
        screen.write_json({**tuning.to_dict(), "output": str(output) if output else None}, indent=None)
    else:
        screen.print_table(_trials_table(tuning))
        screen.print(_conclusion(tuning))
        if tuning.policy is not None and output is not None:
            screen.print(f"Use it with: --policy {output}")
    return 0 if tuning.policy is not None else EXIT_NONE_SAFE


def _trials_table(tuning: ExitTuning) -> Table:
    table = plain_table("threshold", "tokens kept", "lost", "problems", "loss at most", "", num_names=0)
    test = tuning.trials.test
    for trial, kept in zip(tuning.trials.trials, tuning.kept, strict=True):
        table.add_row(
            f"{trial.threshold:g}",
            percent(kept),
            f"{trial.num_lost}",
            f"{trial.num_problems}",
            points_text(test.bound(trial)),
            "chosen" if trial is tuning.trials.chosen else "passes" if test.passes(trial) else "fails",
        )
    return table


def _conclusion(tuning: ExitTuning) -> str:
    test, chosen = tuning.trials.test, tuning.trials.chosen
    confidence = f"with {100 * test.confidence:g} % confidence"
    if chosen is not None:
        return (
            f"Threshold {chosen.threshold:g} loses at most {points_text(test.loss)} of answers, "
            f"{confidence}: {chosen.num_lost} of {chosen.num_problems} problems were lost."
        )
    return (
        f"No threshold is shown to lose at most {points_text(test.loss)} of answers, {confidence}. "
        "Give more answers, or allow a higher --loss."
    )
