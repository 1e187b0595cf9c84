"""Measure the pair on fresh problems: how often each model is right, and what a token costs.

    python -m reason_spec.lab.pair.evaluate --n 500

Accuracy is that of greedy decoding in float32. The cost of a token is measured end to end in the
torch engine, each model alone on one core, in the middle of a context of 300 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from reason_spec.errors import DataError, ReasonSpecError
from reason_spec.lab.pair.cost import CONTEXT, PairCost, measure_cost
from reason_spec.lab.pair.measure import (
    DraftedSteps,
    PairReport,
    Progress,
    Shifted,
    aligned_chances,
    area_under_curve,
    by_kind,
    by_operations,
    count_faults,
    draft_steps,
    expected_scores,
    no_progress,
    share,
    solve_split,
)
from reason_spec.pair import CARD_PATH, embedded_path, reward_path
from reason_spec.pair.decoding import LoadedModel, load_pair_model
from reason_spec.pair.generator import STEP_SEPARATOR
from reason_spec.pair.reward import RewardHead, load_reward_head, rewards

_MAX_JUDGED = 500


def evaluate(
    target: LoadedModel,
    draft: LoadedModel,
    judge: LoadedModel | None,
    reward: RewardHead | None,
    cost: PairCost,
    *,
    n: int,
    seed: int,
    progress: Progress = no_progress,
) -> PairReport:
    """Measure a pair on ``n`` problems of the test split and a quarter as many shifted ones."""
    solved = solve_split(target, "test", n, seed, "target solves", progress)
    drafted = draft_steps(draft, solved, "draft writes steps", progress)
    draft_solved = solve_split(draft, "test", n, seed, "draft solves", progress)
    score_auc, judge_auc, reward_auc = _judge_drafts(target, judge, reward, drafted)
    return PairReport(
        n=n,
        target_accuracy=share(solved.right),
        draft_accuracy=share(draft_solved.right),
        draft_step_accuracy=share(drafted.right),
        draft_wording=share(drafted.in_target_words),
        num_steps=len(drafted.steps),
        by_ops=by_operations(solved, draft_solved),
        by_kind=by_kind(*drafted),
        faults=count_faults(*drafted),
        shifted=_measure_shifted(target, draft, max(1, n // 4), seed, progress),
        score_auc=score_auc,
        judge_auc=judge_auc,
        reward_auc=reward_auc,
        target_ms_per_token=cost.target_ms,
        draft_ms_per_token=cost.draft_ms,
        c=cost.c,
    )


def _measure_shifted(
    target: LoadedModel, draft: LoadedModel, n: int, seed: int, progress: Progress
) -> Shifted:
    solved = solve_split(target, "shifted", n, seed, "target solves shifted problems", progress)
    draft_solved = solve_split(draft, "shifted", n, seed, "draft solves shifted problems", progress)
    drafted = draft_steps(draft, solved, "draft writes shifted steps", progress)
    return Shifted(n, share(solved.right), share(draft_solved.right), share(drafted.right))


def _judge_drafts(
    target: LoadedModel, judge: LoadedModel | None, reward: RewardHead | None, drafted: DraftedSteps
) -> tuple[float | None, float | None, float | None]:
    """Return how well scores, judgements and rewards separate right drafts from wrong ones.

    Evenly spaced steps are judged, since each costs a pass over the whole problem.
    """
    stride = max(1, len(drafted.steps) // _MAX_JUDGED)
    chosen = list(zip(*drafted, strict=True))[::stride]
    right = drafted.right[::stride]
    prefixes = [c.prefix + s + STEP_SEPARATOR for c, s in chosen]
    pairs = [(s, c.target_step) for c, s in chosen]
    return (
        None if judge is None else area_under_curve(right, expected_scores(judge, prefixes)),
        None if judge is None else area_under_curve(right, aligned_chances(judge, pairs)),
        None if reward is None else area_under_curve(right, rewards(target, reward, prefixes)),
    )


def _print_report(report: PairReport, write: Callable[[str], None] = print) -> None:
    write(f"{report.n} fresh problems, greedy, float32")
    write(f"  {'operations':<16}{'n':>6}{'target':>10}{'draft':>10}")
    for count, ops in report.by_ops.items():
        write(f"  {count:<16}{ops.n:>6}{ops.target_accuracy:>10.1%}{ops.draft_accuracy:>10.1%}")
    write(f"  {'all':<16}{report.n:>6}{report.target_accuracy:>10.1%}{report.draft_accuracy:>10.1%}")
    other = report.shifted
    write(f"  {'told otherwise':<16}{other.n:>6}{other.target_accuracy:>10.1%}{other.draft_accuracy:>10.1%}")
    write(f"\nsteps of the draft after right steps of the target: {_steps(report)}")
    write(f"  {'kind':<16}{'n':>6}{'right':>10}{'same words':>12}")
    for kind, row in report.by_kind.items():
        write(f"  {kind:<16}{row.n:>6}{row.right / row.n:>10.1%}{row.same_words / max(1, row.right):>12.1%}")
    write(f"  wrong steps get wrong: {_faults(report)}")
    write(f"  right from wrong, area under the curve: {_areas(report)}")
    write(f"\none token in a context of {CONTEXT}, one sequence, one core: {_cost(report)}")


def _steps(report: PairReport) -> str:
    return (
        f"{report.draft_step_accuracy:.1%} right of {report.num_steps}, "
        f"{report.draft_wording:.1%} of these in the target's words"
    )


def _faults(report: PairReport) -> str:
    return ", ".join(f"{fault} {count}" for fault, count in report.faults.items())


def _areas(report: PairReport) -> str:
    areas = {"score": report.score_auc, "judge": report.judge_auc, "reward head": report.reward_auc}
    return ", ".join(f"{name} {'-' if area is None else f'{area:.3f}'}" for name, area in areas.items())


def _cost(report: PairReport) -> str:
    return (
        f"target {report.target_ms_per_token:.1f} ms, draft {report.draft_ms_per_token:.1f} ms, "
        f"c = {report.c:.3f}"
    )


def card_figures(report: PairReport) -> str:
    """Return the figures of a report in Markdown, for the model card."""
    shifted = report.shifted
    lines = [
        "| operations | problems | target | draft |",
        "|---|---|---|---|",
        *(
            f"| {count} | {row.n} | {row.target_accuracy:.0%} | {row.draft_accuracy:.0%} |"
            for count, row in report.by_ops.items()
        ),
        f"| all | {report.n} | {report.target_accuracy:.1%} | {report.draft_accuracy:.1%} |",
        f"| told otherwise | {shifted.n} | {shifted.target_accuracy:.1%} | {shifted.draft_accuracy:.1%} |",
        "",
        "| kind of step | steps | draft right | of these in the target's words |",
        "|---|---|---|---|",
        *(
            f"| {kind} | {row.n} | {row.right / row.n:.0%} | {row.same_words / max(1, row.right):.0%} |"
            for kind, row in report.by_kind.items()
        ),
        f"| all | {report.num_steps} | {report.draft_step_accuracy:.1%} | {report.draft_wording:.1%} |",
        "",
        f"- what the draft's wrong steps get wrong: {_faults(report)}",
        f"- right drafts from wrong ones, area under the curve: {_areas(report)}",
        f"- one token, one sequence, one core, context {CONTEXT}: {_cost(report)}",
    ]
    return "\n".join(lines)


def update_card(card: Path, report: PairReport) -> None:
    """Write the figures of ``report`` between the two marks of a model card."""
    text = card.read_text(encoding="utf-8")
    begin, end = text.index("\n", text.index("<!-- figures:")) + 1, text.index("<!-- end of figures -->")
    card.write_text(f"{text[:begin]}\n{card_figures(report)}\n\n{text[end:]}", encoding="utf-8")


def _model_folder(folder: Path) -> Path:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder} holds no model of the pair: {name} is missing. Name a folder that has it."
            )
    return folder


@contextmanager
def _live_progress(quiet: bool) -> Iterator[Progress]:
    """Show a bar for each part of the work, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), disable=quiet) as bar:
        tasks: dict[str, int] = {}

        def show(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done)  # type: ignore[arg-type]

        yield show


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m reason_spec.lab.pair.evaluate", description=main.__doc__)
    parser.add_argument("--n", type=int, default=500, help="number of problems (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=Path, help="folder of the target (default: the embedded one)")
    parser.add_argument("--draft", type=Path, help="folder of the draft (default: the embedded one)")
    parser.add_argument("--judge", type=Path, help="folder of the judge (default: the embedded one)")
    parser.add_argument(
        "--reward", type=Path, help="folder of a reward head (default: that of the embedded target)"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--update-card", action="store_true", help="write the figures into MODEL_CARD.md")
    arguments = parser.parse_args(argv)
    if arguments.n < 1 or arguments.threads < 1:
        parser.error("--n and --threads must be at least 1")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the demonstration pair, or another one, on fresh problems."""
    arguments = _parse(argv)
    torch.set_num_threads(arguments.threads)
    try:
        target_folder = _model_folder(arguments.target or embedded_path("target"))
        draft_folder = _model_folder(arguments.draft or embedded_path("draft"))
        # Another target has other hidden states, which the embedded head cannot read.
        reward_folder = arguments.reward or (None if arguments.target else reward_path())
        judge_folder = _model_folder(arguments.judge or embedded_path("judge"))
        target = load_pair_model(target_folder)
        reward = load_reward_head(reward_folder, target.model) if reward_folder else None
        cost = asyncio.run(measure_cost(target_folder, draft_folder))
        with _live_progress(quiet=arguments.json) as progress:
            draft = load_pair_model(draft_folder)
            judge = load_pair_model(judge_folder)
            report = evaluate(
                target, draft, judge, reward, cost, n=arguments.n, seed=arguments.seed, progress=progress
            )
    except ReasonSpecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    if arguments.update_card:
        update_card(CARD_PATH, report)
    if arguments.json:
        print(json.dumps(asdict(report)))
    else:
        _print_report(report)


if __name__ == "__main__":
    main()
