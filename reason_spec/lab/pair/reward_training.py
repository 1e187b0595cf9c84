"""Training of the reward head on rollouts of the demonstration pair.

Both models solve problems of the training split. A step counts as right where it and all steps before it
make the calculations of the worked solution.

    python -m reason_spec.lab.pair.reward_training --out DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import accumulate, islice
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from reason_spec.errors import ReasonSpecError
from reason_spec.lab.pair.grading import is_right_step
from reason_spec.pair import embedded_path
from reason_spec.pair.decoding import LoadedModel, complete, load_pair_model
from reason_spec.pair.generator import STEP_SEPARATOR, Example, problems
from reason_spec.pair.reward import CONFIG_NAME, WEIGHTS_NAME, RewardHead, fingerprint, hidden_where_steps_end
from reason_spec.pair.tokenizer import chat_prompt

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

_EPOCHS = 30
_ROWS = 256
_RATE = 2e-3
_TEMPERATURE = 1.0
_DRAFTS_PER_TARGET = 8
_SEED = 20_000
"""Seed of the training problems; the target's own training used others."""


class LabelledSteps(NamedTuple):
    """Hidden states at the ends of steps, [n, width], and whether all steps up to there are right, [n]."""

    hidden: Tensor
    right: Tensor


def label_rollouts(target: LoadedModel, chosen: Sequence[Example], solutions: Sequence[str]) -> LabelledSteps:
    """Label the steps of solutions, one to each problem, and read the target's hidden states at them."""
    texts: list[str] = []
    labels: list[list[bool]] = []
    for problem, solution in zip(chosen, solutions, strict=True):
        steps = solution.split(STEP_SEPARATOR)[: problem.operations]
        texts.append(chat_prompt(problem.question) + "".join(step + STEP_SEPARATOR for step in steps))
        right = (is_right_step(*pair) for pair in zip(steps, problem.steps[:-1], strict=False))
        labels.append(list(accumulate(right, and_)))
    hidden = hidden_where_steps_end(target, texts)
    # A step cut off by the limit of tokens has no end to read the state at.
    pairs = [(states[: len(row)], row[: len(states)]) for states, row in zip(hidden, labels, strict=True)]
    return LabelledSteps(
        torch.cat([states for states, _ in pairs]),
        torch.tensor([label for _, row in pairs for label in row], dtype=torch.float32),
    )


def roll_out(target: LoadedModel, draft: LoadedModel, n: int, seed: int) -> LabelledSteps:
    """Have the draft solve ``n`` problems and the target some, at temperature 1, and label the steps.

    The target solves few: it is slow and seldom wrong, and its steps are not those to be judged.
    """
    parts: list[LabelledSteps] = []
    models = (("draft", draft, n), ("target", target, max(1, n // _DRAFTS_PER_TARGET)))
    for number, (name, model, count) in enumerate(models):
        print(f"{name}: {count} rollouts", file=sys.stderr, flush=True)
        chosen = list(islice(problems("train", seed + number), count))
        torch.manual_seed(seed + number)
        prompts = [chat_prompt(problem.question) for problem in chosen]
        solutions = complete(model, prompts, temperature=_TEMPERATURE)
        parts.append(label_rollouts(target, chosen, solutions))
    return LabelledSteps(torch.cat([p.hidden for p in parts]), torch.cat([p.right for p in parts]))


def train_head(steps: LabelledSteps, seed: int = 0) -> RewardHead:
    """Fit a head to labelled steps; both labels weigh the same."""
    torch.manual_seed(seed)
    head = RewardHead(steps.hidden.shape[1])
    optimizer = torch.optim.AdamW(head.parameters(), lr=_RATE, weight_decay=0.01)
    num_batches = -(-len(steps.right) // _ROWS)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _EPOCHS * num_batches)
    num_right = steps.right.sum()
    wrong_weight = num_right / (len(steps.right) - num_right).clamp(min=1)
    for _ in range(_EPOCHS):
        for rows in torch.randperm(len(steps.right)).split(_ROWS):
            right = steps.right[rows]
            weights = torch.where(right > 0, 1.0, wrong_weight)
            loss = functional.binary_cross_entropy_with_logits(head(steps.hidden[rows]), right, weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return head.eval()


def held_out_auc(head: RewardHead, steps: LabelledSteps) -> float | None:
    """Return the area under the ROC curve; None where all steps are alike."""
    from sklearn.metrics import roc_auc_score

    if len(steps.right.unique()) == 1:
        return None
    with torch.inference_mode():
        return float(roc_auc_score(steps.right, head(steps.hidden)))


def save_reward_head(head: RewardHead, target: Qwen3ForCausalLM, auc: float | None, folder: Path) -> None:
    """Write the head and what it belongs to."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(head.state_dict(), folder / WEIGHTS_NAME)
    (folder / WEIGHTS_NAME).chmod(0o644)
    config = {
        "hidden_size": head.inner.in_features,
        "width": head.inner.out_features,
        "reads": "last hidden state, after the final norm, at the token that ends a step",
        "target": fingerprint(target),
        "auc": auc,
    }
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Train a reward head on rollouts of the pair, and measure it on problems it has not seen."""
    parser = argparse.ArgumentParser(
        prog="python -m reason_spec.lab.pair.reward_training", description=main.__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the head")
    parser.add_argument("--target", type=Path, help="folder of the target (default: the embedded one)")
    parser.add_argument("--draft", type=Path, help="folder of the draft (default: the embedded one)")
    parser.add_argument("--n", type=int, default=2000, help="rollouts of the draft (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.n < 2 or arguments.threads < 1:
        parser.error("--n must be at least 2 and --threads at least 1")
    torch.set_num_threads(arguments.threads)
    try:
        target = load_pair_model(arguments.target or embedded_path("target"))
        draft = load_pair_model(arguments.draft or embedded_path("draft"))
        steps = roll_out(target, draft, arguments.n, _SEED)
        held_out = roll_out(target, draft, max(1, arguments.n // 5), _SEED + 100)
        head = train_head(steps)
        auc = held_out_auc(head, held_out)
        save_reward_head(head, target.model, auc, arguments.out)
    except ReasonSpecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    shown = "unknown: all held-out steps are alike" if auc is None else f"{auc:.3f}"
    print(f"{len(steps.right)} steps, {steps.right.mean():.1%} right; held-out AUC {shown}")


if __name__ == "__main__":
    main()
