"""Measure the pair on fresh problems: how often each model is right, and the cost of a token.

    python -m reason_spec.lab.pair.evaluate --n 500

Accuracy is that of greedy decoding in float32. The cost of a token is measured end to end in the torch
engine, each model alone on one core, in the middle of a context of 300 tokens. The figures are printed in
Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from reason_spec.errors import DataError, ReasonSpecError
from reason_spec.lab.pair.cost import CONTEXT, PairCost, measure_cost
from reason_spec.lab.pair.measure import (
    DraftedSteps,
    Notify,
    PairReport,
    Shifted,
    aligned_chances,
    area_under_curve,
    by_operations,
    draft_steps,
    expected_scores,
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
    notify: Notify = lambda _: None,
) -> PairReport:
    """Measure a pair on ``n`` problems of the test split and a quarter as many shifted ones."""
    solved = solve_split(target, "test", n, seed, notify)
    drafted = draft_steps(draft, solved, notify)
    draft_solved = solve_split(draft, "test", n, seed, notify)
    num_shifted = max(1, n // 4)
    shifted = solve_split(target, "shifted", num_shifted, seed, notify)
    draft_shifted = solve_split(draft, "shifted", num_shifted, seed, notify)
    score_auc, judge_auc, reward_auc = _judge_drafts(target, judge, reward, drafted)
    return PairReport(
        n=n,
        target_accuracy=share(solved.right),
        draft_accuracy=share(draft_solved.right),
        draft_step_accuracy=share(drafted.right),
        draft_wording=share(drafted.in_target_words),
        num_steps=len(drafted.steps),
        by_ops=by_operations(solved, draft_solved),
        by_kind=drafted.by_kind(),
        faults=drafted.faults(),
        shifted=Shifted(
            num_shifted,
            share(shifted.right),
            share(draft_shifted.right),
            share(draft_steps(draft, shifted, notify).right),
        ),
        score_auc=score_auc,
        judge_auc=judge_auc,
        reward_auc=reward_auc,
        target_ms_per_token=cost.target_ms,
        draft_ms_per_token=cost.draft_ms,
        c=cost.c,
    )


def _judge_drafts(
    target: LoadedModel, judge: LoadedModel | None, reward: RewardHead | None, drafted: DraftedSteps
) -> tuple[float | None, float | None, float | None]:
    """Return how well scores, judgements and rewards separate right drafts from wrong ones.

    Only evenly spaced steps are judged: each costs a pass over the whole problem.
    """
    stride = max(1, len(drafted.steps) // _MAX_JUDGED)
    chosen = list(zip(*drafted, strict=True))[::stride]
    right = drafted.right[::stride]
    prefixes = [case.prefix + step + STEP_SEPARATOR for case, step in chosen]
    pairs = [(step, case.target_step) for case, step in chosen]
    return (
        None if judge is None else area_under_curve(right, expected_scores(judge, prefixes)),
        None if judge is None else area_under_curve(right, aligned_chances(judge, pairs)),
        None if reward is None else area_under_curve(right, rewards(target, reward, prefixes)),
    )


def figures(report: PairReport) -> str:
    """Return the figures of a report in Markdown."""
    shifted = report.shifted
    areas = {"score": report.score_auc, "judge": report.judge_auc, "reward head": report.reward_auc}
    shown = [f"{name} {'-' if area is None else f'{area:.3f}'}" for name, area in areas.items()]
    target_ms, draft_ms = report.target_ms_per_token, report.draft_ms_per_token
    cost = f"target {target_ms:.1f} ms, draft {draft_ms:.1f} ms, c = {report.c:.3f}"
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
        "- what the draft's wrong steps get wrong: "
        + ", ".join(f"{fault} {count}" for fault, count in report.faults.items()),
        f"- right drafts from wrong ones, area under the curve: {', '.join(shown)}",
        f"- one token, one sequence, one core, context {CONTEXT}: {cost}",
    ]
    return "\n".join(lines)


def update_card(card: Path, report: PairReport) -> None:
    """Write the figures of ``report`` between the two marks of a model card."""
    text = card.read_text(encoding="utf-8")
    begin, end = text.index("\n", text.index("<!-- figures:")) + 1, text.index("<!-- end of figures -->")
    card.write_text(f"{text[:begin]}\n{figures(report)}\n\n{text[end:]}", encoding="utf-8")


def _model_folder(folder: Path) -> Path:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder} holds no model of the pair: {name} is missing. Name a folder that has it."
            )
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the demonstration pair, or another one, on fresh problems."""
    parser = argparse.ArgumentParser(prog="python -m reason_spec.lab.pair.evaluate", description=main.__doc__)
    parser.add_argument("--n", type=int, default=500, help="number of problems (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    for role in ("target", "draft", "judge"):
        parser.add_argument(f"--{role}", type=Path, help=f"folder of the {role} (default: the embedded one)")
    parser.add_argument("--reward", type=Path, help="folder of a reward head for the target")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--update-card", action="store_true", help="write the figures into MODEL_CARD.md")
    arguments = parser.parse_args(argv)
    if arguments.n < 1 or arguments.threads < 1:
        parser.error("--n and --threads must be at least 1")
    torch.set_num_threads(arguments.threads)
    try:
        target_folder = _model_folder(arguments.target or embedded_path("target"))
        draft_folder = _model_folder(arguments.draft or embedded_path("draft"))
        judge = load_pair_model(_model_folder(arguments.judge or embedded_path("judge")))
        target, draft = load_pair_model(target_folder), load_pair_model(draft_folder)
        # The embedded head cannot read the hidden states of another target.
        reward_folder = arguments.reward or (None if arguments.target else reward_path())
        reward = load_reward_head(reward_folder, target.model) if reward_folder else None
        cost = asyncio.run(measure_cost(target_folder, draft_folder))
    except ReasonSpecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    report = evaluate(
        target,
        draft,
        judge,
        reward,
        cost,
        n=arguments.n,
        seed=arguments.seed,
        notify=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if arguments.update_card:
        update_card(CARD_PATH, report)
    print(json.dumps(asdict(report)) if arguments.json else figures(report))


if __name__ == "__main__":
    main()
