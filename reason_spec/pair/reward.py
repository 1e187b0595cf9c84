"""The reward head: is a solution right so far? Read off the target's hidden state where a step ends.

A process reward model (Lightman et al. 2023, "Let's Verify Step by Step") in the smallest form: two
layers on top of the target's last hidden state. It is trained on rollouts of both models on
problems of the training split; a step counts as right where it and all before it make the
calculations of the worked solution.

    python -m reason_spec.pair.reward --out DIR
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from reason_spec.errors import DataError, ReasonSpecError
from reason_spec.pair import embedded_path, reward_path
from reason_spec.pair.decoding import LoadedModel, complete, load_pair_model
from reason_spec.pair.generator import STEP_SEPARATOR, Example, problems
from reason_spec.pair.grading import is_right_step
from reason_spec.pair.measure import area_under_curve
from reason_spec.pair.tokenizer import chat_prompt

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

WEIGHTS_NAME, CONFIG_NAME = "reward.safetensors", "config.json"
_WIDTH = 128
_EPOCHS = 30
_ROWS = 256
_RATE = 2e-3
_TEMPERATURE = 1.0
_DRAFTS_PER_TARGET = 8
_SEED = 20_000
"""Seed of the problems the head is trained on; the target's own training used others."""


class RewardHead(nn.Module):
    """Hidden states [n, width] to the logit [n] of "right so far"."""

    def __init__(self, hidden_size: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, width)
        self.outer = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.outer(functional.gelu(self.inner(hidden)))
        return logits[..., 0]


class LabelledSteps(NamedTuple):
    """Hidden states where steps end, [n, width], and whether all is right up to there, [n]."""

    hidden: Tensor
    right: Tensor


def fingerprint(model: Qwen3ForCausalLM) -> str:
    """Return a digest of the weights that decide the hidden states, in bfloat16, as they are stored."""
    digest = hashlib.sha256()
    for name, value in sorted(model.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.to(torch.bfloat16).contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


@torch.inference_mode()
def hidden_where_steps_end(target: LoadedModel, texts: Sequence[str], rows: int = 32) -> list[Tensor]:
    """Return, for each text, the last hidden state at each token that ends a step: [steps, width]."""
    tokenizer = target.tokenizer
    ends = [i for i in tokenizer.get_vocab().values() if STEP_SEPARATOR in tokenizer.decode([i])]
    found: list[Tensor] = []
    for start in range(0, len(texts), rows):
        encoded = tokenizer(
            list(texts[start : start + rows]), padding=True, padding_side="right", return_tensors="pt"
        )
        tokens = encoded["input_ids"].to(target.model.device)
        # Padding stands on the right, where causal attention never sees it.
        hidden = target.model.model(input_ids=tokens, use_cache=False).last_hidden_state
        is_end = torch.isin(tokens, torch.tensor(ends, device=tokens.device))
        found += [row[mask].float().cpu() for row, mask in zip(hidden, is_end, strict=True)]
    return found


def rewards(target: LoadedModel, head: RewardHead, prefixes: Sequence[str]) -> list[float]:
    """Return the chance that each prefix, which ends with a step, is right so far."""
    last = [hidden[-1] for hidden in hidden_where_steps_end(target, prefixes)]
    with torch.inference_mode():
        chances: list[float] = head(torch.stack(last)).sigmoid().tolist()
    return chances


class _Read(NamedTuple):
    """The tokens of a text that were read last, and the keys and values kept of them."""

    tokens: list[int]
    cache: DynamicCache


class RewardReader:
    """Rates answers as they grow: of each question, only what is new since the last call is read.

    Args:
        target: the model whose states the head reads.
        head: what rates them.
        max_questions: how many questions' keys and values are kept; the least recently asked goes first.
    """

    def __init__(self, target: LoadedModel, head: RewardHead, max_questions: int = 64) -> None:
        self._target = target
        self._head = head
        self._max_questions = max_questions
        self._read: OrderedDict[str, _Read] = OrderedDict()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[tuple[str, str]]) -> list[float]:
        """Return the chance that each answer is right so far; texts are pairs of question and answer.

        A last step without its blank line is read as if it had one.
        """
        states = [self._state_at_end(*text) for text in texts]
        chances: list[float] = self._head(torch.stack(states)).sigmoid().tolist()
        return chances

    def _state_at_end(self, question: str, answer: str) -> Tensor:
        """Return the last hidden state at the end of an answer, [width]."""
        model, tokenizer = self._target
        text = chat_prompt(question) + answer.removesuffix(STEP_SEPARATOR) + STEP_SEPARATOR
        tokens: list[int] = tokenizer(text)["input_ids"]
        before = self._read.pop(question, None) or _Read([], DynamicCache(config=model.config))
        # The last token is read anew even where all are known: what is asked for is its state.
        pairs = enumerate(zip(tokens, before.tokens, strict=False))
        num_shared = next((place for place, (new, old) in pairs if new != old), len(before.tokens))
        num_known = min(num_shared, len(tokens) - 1)
        if num_known < len(before.tokens):
            before.cache.crop(num_known - len(before.tokens))
        output = model.model(
            input_ids=torch.tensor([tokens[num_known:]], device=model.device),
            past_key_values=before.cache,
            use_cache=True,
        )
        self._read[question] = _Read(tokens, before.cache)
        if len(self._read) > self._max_questions:
            self._read.popitem(last=False)
        return cast("Tensor", output.last_hidden_state[0, -1].float().cpu())


def load_embedded_reward() -> RewardReader:
    """Load the embedded target and its head.

    Raises:
        DataError: weights are missing, or belong to another target.
    """
    target = load_pair_model(embedded_path("target"))
    return RewardReader(target, load_reward_head(reward_path(), target.model))


def _right_so_far(solution: str, problem: Example) -> Iterator[bool]:
    """Yield for each calculation step whether it and all before it are right."""
    right = True
    for step, reference in zip(solution.split(STEP_SEPARATOR), problem.steps[:-1], strict=False):
        right = right and is_right_step(step, reference)
        yield right


def label_rollouts(target: LoadedModel, chosen: Sequence[Example], solutions: Sequence[str]) -> LabelledSteps:
    """Label the steps of solutions, one to each problem, and read the target's hidden states at them."""
    texts: list[str] = []
    labels: list[list[bool]] = []
    for problem, solution in zip(chosen, solutions, strict=True):
        steps = solution.split(STEP_SEPARATOR)[: problem.operations]
        texts.append(chat_prompt(problem.question) + "".join(step + STEP_SEPARATOR for step in steps))
        labels.append(list(_right_so_far(solution, problem)))
    hidden = hidden_where_steps_end(target, texts)
    # A step that never ended, at the limit of tokens, has no place to be read at.
    pairs = [(states[: len(row)], row[: len(states)]) for states, row in zip(hidden, labels, strict=True)]
    return LabelledSteps(
        torch.cat([states for states, _ in pairs]),
        torch.tensor([label for _, row in pairs for label in row], dtype=torch.float32),
    )


def roll_out(
    target: LoadedModel, draft: LoadedModel, n: int, seed: int, note: Callable[[str], None]
) -> LabelledSteps:
    """Let the draft solve ``n`` problems and the target some, at temperature 1, and label the steps.

    The target's are few: it is slow, seldom wrong, and its steps are not what has to be judged.
    """
    parts: list[LabelledSteps] = []
    models = (("draft", draft, n), ("target", target, max(1, n // _DRAFTS_PER_TARGET)))
    for number, (name, model, count) in enumerate(models):
        chosen = list(islice(problems("train", seed + number), count))
        torch.manual_seed(seed + number)
        prompts = [chat_prompt(problem.question) for problem in chosen]
        solutions = complete(
            model,
            prompts,
            temperature=_TEMPERATURE,
            note=lambda done, name=name, count=count: note(f"{name}: {done} of {count} rollouts"),  # type: ignore[misc]
        )
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


def load_reward_head(folder: Path, target: Qwen3ForCausalLM) -> RewardHead:
    """Load a head for ``target``.

    Raises:
        DataError: a file is missing or unreadable, or the head was trained on another target.
    """
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        head = RewardHead(config["hidden_size"], config["width"])
        head.load_state_dict(load_file(folder / WEIGHTS_NAME))
        trained_on = config["target"]
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"{folder} holds no reward head: {error}. Make one with: "
            "python -m reason_spec.pair.reward --out DIR"
        ) from error
    if trained_on != fingerprint(target):
        raise DataError(
            f"The reward head in {folder} was trained on another target. Make one for this target with: "
            "python -m reason_spec.pair.reward --target FOLDER --out DIR"
        )
    return head.eval()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m reason_spec.pair.reward", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the head")
    parser.add_argument("--target", type=Path, help="folder of the target (default: the embedded one)")
    parser.add_argument("--draft", type=Path, help="folder of the draft (default: the embedded one)")
    parser.add_argument("--n", type=int, default=2000, help="rollouts of the draft (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.n < 2 or arguments.threads < 1:
        parser.error("--n must be at least 2 and --threads at least 1")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Train a reward head on rollouts of the pair, and measure it on problems it has not seen."""
    arguments = _parse(argv)
    torch.set_num_threads(arguments.threads)

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        target = load_pair_model(arguments.target or embedded_path("target"))
        draft = load_pair_model(arguments.draft or embedded_path("draft"))
        steps = roll_out(target, draft, arguments.n, _SEED, note)
        held_out = roll_out(target, draft, max(1, arguments.n // 5), _SEED + 100, note)
        head = train_head(steps)
        with torch.inference_mode():
            logits = head(held_out.hidden)
        auc = area_under_curve((held_out.right > 0).tolist(), logits.tolist())
        save_reward_head(head, target.model, auc, arguments.out)
    except ReasonSpecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    shown = "unknown: all held-out steps are alike" if auc is None else f"{auc:.3f}"
    print(f"{len(steps.right)} steps, {steps.right.mean():.1%} right; held-out AUC {shown}")


if __name__ == "__main__":
    main()
