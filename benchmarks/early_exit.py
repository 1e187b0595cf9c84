"""Measure an exit policy on problems and models that it was not trained on, beside other rules.

    python benchmarks/early_exit.py TRACES --solved FILE [--train-group NAME ...] [--report-group NAME ...]
        [--math FILE] [--reading-model MODEL] [--policy FILE] [--plot FILE] [--json [FILE]]

TRACES are stored answers as `reason-spec exit train` reads them, FILE of --solved worked solutions in GSM8K's
form. Each answer is replayed under a policy that saw neither its problem (five folds) nor any answer of its
model. The threshold of a fold is the lowest that loses at most --loss points on the other folds. --math has
solutions without thinking (``answer``, and ``code``: a list of texts); the policy of all TRACES replays them.
--reading-model names a small model that reads along; its probe has not seen the problem or the model either.
--policy writes that policy, at the lowest threshold that loses at most --loss points on the held-out answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from arms import printer, write_rows
from text_columns import EXIT_CURVE, EXIT_RULES

from reason_spec.cli.exit_screens import Bench, published_points, solved_problems
from reason_spec.exit.policy import ExitPolicy, question_key
from reason_spec.exit.reading_model import load_reading_model
from reason_spec.lab.exit import training
from reason_spec.lab.exit.pictures import draw_curve
from reason_spec.lab.exit.replay import Replay, Replayed, ReplayReport, by_group
from reason_spec.lab.exit.rules import policy_rule
from reason_spec.lab.exit.states import StatementTable
from reason_spec.lab.exit.traces import Trace, read_steps, read_traces
from reason_spec.lab.exit.tuning import THRESHOLDS, PolicyCurve
from reason_spec.tasks.grading import Grader

TASK: Final = "gsm8k"


def note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def held_out(
    bench: Bench, policies: Sequence[ExitPolicy | None], shown: Sequence[int]
) -> dict[float, list[Replayed]]:
    """Replay each shown answer under its own policy at each threshold."""
    curves = {id(policy): PolicyCurve(policy) for policy in policies if policy is not None}
    found: dict[float, list[Replayed]] = {}
    for threshold in THRESHOLDS:
        found[threshold] = []
        for place in shown:
            curve = curves[id(policies[place])]
            found[threshold].append(bench.replay.replay(place, curve.rule(threshold)))
    return found


def nested(trials: dict[float, list[Replayed]], fold: Sequence[int], loss: float) -> list[Replayed]:
    """Return each fold at the lowest threshold that holds the loss on the other folds."""
    answers: list[Replayed] = []
    for left_out in sorted(set(fold)):
        chosen = max(THRESHOLDS)
        for threshold in sorted(THRESHOLDS, reverse=True):
            others = [a for a, f in zip(trials[threshold], fold, strict=True) if f != left_out]
            if sum(a.is_lost for a in others) > loss * len(others):
                break
            chosen = threshold
        answers += [a for a, f in zip(trials[chosen], fold, strict=True) if f == left_out]
        note(f"fold {left_out}: threshold {chosen:g}")
    return answers


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    printer(*EXIT_RULES)([row for row in rows if row["threshold"] is None])
    printer(*EXIT_CURVE)([row for row in rows if row["threshold"] is not None])


def math_traces(file: Path) -> list[Trace]:
    found = []
    for text in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        for solution in row["code"]:
            question = row["question"]
            found.append(
                Trace(str(row["idx"]), question, question, row["answer"], solution, solution, "MATH")
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path)
    parser.add_argument("--solved", type=Path, required=True)
    parser.add_argument("--train-group", action="append", default=[])
    parser.add_argument("--report-group", action="append", default=[])
    parser.add_argument("--math", type=Path)
    parser.add_argument("--reading-model", metavar="MODEL")
    parser.add_argument("--loss", type=float, default=1.0)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", nargs="?", type=Path, const=Path("-"))
    options = parser.parse_args()
    name = options.reading_model
    model = None if name is None else load_reading_model(name)
    reads = read_steps(read_traces(options.traces, TASK, groups=options.train_group), model=model)
    note("read")
    solved = solved_problems(options.solved)
    asked = training.train_asked(solved)
    table = training.LabelledCandidates.of(reads, TASK)
    statements = None
    if model is not None:
        statements = StatementTable.of(reads, model.name, training.final_values(reads, TASK))
    kind = "policy" if model is None else "read along"
    wanted = set(options.report_group)
    shown = [place for place, read in enumerate(reads) if not wanted or read.trace.group in wanted]
    policies = training.held_out_policies(
        table,
        asked,
        by_group=True,
        answers=shown,
        statements=statements,
        advance=lambda: note("fitted"),
    )
    with Grader() as grader:
        bench = Bench(reads, Replay(reads, grader, TASK))
        trials = held_out(bench, policies, shown)
        fold = training.folds_of(table)[shown].tolist()
        chosen = nested(trials, fold, options.loss / 100)
        curve = [ReplayReport.of(answers) for answers in trials.values()]
        ours = Replay([reads[place] for place in shown], grader, TASK)
        rows: dict[str, ReplayReport] = {f"{kind}, all": ReplayReport.of(chosen)}
        rows |= {f"{kind}, {name}": ReplayReport.of(part) for name, part in by_group(chosen).items()}
        others = published_points(ours)
        rows |= others
        safe = [t for t, report in zip(trials, curve, strict=True) if report.loss <= options.loss / 100]
        threshold = min(safe, default=1.0)
        about: dict[str, Any] = {
            "data": options.traces.name,
            "asked": options.solved.name,
            "groups": sorted({read.trace.group or "" for read in reads}),
            "held_out": rows[f"{kind}, all"].to_dict(),
        }
        learned = [question_key(problem.question) for problem in solved]
        policy = training.train(
            table, asked, threshold=threshold, about=about, learned=learned, statements=statements
        )
        if options.math is not None:
            solutions = read_steps(math_traces(options.math), model=model)
            replay = Replay(solutions, grader, "math500")
            rows["MATH solutions"] = ReplayReport.of(replay.run(policy_rule(policy)))
    if options.policy is not None:
        options.policy.write_text(policy.to_json(), encoding="utf-8")
    if options.plot is not None:
        draw_curve(curve, others, options.plot)
    named = [{"name": name, "threshold": None, **report.to_dict()} for name, report in rows.items()]
    by_threshold = [
        {"name": f"{kind}, all", "threshold": value, **report.to_dict()}
        for value, report in zip(trials, curve, strict=True)
    ]
    write_rows(named + by_threshold, options.json, print_rows)


if __name__ == "__main__":
    main()
